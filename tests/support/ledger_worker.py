"""One worker's use of the ledger, without Kafka: claims, batches of numbered records, and checks of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, Table, Text, select, text

from seekpoint.ledger import Claim, Claimed, Expected, GroupLedger, Move
from seekpoint.ledger.tables import DEFAULT_SCHEMA, admin_action, in_schema, partition_state
from seekpoint.records import Partition
from support.waiting import until

CLUSTER = "cluster-1"


# The results: without a unique key, so that what was written twice is there twice.
applied = Table(
    "applied",
    MetaData(schema=DEFAULT_SCHEMA),
    Column("partition", Integer, nullable=False),
    Column("record", BigInteger, nullable=False),
    Column("by", Text),
)


@dataclass
class LedgerWorker:
    """A worker without Kafka. Records are numbers; to write one is to insert ``(partition, record, by)``."""

    ledger: GroupLedger
    topic: str = "t"
    topic_id: UUID = field(default_factory=uuid4)
    cluster_id: str = CLUSTER
    claims: dict[int, Claim] = field(default_factory=dict)

    def topic_partition(self, number: int) -> Partition:
        return Partition(self.topic, number)

    def claim(self, *numbers: int, start: Mapping[int, int] | None = None) -> Claimed:
        """Claim partitions and keep the granted claims; a new topic starts at ``start`` (by default at 0)."""
        first = {self.topic_partition(n): offset for n, offset in (start or dict.fromkeys(numbers, 0)).items()}
        claimed = self.ledger.claim(
            map(self.topic_partition, numbers),
            {self.topic: self.topic_id},
            cluster_id=self.cluster_id,
            start=lambda _: first,
        )
        self.claims |= {p.number: claim for p, claim in claimed.granted.items()}
        return claimed

    def expected(self, *numbers: int) -> list[Expected]:
        return [Expected(self.claims[n], self.claims[n].next_offset) for n in numbers]

    def hold(self, tx: Connection, *numbers: int) -> str:
        return self.ledger.hold(tx, self.expected(*(numbers or self.claims)))

    def write(self, tx: Connection, number: int, start: int, end: int) -> None:
        """Write the records' rows, inside the transaction."""
        rows = [{"partition": number, "record": r, "by": self.ledger.owner.hex} for r in range(start, end)]
        tx.execute(applied.insert(), rows, execution_options=in_schema(self.ledger.schema))

    def move(self, number: int, end: int, start: int | None = None) -> Move:
        claim = self.claims[number]
        return Move(claim, claim.next_offset if start is None else start, end, leader_epoch=7)

    def work(self, tx: Connection, ends: Mapping[int, int]) -> list[Claim]:
        """Hold all claims, write the records up to ``ends`` and advance, without COMMIT."""
        transaction = self.hold(tx)
        for n, end in ends.items():
            self.write(tx, n, self.claims[n].next_offset, end)
        return self.ledger.advance(tx, [self.move(n, end) for n, end in ends.items()], transaction)

    def accept(self, moved: list[Claim]) -> None:
        self.claims |= {claim.partition.number: claim for claim in moved}

    def commit(self, ends: Mapping[int, int]) -> None:
        """Write records up to ``ends`` in one transaction."""
        with self.ledger.engine.begin() as tx:
            moved = self.work(tx, ends)
        self.accept(moved)

    # -- what is there ------------------------------------------------------------------------------------

    def positions(self) -> dict[int, int]:
        """The committed positions."""
        return {p.partition.number: p.next_offset for p in self.ledger.read() if p.partition.topic == self.topic}

    def row(self, number: int = 0) -> Any:
        """The partition's row with all its columns."""
        o = partition_state.c
        query = partition_state.select().where(
            o.consumer_group == self.ledger.group, o.topic == self.topic, o.partition == number
        )
        with self.ledger.engine.connect() as tx:
            return tx.execute(query, execution_options=in_schema(self.ledger.schema)).one()

    def actions(self) -> list[Any]:
        """The rows of ``admin_action``, in their order."""
        query = admin_action.select().order_by(admin_action.c.id)
        with self.ledger.engine.connect() as tx:
            return list(tx.execute(query, execution_options=in_schema(self.ledger.schema)))

    def exactly(self, ends: Mapping[int, int]) -> None:
        """Assert these positions, and that each record before them has exactly one row."""
        with self.ledger.engine.connect() as tx:
            query = select(applied.c.partition, applied.c.record).order_by(applied.c.partition, applied.c.record)
            rows = tx.execute(query, execution_options=in_schema(self.ledger.schema))
            assert [tuple(row) for row in rows] == [(n, r) for n, end in sorted(ends.items()) for r in range(end)]
        assert self.positions() == dict(ends)


def make_table(engine: Engine, schema: str) -> None:
    """Create the table of results in the ledger's schema."""
    with engine.begin() as tx:
        applied.create(tx.execution_options(**in_schema(schema)))


def scalar(engine: Engine, query: str, **values: Any) -> Any:
    """One value, read in a separate transaction."""
    with engine.connect() as tx:
        return tx.execute(text(query), values).scalar_one()


def backend(tx: Connection) -> int:
    """The session's process id."""
    return int(tx.execute(text("SELECT pg_backend_pid()")).scalar_one())


def waits_for_lock(engine: Engine, like: str, column: str = "application_name") -> bool:
    """Whether a session whose ``column`` of ``pg_stat_activity`` is LIKE ``like`` waits for a lock."""
    query = f"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND {column} LIKE :like"
    return bool(scalar(engine, query, like=like))


def wait_until_blocked(engine: Engine, by: int) -> int:
    """Wait until a session waits for a lock of backend ``by``; returns its pid."""
    query = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE :by = ANY(pg_blocking_pids(pid))"
    return int(until(lambda: scalar(engine, query, by=by), f"a session that waits for {by}"))
