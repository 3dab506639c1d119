"""The floor: ready-made rows by COPY, nothing consumed, nothing decoded, BENCH_BATCH rows a transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psycopg

from setting import BATCH, DSN, LIMIT, RECORDS
from subject import COLUMNS, COPY, KIND, Clock, fresh_table

PIECE = 65_536  # bytes given to the driver at once


def lines() -> Iterator[bytes]:
    """The rows in COPY's text format: no value here has a tab, a newline or a backslash."""
    for record in KIND.make(RECORDS):
        values = (getattr(record, column) for column in COLUMNS)
        yield ("\t".join(r"\N" if value is None else str(value) for value in values) + "\n").encode()


def ready_lines() -> list[bytes]:
    """The lines, made once for all runs that share BENCH_FOLDER."""
    if (folder := os.environ.get("BENCH_FOLDER")) is None:
        return list(islice(lines(), LIMIT))
    kept = Path(folder) / f"{KIND.name}.{RECORDS}.copy"
    if not kept.exists():
        kept.write_bytes(b"".join(lines()))
    with kept.open("rb") as file:
        return list(islice(file, LIMIT))


def main() -> None:
    """Write them all."""
    rows = ready_lines()
    ready = [b"".join(rows[start : start + BATCH]) for start in range(0, len(rows), BATCH)]
    del rows
    fresh_table()
    clock = Clock()
    with psycopg.connect(DSN) as connection:
        clock.start()
        for chunk in ready:
            with connection.cursor() as cursor, cursor.copy(COPY) as copy:
                for start in range(0, len(chunk), PIECE):
                    copy.write(chunk[start : start + PIECE])
            connection.commit()
    clock.report("floor", "COPY text, ready rows", transactions=len(ready))


if __name__ == "__main__":
    main()
