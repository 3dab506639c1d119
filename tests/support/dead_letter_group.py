"""A group that fails on chosen records, its dead letters, and their replays.

Give it to a test by a fixture::

    @pytest.fixture
    def dead_letter_group(seekpoint_engine: Engine, seekpoint_schema: str) -> DeadLetterGroup:
        return DeadLetterGroup(seekpoint_engine, seekpoint_schema)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    insert,
    select,
    text,
)
from sqlalchemy.schema import CreateTable

from seekpoint import Batch, Bytes, Pipeline, Record
from seekpoint.admin import Admin, ReplayableDeadLetters, Where
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.dead_letters import DeadLetter
from seekpoint.pipeline.policy import Limits, Retry
from seekpoint.records import RawRecord, State
from seekpoint.testing import Processed, process
from support.sink_tables import TOPIC, orders

EVERY = Where(states=tuple(State))


class Halt:
    """Halts a handler inside its transaction; ``pid`` is its session's process id."""

    def __init__(self) -> None:
        self.pid = 0
        self._reached, self._open = threading.Event(), threading.Event()

    def __call__(self, tx: Connection, record: object) -> None:
        if not self._reached.is_set():
            self.pid = int(tx.execute(text("SELECT pg_backend_pid()")).scalar_one())
            self._reached.set()
            assert self._open.wait(30), "the handler was not released"

    def wait(self) -> None:
        """Wait until the handler has halted."""
        assert self._reached.wait(30), "the handler was not reached"

    def open(self) -> None:
        """Let the handler continue."""
        self._open.set()


class DeadLetterGroup:
    """A group whose handler fails on the values in ``bad``; ``on_record`` is called with each record that it wrote.

    The table has no unique key: a record that is applied twice has two rows, in the order of writing.
    """

    def __init__(self, engine: Engine, schema: str, group: str = "g", topic: str = TOPIC) -> None:
        self.engine, self.schema, self.group, self.topic = engine, schema, group, topic
        self.bad: set[bytes] = set()
        self.batches: list[Batch[Any, Any]] = []
        self.on_record: Callable[[Connection, Record[Any, Any]], object] = lambda tx, record: None
        self.table = Table(
            "applied",
            MetaData(schema=schema),
            Column("n", BigInteger, Identity(always=True)),
            Column("partition", Integer),
            Column("record", BigInteger),
            Column("key", LargeBinary),
            Column("value", LargeBinary),
            Column("zone", Text),
        )

    def create(self) -> Self:
        """Create the table."""
        with self.engine.begin() as tx:
            tx.execute(CreateTable(self.table))
        return self

    def handle(self, tx: Connection, batch: Batch[Any, Any]) -> None:
        """Write records; raises ValueError for bad ones."""
        self.batches.append(batch)
        for r in batch:
            if r.value in self.bad:
                raise ValueError(f"{r.value[:20]!r} is not to be taken")
            tx.execute(
                insert(self.table).values(
                    partition=r.partition,
                    record=r.offset,
                    key=r.key,
                    value=r.value,
                    zone=text("current_setting('TimeZone')"),
                )
            )
            self.on_record(tx, r)

    def pipeline(self, **options: Any) -> Pipeline:
        """A pipeline that dead-letters a record at its first failure."""
        arguments = {"value": Bytes(), "handle": self.handle, "on_poison": "dead_letter", "retry": Retry(attempts=1)}
        return Pipeline(self.group, topics=self.topic, **{**arguments, **options})

    def process(self, records: Iterable[RawRecord], **options: Any) -> Processed:
        """Apply records as a worker does."""
        return process(self.pipeline(**options), self.engine, records, schema=self.schema, collect=True)

    def park(self, *records: RawRecord, **options: Any) -> list[DeadLetter]:
        """Apply records, some of which are bad; returns the open dead letters."""
        self.process(records, **options)
        return self.open()

    def dead_lettered(self, *values: bytes, **options: Any) -> DeadLetter:
        """Apply records with these values; ``b"b"`` fails this time. Returns its dead letter."""
        self.bad = {b"b"}
        (dead_letter,) = self.park(*orders(*values), **options)
        self.bad.clear()
        return dead_letter

    def new_replay(
        self, actor: str = "ada", *, engine: Any = None, transaction_age: float = 20.0, **options: Any
    ) -> ReplayableDeadLetters:
        """A replay by ``actor``."""
        limits = Limits(transaction_age=transaction_age)
        pipeline = self.pipeline(**options)
        admin = Admin(engine or self.engine, schema=self.schema, limits=limits)
        return admin.dead_letters(pipeline, actor=actor)

    # -- what is there ------------------------------------------------------------------------------------

    @property
    def ledger(self) -> GroupLedger:
        return GroupLedger(self.engine, self.group, schema=self.schema)

    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, in every state."""
        return list(self.new_replay().list(EVERY))

    def open(self) -> list[DeadLetter]:
        """The open dead letters."""
        return list(self.new_replay().list())

    def states(self, partition: int = 0) -> dict[int, str]:
        """The state of each dead letter of a partition, by its offset."""
        return {
            dead_letter.offset: dead_letter.state.value
            for dead_letter in self.dead_letters()
            if dead_letter.partition == partition
        }

    def applied(self, partition: int = 0) -> list[int]:
        """The applied offsets of a partition, in the order of writing."""
        c = self.table.c
        with self.engine.connect() as tx:
            return list(tx.execute(select(c.record).where(c.partition == partition).order_by(c.n)).scalars())

    def of_key(self, key: bytes) -> list[tuple[int, int]]:
        """Partition and offset of a key's applied records, in the order of writing."""
        c = self.table.c
        with self.engine.connect() as tx:
            return [tuple(row) for row in tx.execute(select(c.partition, c.record).where(c.key == key).order_by(c.n))]

    def actions(self) -> list[tuple[str, int | None, str, str]]:
        """The rows of ``admin_action``: action, offset, actor, reason."""
        with self.engine.connect() as tx:
            rows = tx.execute(
                text(f'SELECT action, from_offset, actor, reason FROM "{self.schema}".admin_action ORDER BY id')
            )
            return [tuple(row) for row in rows]
