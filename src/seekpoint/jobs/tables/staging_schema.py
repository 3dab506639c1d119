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

OFFSET, LINE = "seekpoint offset", "seekpoint line"  # a raw table's own columns: which of a key's rows is the newest
PLACE = "seekpoint place"  # which partition a row is from, as a number
KIND = "seekpoint kind"  # of a difference
KEY = "seekpoint key"  # of a raw table, where each record's key must be one row's key: a digest of the record's


def unlogged(schema: str) -> ident.SQL:
    """The word after CREATE for the tables of this schema."""
    return ident.SQL("UNLOGGED" if schema.startswith(UNLOGGED) else "")


UNLOGGED = "seekpoint_unlogged_"  # begins the schema's name of a run whose tables no publication may have


class Staging:
    """The names of one run's tables, in its schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        metadata = MetaData(schema=schema)

        def table(called: str, *offsets: str, is_unique: bool) -> Table:
            types: dict[str, Any] = {"consumer_group": Text, "topic": Text, "partition": Integer}
            types |= dict.fromkeys(offsets, BigInteger)
            columns: list[Column[Any]] = [Column(each, type_, primary_key=is_unique) for each, type_ in types.items()]
            return Table(called, metadata, *columns, prefixes=["UNLOGGED"] if schema.startswith(UNLOGGED) else [])

        self.left_out = table("left_out", "record_offset", is_unique=True)
        self.lost = table("lost", "from_offset", "to_offset", is_unique=False)
        self.dead_letters = dead_letter.to_metadata(metadata, schema=schema)

    def table(self, target: Target) -> Path:
        """The rebuilt table."""
        return self.schema, target.staged

    def index(self, target: Target, number: int) -> str:
        """One of the rebuilt table's indexes, where it gets all that the live one has."""
        return f"{target.staged}_i{number}"

    def attempt_rows(self, attempt: str, number: int) -> Path:
        """The rows of one attempt at one range, of one sink."""
        return self.schema, f"{attempt}_{number}"

    def attempt_deletes(self, attempt: str, number: int) -> Path:
        """The tombstones beside them."""
        return self.schema, f"{attempt}_{number}_gone"


class StagingTables(Statements):
    """Statements on a target's live table, its rebuilt one, and what a comparison of the two keeps beside them.

    ``diff`` has the keys of rows that differ or may differ by now, ``touched`` those that were written since, ``seen``
    the transactions whose rows the comparison has seen, as far as others were open at the same time.
    """

    def __init__(self, connection: Connection, staging: Staging, target: Target) -> None:
        self.target, self.built = target, staging.table(target)
        kept = ("diff", "touched", "seen", "late", "before", "rate")
        super().__init__(
            connection,
            live=target.path,
            built=self.built,
            unlogged=unlogged(staging.schema),
            key=names(target.key),
            kind=(KIND,),
            same=same_key(target, "live", "diff"),
            as_live=same_key(target, "live", "built"),
            as_built=same_key(target, "built", "diff"),
            **{each: (staging.schema, f"{each}_{target.staged}") for each in kept},
        )

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the pipelines own."""
        return remembered_columns(self.connection, self.built) or self.target.all_columns

    @property
    def others(self) -> list[str]:
        """The columns that the pipelines own beside the key."""
        return [column for column in self.columns if column not in self.target.key]


def same_key(target: Target, left: str, right: str) -> Composable:
    """Whether two rows have one key."""
    return ident.SQL(" AND ").join(composed("{a} = {b}", a=(left, one), b=(right, one)) for one in target.key)


def of_partition(columns: Any, group: str, at: Partition) -> tuple[ColumnElement[bool], ...]:
    """The conditions on a table's columns for the rows of one partition of a group."""
    return columns.consumer_group == group, columns.topic == at.topic, columns.partition == at.number


def remember_columns(connection: Connection, path: Path, columns: Sequence[str] | None) -> None:
    """Store which columns of a table were written, as its comment: sinks learn that from the first row."""
    # Only where it changes: in a cut-over it would wait for a session that analyzes the table.
    if columns is not None and remembered_columns(connection, path) != tuple(columns):
        run(connection, "COMMENT ON TABLE {table} IS {columns}", table=path, columns=json.dumps(list(columns)))


_COMMENT = text("SELECT obj_description(to_regclass(:name), 'pg_class')")
_THERE = text("SELECT to_regclass(:name) IS NOT NULL")


def is_there(connection: Connection, path: Path) -> bool:
    """Whether there is such a table."""
    return bool(connection.execute(_THERE, {"name": quoted(*path)}).scalar())


def comment(connection: Connection, path: Path) -> str | None:
    """The comment of a table."""
    said: str | None = connection.execute(_COMMENT, {"name": quoted(*path)}).scalar()
    return said


def remembered_columns(connection: Connection, path: Path) -> tuple[str, ...] | None:
    """Which columns were written; None where that is not known."""
    said = comment(connection, path)
    return None if said is None else tuple(json.loads(said))
