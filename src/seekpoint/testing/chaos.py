"""Runs a pipeline under faults, and checks that its tables have the rows of a run without faults."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple

import psycopg
from psycopg import sql
from sqlalchemy import URL, Connection, Engine, select
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError

from seekpoint import events
from seekpoint.errors import ConfigError
from seekpoint.ledger import Claim, GroupLedger
from seekpoint.ledger.tables import dead_letter, metadata
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.written_tables import with_schemas
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from seekpoint.records import Partition, RawRecord
from seekpoint.schema import upgrade
from seekpoint.testing.kit import FixedClaims, apply_chunk, chunk_of, claimed, grouped, ledger_of, process
from seekpoint.worker.waiting import Work

ANSWER = 10.0  # seconds to wait until COMMIT has taken effect; if it has not, its answer is awaited as usual
_LOCK_WAIT = 10  # seconds to wait for locks on the tables before they are emptied
_MOST = 5  # most records of one partition per transaction, so that a short test has several transactions
_SHOWN = 5  # most rows in a message

_CRASHES = {
    "crash before the handler": events.BatchOpened,
    "crash after the handler": events.Applied,
    "crash before COMMIT": events.Advanced,
    "crash after COMMIT": events.Committed,
}
_REBALANCE, _LOST, _UNANSWERED = "rebalance", "COMMIT lost", "COMMIT unanswered"
FAULTS = (*_CRASHES, _REBALANCE, _LOST, _UNANSWERED)


@dataclass(frozen=True, slots=True)
class Survived:
    """How often each of ``FAULTS`` happened, the number of transactions, and the seed that repeats them."""

    faults: Mapping[str, int]
    transactions: int
    seed: int


def check_exactly_once(
    pipeline: Pipeline | Callable[[], Pipeline],
    engine: Engine | URL | str,
    records: Iterable[RawRecord],
    *,
    tables: Sequence[str] = (),
    ignore: Collection[str] = (),
    prepare: Callable[[Connection], object] = lambda _: None,
    runs: int = 10,
    seed: int | None = None,
) -> Survived:
    """Check that a pipeline writes each record exactly once, in ``runs`` runs with random faults.

    First the records, made by :func:`raw`, are applied in one transaction. Each run then applies them in small
    transactions of random sizes, with faults: crashes before and after COMMIT, connections lost before COMMIT is sent
    or after it took effect, and partitions claimed by another worker after they were read. At the end of a run, tables
    and dead letters must be as after the first transaction. The check finds writes by another connection, state that
    survives a rollback, and rows that depend on the batch.

    ``tables`` are by default those of the sinks and of ``writes=``. They must be empty, and are emptied before each run
    (``TRUNCATE … RESTART IDENTITY``) and at the end: use tables for this test only. ``prepare`` is called with the
    connection that has emptied them, to insert rows that the handler needs. Columns in ``ignore`` may differ, such as a
    ``serial`` or a time. If ``pipeline`` is a function, it is called again after each crash, for handlers that keep
    state. The ledger gets a separate schema, which is dropped at the end.

    Raises AssertionError, which names the difference, the faults before it, and the ``seed`` that repeats them;
    ConfigError for tables that are not known, do not exist or are not empty; and the handler's errors.
    """
    if isinstance(tables, str) or isinstance(ignore, str):
        raise ConfigError(
            f"tables= and ignore= must be lists of names, such as ['name'], got {tables!r} and {ignore!r}"
        )
    if runs < 1:
        raise ConfigError(f"runs must be at least 1, got {runs}")
    make: Callable[[], Pipeline] = (lambda: pipeline) if isinstance(pipeline, Pipeline) else pipeline
    seed = secrets.randbits(32) if seed is None else seed
    database = postgres_engine(engine)
    try:
        rows = _Tables(database, make().require_names("the test kit"), tables, ignore, prepare=prepare)
        rows.reset()  # first, so that nothing was written if the server refuses TRUNCATE
        try:
            counts = _checked(make, list(records), rows, runs, seed)
        finally:
            rows.reset(lambda _: None)
    finally:
        if not isinstance(engine, Engine):
            database.dispose()  # the engine was made here
    faults = MappingProxyType({fault: counts[fault] for fault in FAULTS})
    return Survived(faults, counts["transactions"], seed)


def _checked(
    make: Callable[[], Pipeline], records: Sequence[RawRecord], rows: _Tables, runs: int, seed: int
) -> Counter[str]:
    """Compare each run with a run without faults; returns how often each fault happened. Raises AssertionError."""
    engine, counts, planned = rows.engine, Counter[str](), list[str]()
    with _ledger_schema(engine) as name:
        before = rows.read()
        process(make(), engine, records, schema=name)
        expected = _State(rows.read(), _dead_letters(engine, name))
        if expected.rows == before:
            names = ", ".join(rows.names)
            raise ConfigError(f"{len(records)} records have changed no row of {names}: name the right tables=")
        for number in range(runs):
            rows.reset()
            _empty_ledger(engine, name)
            chance = random.Random(f"{seed} {number}")  # noqa: S311 -- a test's
            run = _Run(engine, name, make, records, chance=chance, planned=planned)
            run.apply_all()
            counts += run.counts
            if difference := expected.difference(_State(rows.read(), _dead_letters(engine, name))):
                faults = ", ".join(run.history) or "no fault"
                raise AssertionError(f"{difference}; after {faults}; seed={seed}, run {number}")
    return counts


@contextmanager
def _ledger_schema(engine: Engine) -> Iterator[str]:
    name = f"seekpoint_chaos_{secrets.token_hex(6)}"
    upgrade(engine, schema=name)
    try:
        yield name
    finally:
        with engine.begin() as tx:
            tx.exec_driver_sql(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)).as_string(None))


def _empty_ledger(engine: Engine, name: str) -> None:
    with engine.begin() as tx:
        for table in reversed(metadata.sorted_tables):
            query = sql.SQL("DELETE FROM {}").format(sql.Identifier(name, table.name))
            tx.exec_driver_sql(query.as_string(None))


class _Tables:
    """The tables that the pipeline writes. Raises ConfigError if they are not known, do not exist or have rows."""

    def __init__(
        self,
        engine: Engine,
        pipeline: Pipeline,
        names: Sequence[str],
        ignore: Collection[str],
        *,
        prepare: Callable[[Connection], object],
    ) -> None:
        self.engine, self._ignore, self._prepare = engine, frozenset(ignore), prepare
        with engine.begin() as tx:
            self.names = tuple(names) or pipeline.taken().check_tables(tx)
            existing = with_schemas(tx, self.names)
        if not names and (not self.names or (pipeline.handle is not None and not pipeline.writes)):
            raise ConfigError(f"{pipeline!r}: its tables are not known; declare writes=[...], or name tables=[...]")
        if missing := [name for name in self.names if name not in existing]:
            raise ConfigError(
                f"the table {missing[0]!r} does not exist: create it, or correct its name (with its schema, if the "
                "search_path does not have it)"
            )
        with engine.begin() as tx:
            tables = {name: self._read(tx, name) for name in self.names}
        if unknown := self._ignore - {column for columns, _ in tables.values() for column in columns}:
            raise ConfigError(f"ignore={sorted(unknown)}: {', '.join(self.names)} has no such column: correct the name")
        if full := [name for name, (_, rows) in tables.items() if rows]:
            raise ConfigError(f"{full[0]} has rows, and would be emptied: use a table that only this test uses")

    def read(self) -> Mapping[str, Counter[str]]:
        """Each table's rows, as text, without the columns to ignore."""
        with self.engine.begin() as tx:
            return {name: self._read(tx, name)[1] for name in self.names}

    def _read(self, tx: Connection, name: str) -> tuple[Collection[str], Counter[str]]:
        """A table's columns, and its rows as text, without the columns to ignore."""
        query = sql.SQL("SELECT * FROM {}").format(_identifier(name))
        result = tx.exec_driver_sql(query.as_string(None))
        columns = list(result.keys())
        kept = [number for number, column in enumerate(columns) if column not in self._ignore]
        return columns, Counter(repr(tuple(row[number] for number in kept)) for row in result)

    def reset(self, prepare: Callable[[Connection], object] | None = None) -> None:
        """Remove all rows, and insert some with ``prepare``, by default the caller's function.

        Raises AssertionError if another session has locked a table, and does not release it.
        """
        names = sql.SQL(", ").join(map(_identifier, self.names))
        try:
            with self.engine.begin() as tx:
                tx.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}s'")
                tx.exec_driver_sql(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(names).as_string(None))
                (prepare or self._prepare)(tx)
        except DBAPIError as error:
            if sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
            raise AssertionError(
                f"{', '.join(self.names)}: another session has used a table for {_LOCK_WAIT} s in an open transaction: "
                "write through the handler's tx, or end the transactions of other connections"
            ) from error


def _identifier(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split("."))


def _dead_letters(engine: Engine, name: str) -> Counter[str]:
    table = dead_letter.c
    columns = select(table.topic, table.partition, table.record_offset, table.state)
    with engine.connect().execution_options(schema_translate_map={dead_letter.schema: name}) as tx:
        rows = tx.execute(columns)
        return Counter(f"{topic}/{partition} offset {offset}: {state}" for topic, partition, offset, state in rows)


class _State(NamedTuple):
    """The rows of each table, and the dead letters, after a run."""

    rows: Mapping[str, Counter[str]]
    dead_letters: Counter[str]

    def difference(self, other: _State) -> str:
        """Describe the first difference; empty if there is none."""
        pairs = [(name, rows, other.rows[name]) for name, rows in self.rows.items()]
        for name, expected, rows in [*pairs, ("the dead letters", self.dead_letters, other.dead_letters)]:
            if rows != expected:
                parts = {"missing": expected - rows, "not expected": rows - expected}
                shown = {kind: ", ".join(islice(some.elements(), _SHOWN)) for kind, some in parts.items()}
                words = "; ".join(f"{kind}: {some}" for kind, some in shown.items() if some)
                return f"{name}: rows differ from a run without faults; {words}"
        return ""


class _Crash(BaseException):
    """Ends a transaction like a crash of its process: no ``except Exception`` catches it."""


class _Faults:
    """Injects the planned fault into a transaction, once; ``happened`` is the fault that was injected."""

    def __init__(self, watcher: GroupLedger) -> None:
        self._watcher = watcher
        self._planned = ""
        self._committing: Mapping[Partition, int] = {}  # the starts of the spans in the open COMMIT
        self.happened = ""
        self.work = Work(self._is_unanswered, self._at_commit)

    def plan(self, fault: str) -> None:
        """Plan a fault for the next transaction."""
        self._planned, self._committing, self.happened = fault, {}, ""

    def __call__(self, event: events.Event) -> None:
        """Observe the transaction's events."""
        if isinstance(event, events.BatchOpened):
            self._committing = {}  # an attempt whose COMMIT was refused may have left spans
        if isinstance(event, events.Advanced):
            self._committing = {span.partition: span.start for span in event.spans}
        if isinstance(event, events.Refused):
            self.happened = _REBALANCE
        if (crash := _CRASHES.get(self._planned)) is not None and isinstance(event, crash):
            self._happens()
            raise _Crash

    def _happens(self) -> None:
        self.happened, self._planned = self._planned, ""

    def before_commit(self, _connection: Connection) -> None:
        """Called by the engine: raises OperationalError instead of sending COMMIT."""
        if self._committing and self._planned == _LOST:
            self._happens()
            raise psycopg.OperationalError("the connection was lost before COMMIT was sent")

    def _is_unanswered(self) -> bool:
        """Called after a statement was sent: whether it is the COMMIT whose answer gets lost."""
        return bool(self._committing) and self._planned == _UNANSWERED

    def _at_commit(self) -> bool:
        """Called during the wait for COMMIT's answer. Raises OperationalError once COMMIT has taken effect."""
        deadline = monotonic() + ANSWER
        while monotonic() < deadline:
            rows = self._watcher.positions_of(self._committing, locked=False)
            if any(rows[partition].next_offset > start for partition, start in self._committing.items()):
                self._happens()
                raise psycopg.OperationalError("the connection was lost before COMMIT was answered")
        return False


class _Process:
    """One worker's process: a pipeline, an owner of claims, and a session."""

    def __init__(self, engine: Engine, name: str, pipeline: Pipeline) -> None:
        self._pipeline = pipeline.taken()
        self.ledger = ledger_of(pipeline, engine, name)

    def commit(self, records: Sequence[RawRecord], claims: Mapping[Partition, Claim], faults: _Faults) -> None:
        """Apply the records in one transaction. Raises a worker's errors, even those it would retry, and _Crash."""
        held = FixedClaims(self.ledger, claims)
        apply_chunk(self._pipeline, held, chunk_of(records, claims), [faults], faults.work)
        for stop in held.stopped.values():
            raise stop
        for retry in held.waiting:
            raise retry.error


class _Run:
    """Applies all records once, with faults."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        make: Callable[[], Pipeline],
        records: Sequence[RawRecord],
        *,
        chance: random.Random,
        planned: list[str],
    ) -> None:
        self._chance, self._planned = chance, planned
        self._logs = grouped(make().taken(), records)
        self._firsts = {partition: log[0].offset for partition, log in self._logs.items()}
        self._faults = _Faults(_Process(engine, name, make()).ledger)
        listened = engine.execution_options()  # a copy on the same pool, because the engine may be the user's
        listen(listened, "commit", self._faults.before_commit)
        self._new_process: Callable[[], _Process] = lambda: _Process(listened, name, make())
        self._process = self._new_process()
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()

    def apply_all(self) -> None:
        """Apply records until each partition's position is after its last record."""
        while left := self._left():
            partitions = self._chance.sample(left, self._chance.randint(1, len(left)))
            self._transaction(partitions, self._next_fault())

    def _next_fault(self) -> str:
        """Draw a fault or none: each once in random order, also across runs, before any is repeated."""
        if not self._planned:
            self._planned += ["", *FAULTS]
            self._chance.shuffle(self._planned)
        return self._planned.pop()

    def _left(self) -> list[Partition]:
        positions = {row.partition: row.next_offset for row in self._process.ledger.read()}
        return [
            partition
            for partition, log in sorted(self._logs.items())
            if positions.get(partition, log[0].offset) <= log[-1].offset
        ]

    def _transaction(self, partitions: Sequence[Partition], fault: str) -> None:
        claims = claimed(self._process.ledger, partitions, self._firsts)
        records = self._read(claims)
        self._faults.plan(fault)
        if fault == _REBALANCE:
            self._applied_by_another(partitions)
        self.counts["transactions"] += 1
        try:
            self._process.commit(records, claims, self._faults)
        except _Crash:
            self._process = self._new_process()
        else:
            self._process.ledger.release(claims.values())
        if happened := self._faults.happened:
            self.counts[happened] += 1
            ranges = ", ".join(f"{p} from {claim.next_offset}" for p, claim in claims.items())
            self.history.append(f"{happened} ({ranges})")

    def _read(self, claims: Mapping[Partition, Claim]) -> list[RawRecord]:
        """Some of the next records of each partition, in a random order of partitions."""
        logs = []
        for partition, claim in sorted(claims.items()):  # sorted, so that the seed alone decides
            log = (record for record in self._logs[partition] if record.offset >= claim.next_offset)
            logs.append(list(islice(log, self._chance.randint(1, _MOST))))
        self._chance.shuffle(logs)
        return [record for log in logs for record in log]

    def _applied_by_another(self, partitions: Sequence[Partition]) -> None:
        """Let another worker claim one of the partitions, and apply some of its records."""
        other, faults = self._new_process(), _Faults(self._process.ledger)
        claims = claimed(other.ledger, [self._chance.choice(partitions)], self._firsts)
        self.counts["transactions"] += 1
        other.commit(self._read(claims), claims, faults)
        other.ledger.release(claims.values())
