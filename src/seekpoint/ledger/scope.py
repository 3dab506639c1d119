"""One group's rows, in one schema, through one connection: what every statement of the ledger runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.sql.base import Executable


@dataclass(frozen=True, slots=True)
class Scope:
    """Adds the group's name and the schema's to each statement; the connection's own options stay as they are."""

    connection: Connection
    group: str
    options: Mapping[str, Any]

    def execute(self, statement: Executable, **parameters: Any) -> CursorResult[Any]:
        """Run one of :mod:`seekpoint.ledger.statements`."""
        return self.connection.execute(statement, {"group": self.group, **parameters}, execution_options=self.options)

    def execute_many(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run one of them once per row, in one go (psycopg pipelines it): for values too large to stand in arrays."""
        given = [{"group": self.group, **row} for row in rows]
        self.connection.execute(statement, given, execution_options=self.options)

    def insert(self, statement: Executable, **values: Any) -> None:
        """Insert one row whose group stands in the column ``consumer_group``."""
        self.connection.execute(statement, {"consumer_group": self.group, **values}, execution_options=self.options)
