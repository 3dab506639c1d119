"""A connection whose statements use the ledger's tables in the installed schema, and one of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, CursorResult, Dialect
from sqlalchemy.sql.base import Executable

from seekpoint.ledger.tables import DEFAULT_SCHEMA, in_schema
from seekpoint.postgres.connection import HandlerConnection


class SchemaConnection:
    """Runs statements on the ledger's tables in ``schema``; the connection's own options are kept."""

    __slots__ = ("_options", "connection", "schema")

    def __init__(self, connection: Connection, schema: str) -> None:
        self.connection, self.schema = connection, schema
        self._options = _options(schema)

    def execute(
        self, statement: Executable, many: Sequence[Mapping[str, Any]] | None = None, /, **parameters: Any
    ) -> CursorResult[Any]:
        """Run a statement once, or once for each of ``many`` (pipelined): for values that are too large for arrays."""
        given = self._given(parameters) if many is None else [self._given(each) for each in many]
        return self.connection.execute(statement, given, execution_options=self._options)

    def fetch_one(self, statement: Executable, **parameters: Any) -> Any:
        """The only row of a statement that is run for every batch.

        On a worker's connection the driver runs it, because SQLAlchemy's own work would take as long as the server's.
        """
        if not isinstance(self.connection, HandlerConnection):
            return self.execute(statement, **parameters).one()
        text = _compiled(statement, self.connection.dialect, self.schema)
        given = {name: _array(value) if isinstance(value, list) else value for name, value in parameters.items()}
        return self.connection.fast_path(text, self._given(given))

    def is_deferred(self, error: BaseException) -> bool:
        """Whether it is a deferred error: of an earlier, pipelined statement."""
        return isinstance(self.connection, HandlerConnection) and self.connection.deferred.error is error

    def _given(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters of one statement."""
        return parameters


@lru_cache
def _options(schema: str) -> Mapping[str, Any]:
    # Options that a handler has set on the connection must not apply to the ledger's statements.
    return {**in_schema(schema), "stream_results": False, "yield_per": None}


@lru_cache(maxsize=256)
def _compiled(statement: Any, dialect: Dialect, schema: str) -> str:
    """The statement's text for the driver. It has no bound parameters but those of the call."""
    compiled = statement.compile(
        dialect=dialect, schema_translate_map={DEFAULT_SCHEMA: schema}, render_schema_translate=True
    )
    assert not any(value is not None for value in compiled.params.values()), compiled.params
    return str(compiled)


def _array(values: Sequence[Any]) -> str:
    """An array literal: for a thousand partitions ten times as fast as the driver's own adaptation."""
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    text = str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class GroupConnection(SchemaConnection):
    """Adds the group's name to the parameters of each statement."""

    __slots__ = ("group",)

    def __init__(self, connection: Connection, schema: str, group: str) -> None:
        super().__init__(connection, schema)
        self.group = group

    def _given(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"group": self.group, **parameters}
