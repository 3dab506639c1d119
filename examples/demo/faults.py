"""Kills and freezes workers, step by step. Each step waits for the state that it needs, none for a fixed time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from sqlalchemy import Engine, text

from demo.flights import Feed
from demo.worker_pool import DemoFailed, WorkerPool, WorkerProcess
from seekpoint.ledger.schema_connection import APPLICATION

#: The worker that is killed, and the step of its transaction: at Applied it has written rows, at Advanced the offset.
KILLS = (("A", "Applied"), ("B", "Held"), ("A", "Advanced"), ("B", "Applied"))
ZOMBIES = 2
FAULTS = len(KILLS) + ZOMBIES

_OPEN = text(
    "SELECT pid, backend_xid::text AS xid, state FROM pg_stat_activity"
    " WHERE application_name LIKE :name AND backend_xid IS NOT NULL"
)
_WRITES = text(
    "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE l.pid = :pid AND l.granted"
    " AND l.mode = 'RowExclusiveLock' AND c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')"
)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A worker's transaction, as the server showed it: the proof that it was open."""

    pid: int
    xid: str
    state: str
    wrote: bool

    def __str__(self) -> str:
        rows = "rows written, not committed" if self.wrote else "no row written yet"
        return f"transaction {self.xid} open in backend {self.pid} ({self.state}, {rows})"


@dataclass(slots=True)
class Outcome:
    """Counts of the faults that were observed, not of those that were attempted."""

    kills: int = 0
    kills_in_transaction: int = 0
    fenced: int = 0
    story: list[str] = field(default_factory=list)


class Script:
    """Injects the faults in order, each with a share of the records in flight."""

    def __init__(self, pool: WorkerPool, feed: Feed, database: Engine, share: int, tell: Callable[[str], None]) -> None:
        self._pool, self._feed, self._database, self._share = pool, feed, database, share
        self._tell = tell
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Kill and freeze; raises DemoFailed if a step fails."""
        first, second, third, fourth = KILLS
        self._kill(*first)
        self._kill(*second)
        self._freeze_before_writing("A")
        self._kill(*third)
        self._freeze_in_transaction("B")
        self._kill(*fourth)
        self._both_at_work()
        return self.outcome

    def _say(self, line: str) -> None:
        self.outcome.story.append(line)
        self._tell(line)

    def _both_at_work(self) -> None:
        self._pool.wait("both workers to share the partitions", lambda: self._pool.settled)

    def _halted(self, name: str, step: str) -> WorkerProcess:
        """Produce records to both workers, and wait until this one has stopped at the step."""
        self._both_at_work()
        pool, worker = self._pool, self._pool[name]
        worker.break_at(step)
        self._feed.send(self._share)
        pool.wait(f"worker {name} to reach {step}", lambda: worker.at_break == step)
        return worker

    # -- killed ---------------------------------------------------------------------------------------

    def _kill(self, name: str, step: str) -> None:
        worker = self._halted(name, step)
        open_ = open_transaction(self._database, worker)
        worker.kill()
        self.outcome.kills += 1
        if open_ is None:
            self._say(f"killed {name} at {step}, but it had no transaction open")
        else:
            self.outcome.kills_in_transaction += 1
            self._say(f"killed {name} at {step}: {open_}")
            self._pool.wait("Postgres to roll it back", lambda: not is_open(self._database, open_))
        self._pool.start(name)

    # -- frozen ---------------------------------------------------------------------------------------

    def _freeze_before_writing(self, name: str) -> None:
        """Freeze a worker that has read a batch and begun no transaction: its first statement must be refused."""
        worker = self._halted(name, "BatchOpened")
        waited = self._outlive(worker)
        self._tell_of_freeze(worker, "a batch read and no transaction open", waited)
        self._expect_refusal(worker)

    def _freeze_in_transaction(self, name: str) -> None:
        """Freeze a worker inside its transaction: the other worker's claim waits for that, but not long."""
        worker = self._halted(name, "Applied")
        open_ = open_transaction(self._database, worker)
        if open_ is None:
            raise DemoFailed(f"worker {name} halted at Applied, but the server shows no open transaction of it")
        heir, troubles = self._pool.other(name), len(worker.troubles)
        stalls = len(heir.stalls)
        waited = self._outlive(worker)
        put_off = heir.stalls[stalls:]
        if is_open(self._database, open_):
            raise DemoFailed(f"worker {heir.name} continued before this had ended: {open_}")
        self._tell_of_freeze(worker, str(open_), waited)
        self._expect_refusal(worker)
        ender = f"{heir.name}'s claim" if any(open_.pid in stall["terminated"] for stall in put_off) else "the server"
        trouble = f" ({worker.troubles[troubles]})" if len(worker.troubles) > troubles else ""
        self._say(
            f"  its transaction was ended by {ender}{trouble}; {heir.name}'s claim was postponed {len(put_off)} times"
        )

    def _outlive(self, zombie: WorkerProcess) -> float:
        """Freeze a worker until the other one has claimed its partitions and continued; returns how long that took."""
        pool, heir = self._pool, self._pool.other(zombie.name)
        inheritance = list(zombie.active)
        position = pool.committed_of(inheritance)
        began = monotonic()
        zombie.freeze()
        pool.wait(f"worker {zombie.name} to be stopped", lambda: zombie.is_stopped)
        pool.wait(
            f"worker {heir.name} to claim worker {zombie.name}'s partitions, and to continue from there",
            lambda: set(inheritance) <= set(heir.active) and pool.committed_of(inheritance) > position,
        )
        return monotonic() - began

    def _tell_of_freeze(self, zombie: WorkerProcess, having: str, waited: float) -> None:
        heir = self._pool.other(zombie.name).name
        self._say(f"froze {zombie.name} with {having}; {heir} took over and continued after {waited:.1f} s")

    def _expect_refusal(self, zombie: WorkerProcess) -> None:
        """Let the zombie continue until it is fenced.

        If the server has ended its connection, it asks the ledger before it writes, so nothing may be refused.
        """
        refusals, commits, claims_lost = len(zombie.refusals), zombie.commits, zombie.claims_lost
        zombie.thaw()
        zombie.go()
        self._pool.wait(
            f"worker {zombie.name} to be fenced",
            lambda: len(zombie.refusals) > refusals or zombie.commits > commits or zombie.claims_lost > claims_lost,
        )
        if zombie.commits == commits:
            self.outcome.fenced += 1
            why = zombie.refusals[refusals] if len(zombie.refusals) > refusals else "the ledger: claimed by another"
            self._say(f"  continued {zombie.name}: fenced ({why})")
        else:
            self._say(f"  continued {zombie.name}: NOT fenced, its write was committed")


def open_transaction(database: Engine, worker: WorkerProcess) -> OpenTransaction | None:
    """The worker's open transaction, as the server shows it; None if it has none."""
    with database.connect() as connection:
        row = connection.execute(_OPEN, {"name": f"{APPLICATION}{worker.owner[:8]} %"}).one_or_none()
        if row is None:
            return None
        wrote = connection.execute(_WRITES, {"pid": row.pid}).scalar_one() > 0
        return OpenTransaction(row.pid, row.xid, row.state, wrote)


def is_open(database: Engine, transaction: OpenTransaction) -> bool:
    """Whether the transaction is still open."""
    with database.connect() as connection:
        rows = connection.execute(_OPEN, {"name": f"{APPLICATION}%"}).all()
    return any((row.pid, row.xid) == (transaction.pid, transaction.xid) for row in rows)
