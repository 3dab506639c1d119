"""One group's rows, through one connection: what every statement of the ledger runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.sql.base import Executable

from seekpoint.ledger.schema_connection import SchemaConnection


class GroupConnection(SchemaConnection):
    """Adds the group's name to the parameters of each statement."""

    __slots__ = ("group",)

<<<<<<< HEAD
    def fetch_one(self, statement: Executable, **parameters: Any) -> Any:
        """The only row of a statement that is run for every batch.

        On a worker's connection it takes the fast path, to the driver: there, SQLAlchemy's own work would take as long
        as the server's.
        """
        fast_path = getattr(self.connection, "fast_path", None)
        if fast_path is None:
            return self.execute(statement, **parameters).one()
        schemas = tuple(self.options["schema_translate_map"].items())
        text = _compiled(statement, self.connection.dialect, schemas)
        given = {name: _array(value) if isinstance(value, list) else value for name, value in parameters.items()}
        return fast_path(text, {"group": self.group, **given})

    def execute_many(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run one of them once per row, in one go (psycopg pipelines it): for values too large to stand in arrays."""
        given = [{"group": self.group, **row} for row in rows]
        self.connection.execute(statement, given, execution_options=self.options)
=======
    def __init__(self, connection: Connection, schema: str, group: str) -> None:
        super().__init__(connection, schema)
        self.group = group
>>>>>>> da564fe (HandlerConnection is composed; one connection that knows the schema)

    def insert(self, statement: Executable, **values: Any) -> None:
        """Insert one row whose column ``consumer_group`` has the group's name."""
        self.connection.execute(statement, {"consumer_group": self.group, **values}, execution_options=self._options)

    def _given(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"group": self.group, **parameters}
