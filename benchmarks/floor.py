"""The floor: ready-made rows by COPY, nothing consumed, nothing decoded, 10,000 a transaction."""

from __future__ import annotations

from itertools import islice

import psycopg

from setting import COLUMNS, DSN, RECORDS, Clock, flights, fresh_table

TRANSACTION = 10_000
PIECE = 65_536  # bytes handed to the driver at once


def chunks() -> list[bytes]:
    """The rows in COPY's text format: no value here has a tab, a newline or a backslash."""
    every = flights()
    made = []
    while part := list(islice(every, TRANSACTION)):
        lines = ("\t".join(r"\N" if (v := getattr(f, c)) is None else str(v) for c in COLUMNS) for f in part)
        made.append(("\n".join(lines) + "\n").encode())
    return made


def main() -> None:
    """Write them all."""
    ready = chunks()
    fresh_table()
    clock = Clock()
    with psycopg.connect(DSN) as connection:
        clock.start()
        for chunk in ready:
            with connection.cursor() as cursor, cursor.copy(f"COPY flights ({', '.join(COLUMNS)}) FROM STDIN") as copy:
                for at in range(0, len(chunk), PIECE):
                    copy.write(chunk[at : at + PIECE])
            connection.commit()
    clock.report("floor", "COPY text, ready rows", RECORDS)


main()
