"""Connections for statements on the ledger's tables in the installed schema, or on one group's rows there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import psycopg
from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import Executable

from seekpoint.ledger.sql import Query
from seekpoint.ledger.tables import in_schema
from seekpoint.postgres import round_trip
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.round_trip import Statement, array

# The prefix of application_name in all workers' transactions: the next owner and operators find them by it.
APPLICATION = "seekpoint "

Question = tuple[Query, Mapping[str, Any]]
"""A statement, and its parameters."""


class SchemaConnection:
    """Runs statements on the ledger's tables in ``schema``; the connection's own options are kept."""

    __slots__ = ("_options", "connection", "schema")

    def __init__(self, connection: Connection, schema: str) -> None:
        self.connection, self.schema = connection, schema
        self._options = _options(schema)

    def execute(
        self, statement: Executable | Query, mappings: Sequence[Mapping[str, Any]] | None = None, /, **parameters: Any
    ) -> CursorResult[Any]:
        """Run a statement once, or for each of ``mappings`` (pipelined), if the values are too large for arrays."""
        arguments = (
            self._parameters(parameters) if mappings is None else [self._parameters(mapping) for mapping in mappings]
        )
        if isinstance(statement, Query):
            return self.connection.exec_driver_sql(statement.in_schema(self.schema), arguments, self._options)
        return self.connection.execute(statement, arguments, execution_options=self._options)

    def stream(self, query: Query, at_once: int, **parameters: Any) -> CursorResult[Any]:
        """Run a statement whose rows do not fit into memory; reads them as the server sends them."""
        options = {**self._options, "stream_results": True, "yield_per": at_once}
        return self.connection.exec_driver_sql(query.in_schema(self.schema), self._parameters(parameters), options)

    def fetch_one(self, query: Query, **parameters: Any) -> Any:
        """The only row of a statement that is run for every batch.

        On a worker's connection the driver runs it, because SQLAlchemy would take as long as the server's work.
        """
        if not isinstance(self.connection, HandlerConnection):
            return self.execute(query, **parameters).one()
        question = self._for_driver(query, parameters)
        ((row, *_),) = round_trip.rows_of(self.connection.driver, question, is_prepared=True)
        return row

    def run_with(self, questions: Sequence[Question], following: Sequence[Statement]) -> list[tuple[Any, ...]]:
        """The only row of each question. On a worker's connection, ``following`` is sent in the same round trip.

        Raises StatementFailed for an error of ``following``.
        """
        if isinstance(self.connection, HandlerConnection):
            return self.connection.run_with([self._for_driver(*question) for question in questions], following)
        assert not following
        return [tuple(self.execute(query, **parameters).one()) for query, parameters in questions]

    def fetch_each(self, *questions: Question) -> list[list[tuple[Any, ...]]]:
        """The rows of each of these statements; in one round trip with BEGIN if they begin the transaction.

        The driver runs them, with arrays as text: to adapt a thousand values, in the driver or in SQLAlchemy, would
        take as long as the server's work. Raises errors as SQLAlchemy does.
        """
        connection, driver = self.connection, cast("Any", self.connection.connection.driver_connection)
        try:
            return round_trip.rows_of(driver, *(self._for_driver(*question) for question in questions))
        except psycopg.Error as error:
            if driver.closed:  # otherwise SQLAlchemy's ROLLBACK fails, and that error replaces this one
                connection.invalidate(error)
            raise DBAPIError.instance("", None, error, psycopg.Error, dialect=connection.dialect) from error

    def _for_driver(self, query: Query, parameters: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        arguments = {name: array(value) if isinstance(value, list) else value for name, value in parameters.items()}
        return query.in_schema(self.schema), self._parameters(arguments)

    def _parameters(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters that the server gets."""
        return parameters


@lru_cache
def _options(schema: str) -> Mapping[str, Any]:
    # Options that a handler has set on the connection must not apply to the ledger's statements.
    return {**in_schema(schema), "stream_results": False, "yield_per": None}


class GroupConnection(SchemaConnection):
    """A connection for one group: adds the group's name to the parameters of each statement."""

    __slots__ = ("group",)

    def __init__(self, connection: Connection, schema: str, group: str) -> None:
        super().__init__(connection, schema)
        self.group = group

    def _parameters(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"group": self.group, **parameters}
