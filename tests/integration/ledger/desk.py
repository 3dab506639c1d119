"""One worker's side of the protocol, without Kafka: claims, batches of numbered records, and what became of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine, text

from seekpoint.ledger import Claim, Claimed, Expected, Ledger, Move
from seekpoint.records import Partition
from seekpoint.tables import in_schema, partition_offset

SECONDS = 20.0
CLUSTER = "cluster-1"


@dataclass
class Desk:
    """A worker at its desk. Records are numbers; writing one is a row ``(partition, record, by)`` in ``applied``."""

    ledger: Ledger
    topic: str = "t"
    topic_id: UUID = field(default_factory=uuid4)
    cluster_id: str = CLUSTER
    claims: dict[int, Claim] = field(default_factory=dict)

    def at(self, number: int) -> Partition:
        return Partition(self.topic, number)

    def claim(self, *numbers: int, start: Mapping[int, int] | None = None) -> Claimed:
        """Claim partitions and keep what was granted; a new topic starts at ``start`` (by default at 0)."""
        first = {self.at(n): offset for n, offset in (start or dict.fromkeys(numbers, 0)).items()}
        claimed = self.ledger.claim(
            map(self.at, numbers), {self.topic: self.topic_id}, cluster_id=self.cluster_id, start=lambda _: first
        )
        self.claims |= {p.number: claim for p, claim in claimed.granted.items()}
        return claimed

    def expected(self, *numbers: int) -> list[Expected]:
        return [Expected(self.claims[n], self.claims[n].next_offset) for n in numbers]

    def hold(self, tx: Connection, *numbers: int) -> str:
        return self.ledger.hold(tx, self.expected(*(numbers or self.claims)))

    def write(self, tx: Connection, number: int, start: int, end: int) -> None:
        """The records' rows, inside the transaction."""
        tx.execute(
            text(f"INSERT INTO {_applied(self.ledger)} SELECT :n, r, :by FROM generate_series(:a, CAST(:b AS int)) r"),
            {"n": number, "by": self.ledger.owner.hex, "a": start, "b": end - 1},
        )

    def move(self, number: int, end: int, start: int | None = None) -> Move:
        claim = self.claims[number]
        return Move(claim, claim.next_offset if start is None else start, end, leader_epoch=7)

    def work(self, tx: Connection, ends: Mapping[int, int]) -> list[Claim]:
        """Hold all that is claimed, write the records up to ``ends``, advance; all but COMMIT."""
        transaction = self.hold(tx)
        for n, end in ends.items():
            self.write(tx, n, self.claims[n].next_offset, end)
        return self.ledger.advance(tx, [self.move(n, end) for n, end in ends.items()], transaction)

    def accept(self, moved: list[Claim]) -> None:
        self.claims |= {claim.partition.number: claim for claim in moved}

    def commit(self, ends: Mapping[int, int]) -> None:
        """One whole transaction."""
        with self.ledger.engine.begin() as tx:
            moved = self.work(tx, ends)
        self.accept(moved)

    # -- what is there ------------------------------------------------------------------------------------

    def stands(self) -> dict[int, int]:
        """The committed positions."""
        return {p.partition.number: p.next_offset for p in self.ledger.read() if p.partition.topic == self.topic}

    def row(self, number: int = 0) -> Any:
        """The whole row, also what no method shows."""
        o = partition_offset.c
        query = partition_offset.select().where(
            o.consumer_group == self.ledger.group, o.topic == self.topic, o.partition == number
        )
        with self.ledger.engine.connect() as tx:
            return tx.execute(query, execution_options=in_schema(self.ledger.schema)).one()

    def exactly(self, ends: Mapping[int, int]) -> None:
        """Each partition stands there, and each record before it was written once: none lost, none twice."""
        with self.ledger.engine.connect() as tx:
            rows = tx.execute(text(f"SELECT partition, record FROM {_applied(self.ledger)} ORDER BY 1, 2"))
            assert [tuple(row) for row in rows] == [(n, r) for n, end in sorted(ends.items()) for r in range(end)]
        assert self.stands() == dict(ends)


def make_table(engine: Engine, schema: str) -> None:
    """The table of results: without a unique key, so that what was written twice is there twice."""
    with engine.begin() as tx:
        name = tx.dialect.identifier_preparer.quote(schema)
        tx.exec_driver_sql(f"CREATE TABLE {name}.applied (partition int, record bigint, by text)")


def _applied(ledger: Ledger) -> str:
    return f"{ledger.engine.dialect.identifier_preparer.quote(ledger.schema)}.applied".replace(":", r"\:")


def scalar(engine: Engine, query: str, **values: Any) -> Any:
    """One value, read in a transaction of its own."""
    with engine.connect() as tx:
        return tx.execute(text(query), values).scalar_one()


def backend(tx: Connection) -> int:
    """The process at the server's end."""
    return int(tx.execute(text("SELECT pg_backend_pid()")).scalar_one())


def until(condition: Callable[[], Any], what: str, timeout: float = SECONDS) -> Any:
    """Wait for what nobody tells; returns what the condition answered."""
    pause, deadline = threading.Event(), monotonic() + timeout
    while not (answer := condition()):
        assert monotonic() < deadline, f"not within {timeout} s: {what}"
        pause.wait(0.01)
    return answer


def wait_until_blocked(engine: Engine, by: int) -> int:
    """Until somebody waits for a lock of this backend; returns who."""
    query = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE :by = ANY(pg_blocking_pids(pid))"
    return int(until(lambda: scalar(engine, query, by=by), f"a session that waits for {by}"))
