"""Small transactions: what the ledger adds to a plain insert, at 1, 10 and 100 records a transaction.

python benchmarks/small.py [--quick]

Alternately in one process, on one core with the server's sessions:

- ``unit, Append`` and ``unit, handler``: the worker's unit of work (``Append``, and a handler that runs a statement per
  record), with the ledger's two statements and without. ``ledger_cost`` is the ratio with : without,
  ``to_plain_insert`` the ratio to the plain insert; medians over rounds.
- ``plain insert``: BEGIN, an INSERT per record, COMMIT by psycopg, each awaited.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import psycopg

from handlers import INSERT, appending, handling, text_per_row
from seekpoint import Pipeline
from setting import DSN, cpu
from stage import arguments
from subject import COLUMNS, fresh_table
from unit import RECORDS, Silent, Unit, in_turn, ratio

SIZES = (1, 10, 100)
ROWS = [tuple(getattr(record, name) for name in COLUMNS) for record in RECORDS[:100]]
UNITS: Mapping[str, Callable[..., Pipeline]] = {
    "unit, Append": appending,
    "unit, handler": partial(handling, handle=text_per_row),
}
PLAIN = "plain insert"


class PlainInsert:
    """Inserts ``size`` rows at each call, without the ledger."""

    def __init__(self, size: int, *, on: bool) -> None:
        self._driver = psycopg.connect(DSN, autocommit=True)  # BEGIN is a statement like the others
        self._driver.execute(f"SET synchronous_commit = {'on' if on else 'off'}")
        self._rows = ROWS[:size]

    def __call__(self) -> None:
        self._driver.execute("BEGIN")
        for row in self._rows:
            self._driver.execute(INSERT, row)
        self._driver.execute("COMMIT")

    def close(self) -> None:
        """End the connection."""
        self._driver.close()


def measure(size: int, on: bool, rounds: int, calls: int) -> None:
    """Print a row for each unit, and for the plain insert."""
    subjects: dict[str, Any] = {PLAIN: PlainInsert(size, on=on)}
    for name, make in UNITS.items():
        subjects |= {
            name: Unit(make, size, synchronous=on),
            f"{name} without": Unit(make, size, Silent, synchronous=on),
        }
    used = cpu()
    seconds = in_turn(subjects, rounds, calls, one_core=True)
    used = cpu() - used
    for name in (*UNITS, PLAIN):
        times = seconds[name]
        row = {
            "subject": "small",
            "mode": f"{name}, {size} a transaction, sync {'on' if on else 'off'}",
            "records": size * rounds * calls,
            "seconds": round(sum(times) * calls, 3),
            "records_per_second": round(size / statistics.median(times)),
            "cpu_seconds_together": round(used, 2),
        }
        if name in UNITS:
            row |= _figures(times, without=seconds[f"{name} without"], plain=seconds[PLAIN])
        print(json.dumps(row), flush=True)
    for subject in subjects.values():
        subject.close()


def _figures(times: Sequence[float], *, without: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    return {
        "with_p50_ms": round(1000 * statistics.median(times), 3),
        "without_p50_ms": round(1000 * statistics.median(without), 3),
        "to_plain_insert": round(ratio(times, plain), 3),
        "ledger_cost": round(ratio(times, without), 3),
    }


def main() -> None:
    """Measure all sizes, synchronous and not."""
    rounds, calls = (4, 5) if arguments(__doc__).parse_args().quick else (15, 12)
    fresh_table()
    for on in (True, False):
        for size in SIZES:
            measure(size, on, rounds, calls)


if __name__ == "__main__":
    main()
