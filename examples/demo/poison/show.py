"""The demonstration: servers, a clean run and one with broken records, a replay, comparison, report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from rich.console import Console
from sqlalchemy import Engine, func, select

from demo.bar import bar
from demo.flights import PARTITIONS, RECORDS, Flight, read_flights
from demo.poison.handling import CLEAN, POISONED, FixedHandler, Outages, make_pipeline, make_table
from demo.poison.judge import Verdict, judge
from demo.poison.kinds import CRASHING, ID, Sent, break_some, choose, tail
from demo.poison.report import Report
from demo.poison.worker_pool import SupervisedPool
from demo.servers import servers
from demo.wire import Wire, create_topic
from demo.worker_pool import DemoFailed
from seekpoint import schema
from seekpoint.admin import Admin, Cause
from seekpoint.testing import Pair

SEED = 2013
PATIENCE = 150.0  # seconds for one run: the crashing records' part takes a session timeout for each crash

# Small batches leave fewer records to apply one by one around a crashing one; a short session ends sooner after a kill.
LIMITS = {"batch_records": 5_000, "claim_wait": 1.0, "transaction_age": 30.0}
TIMES = {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 400}

Notices = Iterable[tuple[Flight, bytes, Sent | None]]


def perform(records: int = RECORDS, *, seed: int = SEED, console: Console) -> Report:
    """Run the demo on its own servers, and return the results. Progress goes to ``console``.

    Raises ConfigError for a missing data set or a number of records out of range, ServerFailed if a server cannot be
    started, and DemoFailed if a step fails.
    """
    with servers(records, console) as (pair, engine, folder):
        stage = Stage(pair, engine, list(read_flights(records)), seed=seed, folder=folder, console=console)
        stage.play()
        return stage.report()


class Stage:
    """One run of the demo, on running servers: first :meth:`play`, then :meth:`report`, which may be called again."""

    def __init__(
        self, pair: Pair, engine: Engine, flights: list[Flight], *, seed: int, folder: Path, console: Console
    ) -> None:
        self.engine, self._pair, self._console, self._folder = engine, pair, console, folder
        self._flights, self._seed = flights, seed
        self._counted = len(flights) - tail(len(flights))  # the records that the rates count
        (folder / "outages").mkdir()
        self._outages = Outages(folder / "outages")
        self.table = make_table(POISONED)
        self.replay = Admin(engine).dead_letters(make_pipeline(POISONED, FixedHandler(self.table)), actor="demo")
        self._broken: dict[int, Sent] = {}

    def play(self) -> None:
        """Run all steps; raises DemoFailed if one fails."""
        schema.upgrade(self.engine)
        self._play_clean()
        self._play_poisoned()
        self._replay_fixed()

    def _play_clean(self) -> None:
        with self._pool(CLEAN, "clean records committed", self._counted) as (pool, _):
            wire = Wire(self._pair.kafka.bootstrap, CLEAN)
            notices = list(break_some(self._flights[: self._counted], {}))
            self._rate_clean = self._counted / _run(pool, wire, notices, self._counted)
            pool.stop()

    def _play_poisoned(self) -> None:
        count = len(self._flights)
        with self._pool(POISONED, "records passed", count) as (pool, tell):
            wire = Wire(self._pair.kafka.bootstrap, POISONED)
            notices = list(break_some(self._flights, choose(self._flights, self._seed)))
            self._broken = {flight.id: sent for flight, _, sent in notices if sent is not None}
            self._began = monotonic()
            self._rate_poisoned = self._counted / _run(pool, wire, notices[: self._counted], self._counted)
            tell(f"now the last {count - self._counted:,} records, {CRASHING} that crash their process among them")
            _run(pool, wire, notices[self._counted :], count)
            pool.wait("the newest worker to join", lambda: pool.settled)
            self._exit_codes = tuple(pool.stop())
            self._deaths = pool.deaths

    def _replay_fixed(self) -> None:
        """Replay all dead letters that can be decoded: make the plan, then apply it."""
        chosen = [dead_letter.id for dead_letter in self.replay.list() if dead_letter.cause is not Cause.DECODE]
        planned = [entry for entry in self.replay.plan(chosen) if entry.refusal is None]
        with bar(self._console, "dead letters replayed", len(planned)) as (update, _):
            done = self.replay.replay_all(
                chosen, reason="the handler is fixed", progress=lambda _one, done, _all: update(done)
            )
        self._planned, self._replayed = len(chosen), done.replayed
        self._seconds = monotonic() - self._began

    # -- afterwards -----------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        """Compare the database with the records that were sent."""
        return judge(
            self.engine,
            self.table,
            self.replay,
            flights=self._flights,
            broken=self._broken,
            tries=self._outages.tries(),
        )

    def report(self) -> Report:
        """The demo's results."""
        with self._console.status("comparing table and dead letters with what was sent, row by row"):
            verdict = self.judge()
            with self.engine.connect() as connection:
                rows = connection.execute(select(func.count()).select_from(make_table(CLEAN))).scalar_one()
        return Report(
            verdict=verdict,
            seconds=self._seconds,
            rate_clean=self._rate_clean,
            rate_poisoned=self._rate_poisoned,
            clean_records=self._counted,
            clean_rows=rows,
            planned=self._planned,
            replayed=self._replayed,
            deaths=self._deaths,
            seed=self._seed,
            broker=self._pair.kafka.describe(),
            postgres=self._pair.postgres.describe(),
            exit_codes=self._exit_codes,
        )

    # -- two workers ----------------------------------------------------------------------------------

    @contextmanager
    def _pool(self, name: str, what: str, total: int) -> Iterator[tuple[SupervisedPool, Callable[[str], None]]]:
        """Two workers that share the partitions of a new topic, with a new table."""
        make_table(name).metadata.create_all(self.engine)
        create_topic(self._pair.kafka.bootstrap, name, PARTITIONS)
        order = {
            "name": name,
            "outages": str(self._folder / "outages"),
            "database": self._pair.postgres.url,
            "kafka": {"bootstrap.servers": self._pair.kafka.bootstrap, **TIMES},
            "limits": LIMITS,
        }
        logs = self._folder / name
        logs.mkdir()
        with bar(self._console, what, total) as (update, tell), SupervisedPool(order, PARTITIONS, logs, tell) as pool:
            pool.on_progress = update
            pool.start_two()
            yield pool, tell


def _run(pool: SupervisedPool, wire: Wire, notices: Notices, until: int) -> float:
    """Send the notices, and wait until ``until`` records in all are passed; returns the seconds that took."""
    began = monotonic()
    for flight, value, sent in notices:
        heard = None if sent is None else sent.heard
        wire.send(value, flight.carrier, [(ID, str(flight.id).encode())], heard)
    wire.flush()
    pool.wait("every record to be passed", lambda: pool.committed >= until, PATIENCE)
    if pool.committed > until:
        raise DemoFailed(f"the workers have committed {pool.committed:,} records, of {until:,} that were sent")
    return monotonic() - began
