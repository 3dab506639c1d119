"""A connection that adds the group's name to the ledger's statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.sql.base import Executable

from seekpoint.ledger.schema_connection import SchemaConnection


class GroupConnection(SchemaConnection):
    """Adds the group's name to the parameters of each statement."""

    __slots__ = ("group",)

    def __init__(self, connection: Connection, schema: str, group: str) -> None:
        super().__init__(connection, schema)
        self.group = group

    def insert(self, statement: Executable, **values: Any) -> None:
        """Insert one row whose column ``consumer_group`` has the group's name."""
        self.connection.execute(statement, {"consumer_group": self.group, **values}, execution_options=self._options)

    def _given(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"group": self.group, **parameters}
