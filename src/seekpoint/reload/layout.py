"""What a run keeps in its staging schema, and how it is called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from psycopg import sql as ident
from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, PrimaryKeyConstraint, Table, Text, text

from seekpoint.reload.targets import Path, Target
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.layout import quoted

OFFSET, LINE = "seekpoint offset", "seekpoint line"  # a raw table's own columns: which of a key's rows is the newest
KIND = "seekpoint kind"  # of a difference
Composable = ident.Composable

LIKE = ident.SQL("LIKE {} INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS")


def name(*parts: str) -> ident.Identifier:
    """A name, quoted."""
    return ident.Identifier(*parts)


def names(columns: Sequence[str], alias: str = "") -> ident.Composed:
    """Columns, quoted, separated by commas."""
    return ident.SQL(", ").join(name(alias, column) if alias else name(column) for column in columns)


def run(connection: Connection, statement: str, **parts: Composable) -> int:
    """Execute a statement with these parts in its braces; returns how many rows it touched."""
    return driver_of(connection).execute(ident.SQL(statement).format(**parts)).rowcount


def rows(connection: Connection, statement: str, **parts: Composable) -> list[tuple[Any, ...]]:
    """The rows that a query answers."""
    return driver_of(connection).execute(ident.SQL(statement).format(**parts)).fetchall()


class Staging:
    """The names in one run's schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        metadata = MetaData(schema=schema)
        key = ("consumer_group", "topic", "partition")
        self.left_out = Table(
            "left_out",
            metadata,
            Column("consumer_group", Text),
            Column("topic", Text),
            Column("partition", Integer),
            Column("record_offset", BigInteger),
            PrimaryKeyConstraint(*key, "record_offset"),
        )
        self.lost = Table(
            "lost",
            metadata,
            Column("consumer_group", Text),
            Column("topic", Text),
            Column("partition", Integer),
            Column("from_offset", BigInteger),
            Column("to_offset", BigInteger),
        )

    def table(self, target: Target) -> Path:
        """The rebuilt table."""
        return self.schema, target.built

    def diff(self, target: Target) -> Path:
        """The keys by which it differs from the live one, or may by now."""
        return self.schema, f"diff_{target.staged}"

    def touched(self, target: Target) -> Path:
        """The keys that were written since the difference was taken."""
        return self.schema, f"touched_{target.staged}"

    def raw(self, attempt: str, number: int) -> Path:
        """The rows of one attempt at one range, of one sink."""
        return self.schema, f"{attempt}_{number}"

    def gone(self, attempt: str, number: int) -> Path:
        """The tombstones beside them."""
        return self.schema, f"{attempt}_{number}_gone"


def remember_columns(connection: Connection, path: Path, columns: Sequence[str] | None) -> None:
    """Keep which columns of a table were written: sinks learn that from the first row, and other processes read on."""
    if columns is not None:
        run(
            connection,
            "COMMENT ON TABLE {table} IS {columns}",
            table=name(*path),
            columns=ident.Literal(json.dumps(list(columns))),
        )


_COMMENT = text("SELECT obj_description(to_regclass(:name), 'pg_class')")


def remembered_columns(connection: Connection, path: Path) -> tuple[str, ...] | None:
    """Which columns were written, as far as anybody knows."""
    said = connection.execute(_COMMENT, {"name": quoted(*path)}).scalar()
    return None if said is None else tuple(json.loads(said))
