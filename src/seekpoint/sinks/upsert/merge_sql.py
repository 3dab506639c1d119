"""The base of all statements that merge rows by key, from arrays of text or from a temporary table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from psycopg import sql

from seekpoint.sinks import column_types
from seekpoint.sinks.catalog import Layout, stage_name
from seekpoint.sinks.column_types import as_read
from seekpoint.sinks.dedupe import Target
from seekpoint.sinks.insert import percent_doubled

GATE = sql.SQL(column_types.GATE)
STORED, NEW = sql.Identifier("stored"), sql.Identifier("new")  # aliases
Composable = sql.Composable


class MergeSql:
    """Statements for rows passed as arrays of text (``unnest``), and for rows in the temporary table (the *stage*).

    Parameters are one array for each column, then those of ``gate``; statements on the stage have none.
    """

    def __init__(self, target: Target, layout: Layout) -> None:
        self.target, self.layout = target, layout
        self._table = escaped_name(*target.path)
        self._stage: Composable = escaped_name("pg_temp", stage_name(target))

    @cached_property
    def gate(self) -> list[object]:
        """The parameters of ``GATE``, which is false if the columns' types have changed since the layout was read.

        If it is false, the statement converts no value and writes no row, and the caller reads the layout again.
        """
        return [*as_read(self.target.path, self.layout.types.declared)]

    @property
    def merge(self) -> sql.Composed:
        """INSERT from the stage, sorted by key, so that two writers of the same keys lock them in one order."""
        raise NotImplementedError

    @property
    def delete_staged(self) -> sql.Composed:
        """DELETE of the keys that have a tombstone in the stage."""
        raise NotImplementedError

    @property
    def steps_back(self) -> sql.Composed | None:
        """SELECT of the first staged row with a lower source position than an earlier row; None without positions."""
        return None

    # -- parts --------------------------------------------------------------------------------------------

    @cached_property
    def _into(self) -> sql.Composed:
        assert self.target.columns is not None
        overriding = " OVERRIDING SYSTEM VALUE" if self.layout.overriding else ""
        return sql.SQL("INSERT INTO {} AS {} ({}){}").format(
            self._table, STORED, listed(map(escaped_name, self.target.columns)), sql.SQL(overriding)
        )

    @cached_property
    def _key(self) -> sql.Composed:
        return listed(map(escaped_name, self.target.key))

    def _same_key(self, left: Composable, right: Composable) -> sql.Composed:
        """The condition that two rows have the same key, by the operators of the key's index."""
        columns = self.layout.columns
        return sql.SQL(" AND ").join(
            sql.SQL("{} {} {}").format(self._in_key(left, name), as_sql(columns[name].equal), self._in_key(right, name))
            for name in self.target.key
        )

    def _in_key(self, row: Composable, name: str) -> sql.Composed:
        """The key's column of a row; cast, if a domain over an enum: the enum's operators do not take it."""
        column = self.layout.columns[name]
        value = sql.SQL("{}.{}").format(row, escaped_name(name))
        return sql.SQL("CAST({} AS {})").format(value, as_sql(column.type)) if column.kind == "enum" else value

    def _cast(self, name: str) -> sql.Composed:
        """A cast to the column's type without its modifier: a cast truncates a long text, an assignment refuses it."""
        return sql.SQL("CAST({} AS {})").format(escaped_name(name), as_sql(self.layout.columns[name].type))

    def _casts(self, columns: Sequence[str]) -> sql.Composed:
        return listed(sql.SQL("{} AS {}").format(self._cast(name), escaped_name(name)) for name in columns)


def arrays(columns: Sequence[str]) -> sql.Composed:
    """``unnest`` of one array per column, as a table."""
    parameters = sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(columns))
    return sql.SQL("unnest({}) AS given ({})").format(parameters, listed(map(escaped_name, columns)))


def escaped_name(*parts: str) -> sql.Identifier:
    """An identifier with ``%`` doubled, because these statements always run with parameters, if only ``()``."""
    return sql.Identifier(*map(percent_doubled, parts))


def as_sql(text: str) -> sql.SQL:
    """SQL text from the catalog, with ``%`` doubled."""
    return sql.SQL(percent_doubled(text))


def listed(parts: Iterable[Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
