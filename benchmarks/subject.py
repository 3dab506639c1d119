"""Shared by the subjects: their table, the clock and the one JSON row."""

from __future__ import annotations

import json
from time import monotonic
from typing import Any

import psycopg

from peers import kinds
from peers.kinds import KINDS
from setting import BATCH, DSN, KEYED, LIMIT, RECORDS, TABLE, cpu

KIND = KINDS[TABLE]
COLUMNS = tuple(KIND.columns)
COPY = f"COPY {KIND.name} ({', '.join(COLUMNS)}) FROM STDIN".encode()


def fresh_table(*, key: bool = KEYED) -> None:
    """Create an empty table on a quiet server."""
    kinds.fresh(KIND, DSN, key=key)


def check(subject: str, rows: int, *, stored: int = 0) -> None:
    """Raise AssertionError unless the table has ``rows`` more rows than ``stored``, each equal to its record."""
    with psycopg.connect(DSN) as connection:
        counts = connection.execute(f"SELECT count(*) FROM {KIND.name}".encode()).fetchone()
    assert counts is not None
    assert counts[0] == stored + rows, f"{subject}: the table has {counts[0]} rows, not {stored + rows}"
    kinds.verify(KIND, DSN, RECORDS, part=stored > 0 or rows < RECORDS)


def row(subject: str, mode: str, records: int, seconds: float, cpu_seconds: float, **more: Any) -> dict[str, Any]:
    """The one JSON row."""
    return {
        "subject": subject,
        "mode": mode,
        "table": KIND.name,
        "key": KEYED,
        "batch": BATCH,
        "records": records,
        "seconds": round(seconds, 6),
        "records_per_second": round(records / seconds),
        "cpu_seconds": round(cpu_seconds, 2),
        **more,
    }


class Clock:
    """For subjects of one process: starts with the first record, stops with the last commit."""

    def __init__(self) -> None:
        self.began: float | None = None
        self._cpu = 0.0

    def start(self) -> None:
        """Start, if it has not been started."""
        if self.began is None:
            self.began, self._cpu = monotonic(), cpu()

    def report(self, subject: str, mode: str, records: int = LIMIT, **more: Any) -> None:
        """Stop; check the table, print the row."""
        assert self.began is not None
        seconds, used = monotonic() - self.began, cpu() - self._cpu
        check(subject, records)
        print(json.dumps(row(subject, mode, records, seconds, used, **more)), flush=True)
