"""Small transactions: what the ledger adds to a plain insert, at 1, 10 and 100 records a transaction.

python benchmarks/small.py [--quick]

Three pairs, alternately in one process, which differ only in hold and advance:

- ``unit``: the worker's unit of work (``Append``, and a handler that runs a statement per record), against itself
  without the two statements. Three round trips each: BEGIN with hold, the rows with advance, COMMIT.
- ``plain``: the bare statements by psycopg, each awaited: BEGIN, hold, INSERT, advance, COMMIT against BEGIN, INSERT,
  COMMIT.
- ``one trip``: the same statements, all of them in one round trip.

Client and server alternate on one core. ``ledger_cost`` is the ratio with : without, the median over rounds.
"""

from __future__ import annotations

import json
import secrets
import statistics
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy import Connection, Engine, create_engine, text

from seekpoint import Append, Batch, Json, Ledger, Pipeline
from seekpoint.ledger import Expected, Move
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.records import Partition
from setting import DSN, URL, cpu
from stage import arguments
from subject import COLUMNS, KIND, fresh_table
from unit import RECORDS, Silent, Unit, in_turn, ratio

SIZES = (1, 10, 100)
INSERT = f"INSERT INTO {KIND.name} ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"
ROWS = [tuple(getattr(record, name) for name in COLUMNS) for record in RECORDS[:100]]
NAMED = text(f"INSERT INTO {KIND.name} ({', '.join(COLUMNS)}) VALUES ({', '.join(f':{name}' for name in COLUMNS)})")


def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
    """Run a statement per record."""
    for record in batch:
        tx.execute(NAMED, {name: getattr(record.value, name) for name in COLUMNS})


def appending(group: str, *, on: bool) -> Pipeline:
    """Topic to table."""
    return Pipeline(group, topics=KIND.name, value=Json(KIND.record), sinks=[Append(KIND.name)], synchronous_commit=on)


def handling(group: str, *, on: bool) -> Pipeline:
    """Topic to table, by a handler."""
    return Pipeline(group, topics=KIND.name, value=Json(KIND.record), handle=handle, synchronous_commit=on)


class _Driver(HandlerConnection):
    """The part of a worker's connection that the ledger's two statements need; ``awaits`` each, or only sends it."""

    def __init__(self, driver: psycopg.Connection[Any], engine: Engine, *, awaits: bool) -> None:  # without a session
        self._sends, self.dialect, self._awaits = driver, engine.dialect, awaits

    @property
    def connection(self) -> Any:
        return SimpleNamespace(driver_connection=None)  # its AUTOCOMMIT would be checked, but here BEGIN is a statement

    def fast_path(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        cursor = self._sends.execute(statement, parameters)
        return cursor.fetchone() if self._awaits else ("", "")


class Bare:
    """The statements themselves, by psycopg, with the ledger's two or without."""

    def __init__(self, size: int, *, on: bool, ledger: bool, one_trip: bool) -> None:
        engine = create_engine(URL)
        self._driver = psycopg.connect(DSN, autocommit=True)  # BEGIN is a statement like the others
        self._driver.execute(f"SET synchronous_commit = {'on' if on else 'off'}")
        self._ledger = Ledger(engine, f"bare-{secrets.token_hex(4)}", synchronous_commit=on) if ledger else None
        self._tx: Any = _Driver(self._driver, engine, awaits=not one_trip)
        self._rows, self._one_trip = ROWS[:size], one_trip
        partition = Partition(KIND.name, 0)
        if self._ledger is not None:
            claimed = self._ledger.claim(
                [partition], {KIND.name: uuid4()}, cluster_id="benchmark", start=lambda _: {partition: 0}
            )
            self._claim = claimed.granted[partition]

    def __call__(self) -> None:
        driver, ledger = self._driver, self._ledger
        with driver.pipeline() if self._one_trip else nullcontext():
            driver.execute("BEGIN")
            if ledger is not None:
                start = self._claim.next_offset
                transaction = ledger.hold(self._tx, [Expected(self._claim, start)])
            for row in self._rows:
                driver.execute(INSERT, row)
            if ledger is not None:
                move = Move(self._claim, start, start + len(self._rows))
                (self._claim,) = ledger.advance(self._tx, [move], transaction or None)
            driver.execute("COMMIT")

    def close(self) -> None:
        """End the connection."""
        self._driver.close()


def pairs(size: int, on: bool) -> dict[str, tuple[Any, Any]]:
    """Each subject with the ledger's statements, and without."""
    append, handler, bare = partial(appending, on=on), partial(handling, on=on), partial(Bare, size, on=on)
    return {
        "unit, Append": (Unit(append, size), Unit(append, size, Silent)),
        "unit, handler": (Unit(handler, size), Unit(handler, size, Silent)),
        "plain": (bare(ledger=True, one_trip=False), bare(ledger=False, one_trip=False)),
        "one trip": (bare(ledger=True, one_trip=True), bare(ledger=False, one_trip=True)),
    }


def measure(size: int, on: bool, rounds: int, calls: int) -> None:
    """Print a row for each pair."""
    pairs_by_name = pairs(size, on)
    subjects: dict[str, Callable[[], Any]] = {}
    for name, (with_it, without) in pairs_by_name.items():
        subjects |= {f"{name} with": with_it, f"{name} without": without}
    used = cpu()
    seconds = in_turn(subjects, rounds, calls, one_core=True)
    used = cpu() - used
    for name, pair in pairs_by_name.items():
        with_it, without = seconds[f"{name} with"], seconds[f"{name} without"]
        row = {
            "subject": "small",
            "mode": f"{name}, {size} a transaction, sync {'on' if on else 'off'}",
            "records": size * rounds * calls,
            "seconds": round(sum(with_it) * calls, 3),
            "records_per_second": round(size / statistics.median(with_it)),
            "cpu_seconds_together": round(used, 2),
            "with_p50_ms": round(1000 * statistics.median(with_it), 3),
            "without_p50_ms": round(1000 * statistics.median(without), 3),
            "to_plain_insert": round(ratio(with_it, seconds["plain without"]), 3),
            "ledger_cost": round(ratio(with_it, without), 3),
        }
        print(json.dumps(row), flush=True)
        for call in pair:
            call.close()


def main() -> None:
    """Measure all sizes, synchronous and not."""
    rounds, calls = (4, 5) if arguments(__doc__).parse_args().quick else (15, 12)
    fresh_table()
    for on in (True, False):
        for size in SIZES:
            measure(size, on, rounds, calls)


if __name__ == "__main__":
    main()
