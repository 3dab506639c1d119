"""What a row costs on its way through a reload, step by step: microseconds of processor time and of waiting.

python benchmarks/costs.py

One process, one partition after the other: ``client`` is this process, ``server`` its session's process in Postgres.
``docs/internals/scale.md`` calculates with these figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
from sqlalchemy import Connection, Engine, text

import rebuild
from peers import kinds
from rebuild import KAFKA
from seekpoint import Append
from seekpoint.kafka.ranges import Piece, Range, read_range, topic_ids
from seekpoint.pipeline.sink import Row
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Partition
from setting import BROKERS, RECORDS, cpu
from stage import say
from subject import COLUMNS, KIND

STAGED, BUILT = "staged_rows", "built_rows"


class Meter:
    """Measures each step in microseconds per row, and prints a line for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._server = psutil.Process(connection.scalar(text("SELECT pg_backend_pid()")))

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Time what the block does to all records."""
        wal, used, server, began = self._wal(), cpu(), self._server_cpu(), time.perf_counter()
        yield
        seconds, mine, theirs = time.perf_counter() - began, cpu() - used, self._server_cpu() - server
        say(
            "costs",
            step,
            records=RECORDS,
            client_us=round(mine / RECORDS * 1e6, 3),
            server_us=round(theirs / RECORDS * 1e6, 3),
            elapsed_us=round(seconds / RECORDS * 1e6, 3),
            wal_bytes=round((self._wal() - wal) / RECORDS, 1),
        )

    def _wal(self) -> int:
        return int(self._connection.scalar(text("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")) or 0)

    def _server_cpu(self) -> float:
        used = self._server.cpu_times()
        return float(used.user + used.system)


def ranges() -> list[Range]:
    """A range for each partition."""
    topic_id = topic_ids(KAFKA, [KIND.name])[KIND.name]
    assert topic_id is not None
    return [Range(Partition(KIND.name, number), topic_id, 0, end) for number, end in kinds.ends(KIND, BROKERS).items()]


def consume() -> Iterator[Piece]:
    """Read all records, as the tasks do."""
    return (piece for range_ in ranges() for piece in read_range(KAFKA, range_))


def rows_of(pieces: Sequence[Piece]) -> list[list[Row]]:
    """The rows that codec and sink make of the values, piece by piece, as in a task."""
    writers, batches = PipelineWriters(rebuild.pipeline()), []
    for piece in pieces:
        rows = writers.sinks[0].chunk_rows(writers.values(piece.records), None, piece.records)
        assert rows is not None
        batches.append(rows)
    return batches


def statements(connection: Connection, meter: Meter) -> None:
    """Measure the steps of a reload that run only in the database."""
    run = connection.exec_driver_sql
    columns = ", ".join(COLUMNS)
    run("SET max_parallel_workers_per_gather = 0")
    run("SET max_parallel_maintenance_workers = 0")
    run(f"CREATE TABLE {BUILT} (LIKE {STAGED})")
    with meter("consolidate: INSERT .. SELECT"):
        run(f"INSERT INTO {BUILT} ({columns}) SELECT {columns} FROM {STAGED}")
    with meter("primary key, afterwards"):
        run(f"ALTER TABLE {BUILT} ADD PRIMARY KEY (id)")
    with meter("ANALYZE"):
        run(f"ANALYZE {BUILT}")
    run(f"ALTER TABLE {STAGED} ADD PRIMARY KEY (id)")
    run(f"ANALYZE {STAGED}")
    left, right = (", ".join(f"{side}.{column}" for column in COLUMNS) for side in ("a", "b"))
    with meter("compare: full join"):
        differences = run(
            f"SELECT count(*) FROM {STAGED} a FULL JOIN {BUILT} b USING (id) WHERE ROW({left}) IS DISTINCT FROM"
            f" ROW({right})"
        ).scalar()
    assert differences == 0


def main(engine: Engine) -> None:
    """Measure every step, in the order in which a row passes them."""
    rebuild.apply_all(engine, KIND)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {STAGED}, {BUILT}")
        connection.exec_driver_sql(KIND.create(STAGED).decode())
        meter = Meter(connection)
        with meter("consume"):
            assert sum(map(len, consume())) == RECORDS
        pieces = list(consume())  # read again: to keep them above would measure the garbage collector, too
        with meter("decode and rows"):
            chunks = rows_of(pieces)
        del pieces
        connection.exec_driver_sql("CHECKPOINT")
        with meter("COPY, no index"), Append(STAGED, columns=COLUMNS).writer().open(connection) as writer:
            for chunk in chunks:
                writer.write(chunk)
        statements(connection, meter)
        connection.exec_driver_sql(f"DROP TABLE {STAGED}, {BUILT}")


if __name__ == "__main__":
    with rebuild.ledger() as its_engine:
        main(its_engine)
