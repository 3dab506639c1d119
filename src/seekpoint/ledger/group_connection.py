"""One group's rows, in one schema, through one connection: what every statement of the ledger runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from psycopg.sql import Literal
from sqlalchemy import Connection, CursorResult, Dialect
from sqlalchemy.sql.base import Executable


@dataclass(frozen=True, slots=True)
class GroupConnection:
    """Adds the group's name and the schema's to each statement; the connection's own options stay as they are."""

    connection: Connection
    group: str
    options: Mapping[str, Any]

    def execute(self, statement: Executable, **parameters: Any) -> CursorResult[Any]:
        """Run one of :mod:`seekpoint.ledger.sql.worker`."""
        return self.connection.execute(statement, {"group": self.group, **parameters}, execution_options=self.options)

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

    def insert(self, statement: Executable, **values: Any) -> None:
        """Insert one row whose group stands in the column ``consumer_group``."""
        self.connection.execute(statement, {"consumer_group": self.group, **values}, execution_options=self.options)


@lru_cache(maxsize=256)
def _compiled(statement: Any, dialect: Dialect, schemas: tuple[tuple[str | None, str], ...]) -> str:
    """The statement as the driver takes it; values that never vary are part of its text."""
    compiled = statement.compile(dialect=dialect, schema_translate_map=dict(schemas), render_schema_translate=True)
    text = str(compiled)
    for name, value in compiled.params.items():
        if value is not None:
            text = text.replace(f"%({name})s", Literal(value).as_string().replace("%", "%%"))
    return text


def _array(values: Sequence[Any]) -> str:
    """As Postgres reads an array: for a thousand partitions ten times as fast as the driver's own way."""
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    text = str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
