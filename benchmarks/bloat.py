"""How many dead rows a million commits leave in the ledger, and how many more an old snapshot elsewhere keeps.

python benchmarks/bloat.py [--commits N] [--held N] [--partitions N] [--moved N] [--quick]

Needs only Postgres, with autovacuum as by default. One connection commits transactions that contain only an advance.
Rows have sizes, dead rows, the share of updates that touched no index (HOT), and the cost of an advance at the start
and at the end. Then ``--held`` commits follow while a transaction elsewhere holds a snapshot open, so that row versions
it may see cannot be cleaned up, and as many after it has ended. ``synchronous_commit=off`` only shortens the wait for
the disk: rows are written and cleaned up in the same way. The positions at the end must count the commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from time import perf_counter
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy import Connection, create_engine, text

from seekpoint import schema
from seekpoint.ledger import Claim, GroupLedger, Move
from seekpoint.records import Partition
from stage import Stage, arguments, median_ms, say, servers

TOPIC, CLUSTER, TOPIC_ID = "orders", "benchmark", uuid4()
SIZES = """
    SELECT pg_relation_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes, s.n_tup_upd AS updates,
           s.n_tup_hot_upd AS hot, s.n_dead_tup AS dead_rows, s.autovacuum_count AS autovacuums
    FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid
    WHERE s.schemaname = :schema AND s.relname = 'partition_offset'"""
SAMPLES = 10

Sample = dict[str, Any]


class Churn:
    """Commits advances one after the other, in a separate schema."""

    def __init__(self, stage: Stage, name: str, partitions: int, moved: int) -> None:
        self.schema, self._moved = f"bloat_{stage.name}_{name}", moved
        self._engine = create_engine(stage.url, connect_args={"options": "-c synchronous_commit=off"})
        schema.upgrade(self._engine, schema=self.schema)
        self._ledger = GroupLedger(self._engine, "bench", schema=self.schema)
        wanted = [Partition(TOPIC, number) for number in range(partitions)]
        claimed = self._ledger.claim(
            wanted, {TOPIC: TOPIC_ID}, cluster_id=CLUSTER, start=lambda _: dict.fromkeys(wanted, 0)
        )
        self._held: dict[Partition, Claim] = dict(claimed.granted)
        self._turns = cycle(wanted)
        self.commits = 0

    def run(self, commits: int) -> list[Sample]:
        """Run ``commits`` commits; returns samples of the table, each with the cost of the last commits."""
        samples, size = [], max(1, commits // SAMPLES)
        with self._engine.connect() as connection:
            for _ in range(SAMPLES):
                seconds = [self._advance(connection) for _ in range(size)]
                with connection.begin():
                    samples.append(self._look(connection, seconds))
        return samples

    def _advance(self, connection: Connection) -> float:
        claims = [self._held[p] for p in islice(self._turns, self._moved)]
        began = perf_counter()
        with connection.begin():
            moved = self._ledger.advance(connection, [Move(c, c.next_offset, c.next_offset + 1) for c in claims])
        took = perf_counter() - began
        self._held |= {c.partition: c for c in moved}
        self.commits += 1
        return took

    def _look(self, tx: Connection, seconds: list[float]) -> Sample:
        tx.execute(text("SELECT pg_stat_force_next_flush()"))
        row = tx.execute(text(SIZES), {"schema": self.schema}).one()
        last = seconds[-1000:]
        return {"commits": self.commits, "advance_p50_ms": median_ms(last), **row._mapping}  # noqa: SLF001 -- its API

    def close(self) -> None:
        """Check that every commit is there; drop the schema."""
        total = sum(position.next_offset for position in self._ledger.read())
        assert total == self.commits * self._moved, f"{total} offsets passed, not {self.commits * self._moved}"
        with self._engine.begin() as tx:
            tx.execute(text(f"DROP SCHEMA {self.schema} CASCADE"))
        self._engine.dispose()


@contextmanager
def snapshot(stage: Stage) -> Iterator[None]:
    """A long transaction elsewhere: row versions that it may still see cannot be cleaned up."""
    with psycopg.connect(stage.dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        yield


def figures(name: str, sample: Sample) -> dict[str, Any]:
    """A sample's figures, with the sample's name as a prefix."""
    wanted = ("advance_p50_ms", "table_bytes", "index_bytes", "dead_rows")
    return {f"{name}_{key}": sample[key] for key in wanted}


def steady(stage: Stage, options: Any) -> None:
    """Measure commits without other load."""
    churn = Churn(stage, "steady", options.partitions, options.moved)
    first = churn.run(1000)
    began = perf_counter()
    samples = churn.run(options.commits - churn.commits)
    seconds = perf_counter() - began
    churn.close()
    report(
        f"{churn.commits:,} commits",
        churn,
        options,
        samples,
        seconds=round(seconds, 1),
        **figures("start", first[-1]),
        **figures("end", samples[-1]),
        most_table_bytes=max(s["table_bytes"] for s in samples),
    )


def report(mode: str, churn: Churn, options: Any, samples: list[Sample], **more: Any) -> None:
    """Print the row, with the table at the last of these samples."""
    last = samples[-1]
    say(
        "ledger bloat",
        mode,
        commits=churn.commits,
        partitions=options.partitions,
        moved=options.moved,
        synchronous_commit="off",
        **more,
        hot_share=round(last["hot"] / last["updates"], 4),
        autovacuums=last["autovacuums"],
        samples=[[s["commits"], s["table_bytes"], s["index_bytes"], s["advance_p50_ms"]] for s in samples],
    )


def held(stage: Stage, options: Any) -> None:
    """Measure commits while an old snapshot is open elsewhere, and after it has ended."""
    churn = Churn(stage, "held", options.partitions, options.moved)
    first = churn.run(max(1000, options.held // 10))
    with snapshot(stage):
        during = churn.run(options.held)
    after = churn.run(options.held)
    churn.close()
    report(
        f"a snapshot held elsewhere for {options.held:,} commits",
        churn,
        options,
        [*during, *after],
        **figures("before", first[-1]),
        **figures("held", during[-1]),
        **figures("after", after[-1]),
    )


def main() -> None:
    """Run both parts."""
    parser = arguments(__doc__)
    parser.add_argument("--commits", type=int, help="(1,000,000; quick: 20,000)")
    parser.add_argument("--held", type=int, help="commits under an old snapshot (50,000; quick: 3,000)")
    parser.add_argument("--partitions", type=int, default=6, help="rows of the ledger")
    parser.add_argument("--moved", type=int, default=1, help="rows that each commit advances, in turn")
    options = parser.parse_args()
    options.commits = options.commits or (20_000 if options.quick else 1_000_000)
    options.held = options.held or (3_000 if options.quick else 50_000)
    with servers(kafka=False) as stage:
        steady(stage, options)
        held(stage, options)


if __name__ == "__main__":
    main()
