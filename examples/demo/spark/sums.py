"""Computes the sums again in plain Python, from the file, and compares them with the table row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, select

from demo.flights import Flight
from demo.spark.handling import sums


@dataclass(slots=True)
class Sums:
    """The columns of one row of the table after its key, in their order."""

    flights: int = 0
    miles: int = 0
    minutes_late: int = 0
    cancelled: int = 0
    first_departure: datetime | None = None
    longest_delay: int | None = None

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        self.flights += 1
        self.miles += flight.distance
        self.minutes_late += max(flight.arr_delay or 0, 0)
        self.cancelled += flight.arr_delay is None
        self.first_departure = min(self.first_departure or flight.time_hour, flight.time_hour)
        delays = [delay for delay in (self.longest_delay, flight.arr_delay) if delay is not None]
        self.longest_delay = max(delays, default=None)


def expected(flights: Iterable[Flight], airlines: Mapping[str, str]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The other columns of each row of the table, by airline and month."""
    rows: dict[tuple[Any, ...], Sums] = {}
    for flight in flights:
        if (airline := airlines.get(flight.carrier)) is not None:
            rows.setdefault((airline, flight.month), Sums()).add(flight)
    return {key: astuple(row) for key, row in rows.items()}


def differing(engine: Engine, flights: Iterable[Flight], airlines: Mapping[str, str]) -> tuple[int, int]:
    """How many rows the table has, and how many rows differ from the computed ones."""
    with engine.connect() as connection:
        rows = connection.execute(select(sums)).all()
    table = {(row.airline, row.month): tuple(row[2:]) for row in rows}
    wanted = expected(flights, airlines)
    return len(rows), sum(table.get(key) != wanted.get(key) for key in table.keys() | wanted.keys())
