"""A log of good, failing, poison and crashing records, drawn from a seed, and checks of each record's outcome.

Workers run in this process, where a crash is an exception that nothing catches, or in processes that kill themselves:
``python tests/support/random_failures.py '{…}'`` runs one worker until it has finished or crashed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from sqlalchemy import Connection, Engine, create_engine, text

from seekpoint import Append, Batch, Json, Limits, Partition, Pipeline, Poison, Worker, events
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.policy import DeadLetterLimits, OnPoison, Retry
from seekpoint.records import AnyRecord, Cause, State

POISON: Mapping[str, Mapping[str, Cause]] = {  # cause by way of writing
    "undecodable": dict.fromkeys(("handler", "sink", "both"), Cause.DECODE),
    "refused": dict.fromkeys(("handler", "sink", "both"), Cause.DATABASE),
    "named": {"handler": Cause.POISON, "sink": Cause.ROW, "both": Cause.POISON},
    "unnamed": {"handler": Cause.POISON, "sink": Cause.ROW, "both": Cause.POISON},
}
STEPS = (
    "Activated", "BatchOpened", "Held", "ChunkRead", "Applied", "Advanced", "Committed", "Bisecting", "DeadLettered",
    "RetryScheduled", "SingleRecordAttempt",
)  # fmt: skip
CREATE = """
CREATE TABLE rows (seq bigint GENERATED ALWAYS AS IDENTITY, partition int, "offset" bigint,
  kind text CHECK (kind <> 'refused'));
CREATE TABLE rows_too (LIKE rows INCLUDING ALL);
"""
COLUMNS = ("partition", "offset", "kind")


class Died(SystemExit):
    """Simulates a crash of the process: nothing catches it."""


def die() -> NoReturn:
    """Simulate a crash in this process."""
    raise Died


def kill_myself() -> NoReturn:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


@dataclass
class RandomCase:
    """The log, options and crashes that a seed draws."""

    seed: int
    log: dict[int, list[tuple[str, str | None]]] = field(init=False)  # by partition: kind and key of each record

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self.strategy = chance.choice(("handler", "handler", "sink", "both"))
        self.policy = chance.choice(list(OnPoison))
        self.keep_key_order = self.policy is OnPoison.DEAD_LETTER and chance.random() < 0.6
        self.batch_records = chance.choice((1, 3, 10, 1000))
        kinds = ["good"] * 12 + list(POISON) * chance.choice((0, 1, 2))
        kinds += ["transient"] * 2 if self.strategy != "sink" else []
        keys = ["a", "b", "c", "d", None]
        count = chance.randrange(1, 4)
        self.log = {
            p: [(chance.choice(kinds), chance.choice(keys)) for _ in range(chance.randrange(5, 40))]
            for p in range(count)
        }
        for kind in chance.choice(((), ("crash",), ("flaky",), ("crash", "flaky"))):
            of = self.log[chance.randrange(count)]
            index = chance.randrange(len(of))
            of[index] = kind, of[index][1]
        self.crashes = [(chance.choice(STEPS), chance.randrange(1, 8)) for _ in range(chance.randrange(5))]

    def __str__(self) -> str:
        kinds = Counter(kind for records in self.log.values() for kind, _ in records)
        held = ", keys held" if self.keep_key_order else ""
        return (
            f"seed {self.seed}: {self.strategy}, {self.policy}{held}, batches of {self.batch_records}, "
            f"{len(self.log)} partitions, {dict(kinds)}, crashes at {self.crashes}"
        )

    @property
    def ends(self) -> dict[int, int]:
        """The offset after the last record of each partition."""
        return {p: len(records) for p, records in self.log.items()}

    def values(self, partition: int) -> list[tuple[str | None, bytes]]:
        """Keys and values of a partition's records."""
        return [
            (key, b"{" if kind == "undecodable" else json.dumps(kind).encode()) for kind, key in self.log[partition]
        ]

    def pipeline(self, where: Mapping[str, Any], death: Callable[[], NoReturn], chance: random.Random) -> Pipeline:
        """A pipeline that writes each record to ``rows`` (and to ``rows_too`` if ``strategy`` is ``both``)."""
        act = partial(_act, death=death, chance=chance)
        schema = where["schema"]

        def row(record: AnyRecord) -> tuple[Any, ...]:
            if self.strategy == "sink":
                act(record)
            return record.partition, record.offset, record.value

        def handle(tx: Connection, batch: Batch[str, Any]) -> None:
            for record in batch:
                act(record)
            name = "rows_too" if self.strategy == "both" else "rows"
            statement = text(f'INSERT INTO "{schema}".{name} (partition, "offset", kind) VALUES (:p, :o, :k)')
            tx.execute(statement, [{"p": r.partition, "o": r.offset, "k": r.value} for r in batch])

        sinks = [] if self.strategy == "handler" else [Append((schema, "rows"), columns=COLUMNS, row=row)]
        return Pipeline(
            where["group"],
            topics=where["topic"],
            value=Json(str),
            sinks=sinks,
            handle=None if self.strategy == "sink" else handle,
            retry=Retry(attempts=60, wait_initial=0.005, wait_max=0.02, crashes=2),
            on_poison=self.policy,
            keep_key_order=self.keep_key_order,
            dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None),
        )


def _act(record: AnyRecord, *, death: Callable[[], NoReturn], chance: random.Random) -> None:
    match record.value:
        case "crash":
            death()
        case "flaky" if chance.random() < 0.5:
            death()
        case "transient" if chance.random() < 0.5:
            raise OSError("not now")
        case "named":
            raise Poison("no", record)
        case "unnamed":
            raise Poison("no")


class CrashingObserver:
    """An observer that crashes its worker at a step, skips stopped records as an operator, and ends the worker."""

    def __init__(
        self,
        random_case: RandomCase,
        topic: str,
        crash: tuple[str, int] | None,
        death: Callable[[], NoReturn],
        ledger: GroupLedger,
    ) -> None:
        self._ends = {Partition(topic, p): end for p, end in random_case.ends.items()}
        self._at: dict[Partition, int] = {}
        self._crash, self._left = crash or ("", 0)
        self._death, self._ledger = death, ledger
        self.worker: Worker | None = None
        self.events: list[str] = []

    def __call__(self, event: events.Event) -> None:
        step = type(event).__name__
        self.events.append(repr(event)[:300])
        if isinstance(event, events.Activated):
            self._at[event.partition] = event.offset
        if isinstance(event, events.Committed):
            self._at.update({span.partition: span.end for span in event.spans})
        if step == self._crash:
            self._left -= 1
            if self._left == 0:
                self._death()
        if isinstance(event, events.PartitionStopped):  # the operator
            partition, offset = event.partition, event.error.offset
            self._ledger.reset_offset(
                *partition, offset + 1, expected=offset, lost="poison", log=None, reason="passed by hand"
            )
        assert self.worker is not None
        if self._at == self._ends:
            self.worker.stop()


def run_until_crash(
    random_case: RandomCase, number: int, where: Mapping[str, Any], engine: Engine | str, death: Callable[[], NoReturn]
) -> CrashingObserver:
    """Run worker ``number`` until every record is passed, or until it crashes."""
    crash = random_case.crashes[number] if number < len(random_case.crashes) else None
    topic, schema = where["topic"], where["schema"]
    observer = CrashingObserver(random_case, topic, crash, death, GroupLedger(engine, where["group"], schema=schema))
    chance = random.Random(random_case.seed * 1000 + number)
    observer.worker = Worker(
        random_case.pipeline(where, death, chance),
        engine=engine,
        kafka=where["kafka"],
        schema=schema,
        limits=Limits(idle_check=0.05, batch_records=random_case.batch_records),
        partitions=[(topic, p) for p in random_case.log],
        observe=[observer],
    )
    observer.worker.run()
    return observer


# -- the check --------------------------------------------------------------------------------------------------


@dataclass
class StoredOutcome:
    """Rows, dead letters and positions at the end."""

    rows: list[tuple[int, int]]
    rows_too: list[tuple[int, int]]
    dead_letters: dict[tuple[int, int], tuple[State, Cause, bool]]  # state, cause, has a value
    passed: set[tuple[int, int]]
    positions: dict[int, int]

    @classmethod
    def read(cls, engine: Engine, schema: str, group: str) -> StoredOutcome:
        """Read all in one snapshot."""
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as tx:
            tx.exec_driver_sql(f'SET search_path = "{schema}"')

            def of(query: str) -> Sequence[Any]:
                return tx.execute(text(query), {"g": group} if ":g" in query else {}).all()

            outcome = cls(
                [tuple(r) for r in of('SELECT partition, "offset" FROM rows ORDER BY seq')],
                [tuple(r) for r in of('SELECT partition, "offset" FROM rows_too ORDER BY seq')],
                {
                    (r.partition, r.record_offset): (State(r.state), Cause(r.cause), r.value is not None)
                    for r in of("SELECT * FROM dead_letter WHERE consumer_group = :g")
                },
                {
                    (r.partition, n)
                    for r in of("SELECT * FROM lost_range WHERE consumer_group = :g")
                    for n in range(r.from_offset, r.to_offset)
                },
                {r.partition: r.next_offset for r in of("SELECT * FROM partition_offset WHERE consumer_group = :g")},
            )
            tx.exec_driver_sql("RESET search_path")
            return outcome

    def judge(self, random_case: RandomCase, deaths: int) -> None:
        """Assert that each record is applied, dead-lettered or skipped by an operator once; rows are in order."""
        assert self.positions == random_case.ends, "everything is passed"
        log = {(p, o): record for p, records in random_case.log.items() for o, record in enumerate(records)}
        ended, wanted = Counter([*self.rows, *self.dead_letters, *self.passed]), Counter(list(log))
        assert ended == wanted, f"lost {wanted - ended}, more than once {ended - wanted}"
        assert sorted(self.rows_too) == (sorted(self.rows) if random_case.strategy == "both" else [])
        for p in random_case.log:
            for rows in (self.rows, self.rows_too):
                offsets = [o for q, o in rows if q == p]
                assert offsets == sorted(offsets), f"partition {p} was written out of order"
        assert not (self.dead_letters if random_case.policy is OnPoison.STOP else self.passed)
        for place, (kind, _) in log.items():
            self._judge_one(random_case, place, kind, deaths)
        if random_case.keep_key_order:
            self._judge_keys(log)

    def _judge_one(self, random_case: RandomCase, place: tuple[int, int], kind: str, deaths: int) -> None:
        is_applied = place in set(self.rows)
        assert not (is_applied and kind in {*POISON, "crash"}), f"{kind} at {place} was applied"
        if place in self.dead_letters:
            state, cause, has_value = self.dead_letters[place]
            assert has_value == (state is not State.SKIPPED)
            if state is State.BLOCKED:
                assert (cause, random_case.keep_key_order) == (Cause.BLOCKED, True)
                return
            assert state is (State.DEAD_LETTERED if random_case.policy is OnPoison.DEAD_LETTER else State.SKIPPED)
            if cause is Cause.CRASHED:
                assert deaths >= 2, f"{kind} at {place} is called a crashing record after {deaths} deaths"
            else:
                assert kind in POISON, f"{kind} at {place} is a dead letter: {cause}"
                assert cause is POISON[kind][random_case.strategy]
        if place in self.passed and kind not in {*POISON, "crash"}:
            assert deaths >= 2, f"{kind} at {place} stopped its partition after {deaths} deaths"

    def _judge_keys(self, log: Mapping[tuple[int, int], tuple[str, str | None]]) -> None:
        """Assert that records after an open dead letter of their key are dead letters, and no others blocked."""
        dead: set[tuple[int, str]] = set()
        for (p, o), (_, key) in sorted(log.items()):
            if key is None:
                assert (p, o) not in self.dead_letters or self.dead_letters[p, o][0] is not State.BLOCKED, (
                    "a null key holds nothing"
                )
                continue
            if (p, key) in dead:
                assert (p, o) in self.dead_letters, f"{(p, o)} of key {key} was applied behind a dead letter of its key"
            elif (p, o) in self.dead_letters:
                assert self.dead_letters[p, o][0] is not State.BLOCKED, f"{(p, o)} is held behind nothing"
                dead.add((p, key))


def main(what: Mapping[str, Any]) -> None:
    """Run one worker in this process, which may kill itself."""
    engine = create_engine(what["dsn"])
    run_until_crash(RandomCase(what["seed"]), what["number"], what, engine, kill_myself)
    engine.dispose()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
