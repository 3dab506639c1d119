"""Compares the table with the input, row by row, and reports the results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from rich.table import Table
from sqlalchemy import Engine, select, text

from demo.faults import FAULTS, KILLS, ZOMBIES, Outcome
from demo.flights import TABLE, Flight, table

# Every transaction that wrote rows has left its id in them.
_TRANSACTIONS = text(f"SELECT count(DISTINCT xmin::text) FROM {TABLE}")


@dataclass(slots=True)
class Comparison:
    """The comparison of input and table. A record whose row differs counts as lost, and its row as strange."""

    records_in: int = 0
    rows_out: int = 0
    lost: int = 0
    twice: int = 0
    strange: int = 0
    transactions: int = 0

    @property
    def problems(self) -> list[tuple[int, str]]:
        """The number of each kind of difference, and its message."""
        return [
            (self.lost, f"{self.lost:,} records are lost"),
            (self.twice, f"{self.twice:,} rows are there twice"),
            (self.strange, f"{self.strange:,} rows are not what was sent"),
        ]

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Input and table in numbers, for people."""
        return [
            ("records in", f"{self.records_in:,}"),
            ("rows out", f"{self.rows_out:,}"),
            ("lost", count(self.lost)),
            ("twice", count(self.twice)),
        ]


def compare(engine: Engine, flights: Iterable[Flight]) -> Comparison:
    """Compare the table with ``flights`` row by row, column by column."""
    comparison = Comparison()
    with engine.connect() as connection:
        result = connection.execution_options(yield_per=5_000).execute(select(table).order_by(table.c.id))
        count_differences(map(tuple, result), flights, comparison)
    with engine.connect() as connection:
        comparison.transactions = connection.execute(_TRANSACTIONS).scalar_one()
    return comparison


def count_differences(rows: Iterator[tuple[Any, ...]], flights: Iterable[Flight], comparison: Comparison) -> None:
    """Walk through rows and flights, both in the order of their ids, and count into ``comparison``."""
    for flight, copies, equal in matched(rows, flights):
        comparison.rows_out += copies
        comparison.strange += copies - equal
        if flight is not None:
            comparison.records_in += 1
            comparison.lost += equal == 0
            comparison.twice += max(0, equal - 1)


def matched(rows: Iterator[tuple[Any, ...]], flights: Iterable[Flight]) -> Iterator[tuple[Flight | None, int, int]]:
    """Each flight, the number of rows with its id, and how many of them equal it; None for a row without a flight.

    Both come in the order of their ids.
    """
    row = next(rows, None)
    for flight in flights:
        while row is not None and row[0] < flight.id:
            yield None, 1, 0
            row = next(rows, None)
        copies = equal = 0
        expected = msgspec.structs.astuple(flight)
        while row is not None and row[0] == flight.id:
            copies, equal = copies + 1, equal + (row == expected)
            row = next(rows, None)
        yield flight, copies, equal
    while row is not None:
        yield None, 1, 0
        row = next(rows, None)


@dataclass(frozen=True, slots=True)
class Report:
    """The demo's results."""

    comparison: Comparison
    outcome: Outcome
    seconds: float
    broker: str
    postgres: str
    exit_codes: tuple[int, ...] = ()

    @property
    def problems(self) -> list[str]:
        """Why the demo has failed: a row that differs, or a fault that did not happen; empty if it has not."""
        o = self.outcome
        checks = [
            *self.comparison.problems,
            (o.kills < len(KILLS), f"{o.kills} of {len(KILLS)} kills happened"),
            (o.kills_in_transaction < o.kills, "a worker was killed outside a transaction"),
            (o.fenced < ZOMBIES, f"{o.fenced} of {ZOMBIES} zombies were fenced"),
            (any(self.exit_codes), f"the workers did not drain: exit codes {self.exit_codes}"),
        ]
        return [problem for is_wrong, problem in checks if is_wrong]

    def as_json(self) -> str:
        """The report for machines."""
        counted = asdict(self.comparison) | asdict(self.outcome)
        return json.dumps(
            {
                **{name: number for name, number in counted.items() if name not in {"strange", "story"}},
                "seconds": round(self.seconds, 2),
                "records_per_second": round(self.comparison.records_in / self.seconds),
                "broker": self.broker,
                "postgres": self.postgres,
            },
            indent=2,
        )

    def as_table(self) -> Table:
        """The report for people."""
        c, o = self.comparison, self.outcome
        lines = [
            *c.lines,
            ("transactions", f"{c.transactions:,}"),
            ("kills", f"{o.kills} with SIGKILL, {o.kills_in_transaction} of them inside an open transaction"),
            ("zombies", f"{ZOMBIES} frozen past their session and continued, {o.fenced} fenced"),
            ("records/s", f"{c.records_in / self.seconds:,.0f} over {self.seconds:.1f} s, {FAULTS} faults included"),
            ("broker", self.broker),
            ("database", self.postgres),
        ]
        return named_lines(lines)


def named_lines(lines: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values."""
    shown = Table("", "", show_header=False, box=None, padding=(0, 2, 0, 0))
    shown.columns[0].style = "bold"
    for line in lines:
        shown.add_row(*line)
    return shown


def count(number: int) -> str:
    """A number of errors: green if it is 0."""
    return f"[{'bold red' if number else 'green'}]{number:,}[/]"
