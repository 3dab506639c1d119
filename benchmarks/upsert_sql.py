"""The ceiling of an upsert: ready rows by the sink's own statements, nothing consumed, nothing decoded.

python benchmarks/upsert_sql.py [--conflicts PERCENT]    PERCENT of the rows find a row of their key
python benchmarks/upsert_sql.py --study                  settings that help or cost: shuffled keys, all stored

Each transaction has BENCH_BATCH rows: COPY into the sink's temporary table, then its merge.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import create_engine

from floor import PIECE, ready_lines
from seekpoint import Upsert
from seekpoint.sinks.catalog import build, survey
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.upsert.upsert_sql import UpsertSql
from setting import BATCH, DSN, URL
from subject import COLUMNS, KIND, Clock, row
from upsert import fill

STUDIED = 300_000  # rows of each case of --study
ROUNDS = 3


def merge(ready: Sequence[bytes], options: str = "") -> Clock:
    """Write the transactions' rows; returns the clock, which still runs."""
    target = Upsert(KIND.name, key=["id"], columns=COLUMNS).target
    engine, clock = create_engine(URL), Clock()
    with engine.connect() as connection:
        if options:
            with connection.begin():
                connection.exec_driver_sql(options)
        clock.start()
        for rows in ready:
            with connection.begin():
                layout, stage = survey(connection, target)
                build(connection, target, stage)
                into = sql.SQL("COPY {} ({}) FROM STDIN").format(
                    sql.Identifier("pg_temp", stage.name), sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
                )
                with driver_of(connection).cursor() as cursor:
                    with cursor.copy(into) as copy:
                        for start in range(0, len(rows), PIECE):
                            copy.write(rows[start : start + PIECE])
                    cursor.execute(UpsertSql(target, layout).merge)
    engine.dispose()
    return clock


def transactions(lines: Sequence[bytes], batch: int) -> list[bytes]:
    """The rows of each transaction."""
    return [b"".join(lines[start : start + batch]) for start in range(0, len(lines), batch)]


@dataclass(frozen=True)
class Case:
    """One configuration of table, session and server."""

    name: str
    table: str = ""
    session: str = ""
    server: str = ""
    batch: int = BATCH


CASES = (
    Case("as it is"),
    Case("fillfactor=50", table="fillfactor = 50"),
    Case("50,000 rows a transaction", batch=50_000),
    Case("a checkpoint at each 64 MB of WAL", server="max_wal_size = '64MB'"),
    Case("wal_compression=pglz", session="SET wal_compression = pglz"),
)


def study() -> None:
    """Measure each case in each round; prints a JSON row for each."""
    lines = ready_lines()
    for n in range(ROUNDS):
        chosen = random.Random(n).sample(lines, min(STUDIED, len(lines)))
        base = 0.0
        for case in CASES:
            fill(100, large=False, options=case.table)
            with _on_server(case.server), psycopg.connect(DSN, autocommit=True) as connection:
                before = _wal(connection)
                clock = merge(transactions(chosen, case.batch), case.session)
                assert clock.began is not None
                seconds = monotonic() - clock.began
                written = _wal(connection) - before
            base = base or seconds
            figures: dict[str, Any] = {"to_as_it_is": round(base / seconds, 3), "round": n + 1}
            figures["wal_bytes_per_row"] = round(written / len(chosen))
            print(json.dumps(row("upsert sql", case.name, len(chosen), seconds, 0.0, **figures)), flush=True)


def _wal(connection: psycopg.Connection[Any]) -> int:
    position = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").fetchone()
    assert position is not None
    return int(position[0])


@contextmanager
def _on_server(setting: str) -> Iterator[None]:
    """Set this setting of the server within the block."""
    if not setting:
        yield
        return
    with psycopg.connect(DSN, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET {setting}".encode())
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute(f"ALTER SYSTEM RESET {setting.split(maxsplit=1)[0]}".encode())
            connection.execute("SELECT pg_reload_conf()")


def main() -> None:
    """One measurement, or the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conflicts", type=int, default=0, metavar="PERCENT")
    parser.add_argument("--study", action="store_true")
    options = parser.parse_args()
    if options.study:
        study()
        return
    ready = transactions(ready_lines(), BATCH)
    fill(options.conflicts, large=False)
    clock = merge(ready)
    clock.report("upsert sql", f"ready rows, {options.conflicts} % conflicts", conflicts_percent=options.conflicts)


if __name__ == "__main__":
    main()
