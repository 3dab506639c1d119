"""The names of the tables in a run's staging schema, and statements on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from psycopg import sql as ident
from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Integer, MetaData, Table, Text, text

from seekpoint.jobs.tables.sql_templates import Composable, Statements, composed, names, run
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.ledger.tables import dead_letter
from seekpoint.records import Partition
from seekpoint.sinks.catalog import quoted

OFFSET, LINE = "seekpoint offset", "seekpoint line"  # the record's offset, and the row's index among its rows
PLACE = "seekpoint place"  # the row's partition, as an index into StagedRows.places
MISSING = "seekpoint missing"  # the names of the columns of a row that the source did not send
ROWS = "seekpoint rows"  # the number of rows whose sum this row is
KIND = "seekpoint kind"  # the kind of a difference
KEY = "seekpoint key"  # a digest of the record's key, for sinks with compacted=True


def unlogged(schema: str) -> ident.SQL:
    """UNLOGGED or nothing, for CREATE TABLE in this schema."""
    return ident.SQL("UNLOGGED" if schema.startswith(UNLOGGED) else "")


UNLOGGED = "seekpoint_unlogged_"  # prefix of the schema of a run whose tables must not be published


class Staging:
    """The names of one run's tables, in its schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        metadata = MetaData(schema=schema)

        def table(name: str, *offsets: str, is_unique: bool) -> Table:
            types: dict[str, Any] = {"consumer_group": Text, "topic": Text, "partition": Integer}
            types |= dict.fromkeys(offsets, BigInteger)
            columns: list[Column[Any]] = [
                Column(column, type_, primary_key=is_unique) for column, type_ in types.items()
            ]
            return Table(name, metadata, *columns, prefixes=["UNLOGGED"] if schema.startswith(UNLOGGED) else [])

        self.left_out = table("left_out", "record_offset", is_unique=True)
        self.lost = table("lost", "from_offset", "to_offset", is_unique=False)
        self.dead_letters = dead_letter.to_metadata(metadata, schema=schema)

    def table(self, target: Target) -> Path:
        """The rebuilt table."""
        return self.schema, target.staged

    def index(self, target: Target, number: int) -> str:
        """The name of the rebuilt table's index number ``number``, for strategy ``swap``."""
        return f"{target.staged}_i{number}"

    def attempt_rows(self, attempt: str, number: int) -> Path:
        """The table of an attempt's rows of one sink."""
        return self.schema, f"{attempt}_{number}"

    def attempt_deletes(self, attempt: str, number: int) -> Path:
        """The table of an attempt's tombstones of one sink."""
        return self.schema, f"{attempt}_{number}_gone"

    def attempt_partials(self, attempt: str, number: int) -> Path:
        """The table of an attempt's rows with missing values, of a sink that applies changes."""
        return self.schema, f"{attempt}_{number}_some"


class StagingTables(Statements):
    """Statements on a target's live table, its rebuilt table, and the tables that their comparison creates.

    ``diff`` has the keys of rows that differ or may differ by now; ``touched`` the keys that catch-up passes have
    written after the comparison. ``seen`` has the transactions whose rows the comparison saw, from its oldest open
    transaction on; ``shown`` the differing rows, as text.
    """

    def __init__(self, connection: Connection, staging: Staging, target: Target) -> None:
        self.target, self.built = target, staging.table(target)
        tables = ("diff", "touched", "seen", "late", "before", "rate")
        self.shown = (staging.schema, f"shown_{target.staged}")
        super().__init__(
            connection,
            live=target.path,
            built=self.built,
            unlogged=unlogged(staging.schema),
            key=names(target.key),
            kind=(KIND,),
            shown=self.shown,
            same=same_key(target, "live", "diff"),
            as_live=same_key(target, "live", "built"),
            as_built=same_key(target, "built", "diff"),
            **{table: (staging.schema, f"{table}_{target.staged}") for table in tables},
        )

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the pipelines write."""
        return remembered_columns(self.connection, self.built) or self.target.all_columns

    @property
    def others(self) -> list[str]:
        """The columns that the pipelines write, without the key."""
        return [column for column in self.columns if column not in self.target.key]


def same_key(target: Target, left: str, right: str) -> Composable:
    """A condition: two rows have the same key."""
    return ident.SQL(" AND ").join(composed("{a} = {b}", a=(left, column), b=(right, column)) for column in target.key)


def of_partition(columns: Any, group: str, partition: Partition) -> tuple[ColumnElement[bool], ...]:
    """The conditions that select the rows of one partition of a group."""
    return columns.consumer_group == group, columns.topic == partition.topic, columns.partition == partition.number


def remember_columns(connection: Connection, path: Path, columns: Sequence[str] | None) -> None:
    """Store the written columns as the table's comment, because sinks know them only after the first row."""
    # Only if they change: in a cut-over the statement would wait for a session that analyzes the table.
    if columns is not None and remembered_columns(connection, path) != tuple(columns):
        run(connection, "COMMENT ON TABLE {table} IS {columns}", table=path, columns=json.dumps(list(columns)))


_COMMENT = text("SELECT obj_description(to_regclass(:name), 'pg_class')")
_THERE = text("SELECT to_regclass(:name) IS NOT NULL")


def is_there(connection: Connection, path: Path) -> bool:
    """Whether the table exists."""
    return bool(connection.execute(_THERE, {"name": quoted(*path)}).scalar())


def comment(connection: Connection, path: Path) -> str | None:
    """The comment of a table."""
    table_comment: str | None = connection.execute(_COMMENT, {"name": quoted(*path)}).scalar()
    return table_comment


def remembered_columns(connection: Connection, path: Path) -> tuple[str, ...] | None:
    """The written columns; None if they are not known."""
    columns = comment(connection, path)
    return None if columns is None else tuple(json.loads(columns))
