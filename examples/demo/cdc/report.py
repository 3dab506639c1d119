"""Compares source and copy, row by row, and reports the results."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rich.table import Table
from sqlalchemy import Engine, text

from demo.cdc.changes import LAST
from demo.cdc.tables import COLUMNS
from demo.report import count, named_lines

KILLS, CONNECT_KILLS = 4, 2  # of workers, each inside a transaction; of Connect, after each second one

_ARRIVED = text("SELECT count(*) FROM copied.customers WHERE id < 0")
_COUNTS = text(
    f"""
    SELECT (SELECT count(*) FROM shop.customers) AS rows,
           (SELECT count(*) FROM (SELECT {COLUMNS} FROM shop.customers EXCEPT SELECT {COLUMNS} FROM copied.customers) m)
           AS missing,
           (SELECT count(*) FROM (SELECT {COLUMNS} FROM copied.customers EXCEPT SELECT {COLUMNS} FROM shop.customers) m)
           AS strange,
           (SELECT count(*) FROM seekpoint.dead_letter) AS dead_letters,
           (SELECT count(*) FROM seekpoint.dead_letter WHERE error NOT LIKE '%the table has no row of this key%') AS odd
    """
)


def has_arrived(engine: Engine) -> bool:
    """Whether the copy has every last row."""
    with engine.connect() as connection:
        arrived: int = connection.execute(_ARRIVED).scalar_one()
    return arrived == LAST


@dataclass(frozen=True, slots=True)
class Report:
    """The demo's results. ``events`` are all records, those that Debezium has sent again included.

    ``dead_letters`` are updates in part that came again after their row was deleted, except the ``odd`` ones.
    """

    rows: int
    missing: int
    strange: int
    dead_letters: int
    odd: int
    statements: int
    events: int
    kills: int
    connect_kills: int
    seconds: float
    servers: str

    @property
    def problems(self) -> list[str]:
        """Why the demo has failed; empty if it has not."""
        checks = [
            (self.missing, f"{self.missing:,} rows of the source are not in the copy as they are"),
            (self.strange, f"{self.strange:,} rows of the copy are not in the source as they are"),
            (self.odd, f"{self.odd:,} dead letters are not of a deleted row"),
            (self.kills < KILLS, f"{self.kills} of {KILLS} kills happened inside a transaction"),
            (self.connect_kills < CONNECT_KILLS, f"{self.connect_kills} of {CONNECT_KILLS} kills of Connect happened"),
        ]
        return [problem for is_wrong, problem in checks if is_wrong]

    def as_json(self) -> str:
        """The report for machines."""
        return json.dumps(asdict(self) | {"seconds": round(self.seconds, 2)}, indent=2)

    def as_table(self) -> Table:
        """The report for people."""
        return named_lines(
            [
                ("rows", f"{self.rows:,}, after {self.statements:,} statements"),
                ("not copied", count(self.missing)),
                ("not the source's", count(self.strange)),
                ("dead letters", f"{self.dead_letters:,}, of updates that came again after their row was deleted"),
                ("change events", f"{self.events:,}, those that were sent again included"),
                ("kills", f"{self.kills} of workers in an open transaction, {self.connect_kills} of Kafka Connect"),
                ("seconds", f"{self.seconds:.1f}"),
                ("servers", self.servers),
            ]
        )


def compare(
    engine: Engine, *, statements: int, events: int, kills: int, connect_kills: int, seconds: float, servers: str
) -> Report:
    """Compare the tables, and return the report."""
    with engine.connect() as connection:
        rows, missing, strange, dead_letters, odd = connection.execute(_COUNTS).one()
    return Report(rows, missing, strange, dead_letters, odd, statements, events, kills, connect_kills, seconds, servers)
