"""Columns that draw from a sequence: all generations of a table share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection, Row, text

from seekpoint.jobs.tables.create_like import next_of, options, position, set_default, set_position
from seekpoint.jobs.tables.generations.generation_tables import grants
from seekpoint.jobs.tables.sql_templates import Part, name, run
from seekpoint.jobs.tables.targets import Path
from seekpoint.sinks.catalog import quoted

_IDENTITY = {"a": "ALWAYS", "d": "BY DEFAULT"}
_NOTE = "seekpoint: was an identity, "  # said of a sequence, so that it can be one again

_SEQUENCES = text(
    """
    SELECT a.attname AS column, CAST(a.attidentity AS text) AS identity, n.nspname AS schema, c.relname AS name,
           format_type(s.seqtypid, NULL) AS type, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
           s.seqcycle, obj_description(c.oid, 'pg_class') AS said
    FROM pg_depend d
    JOIN pg_class c ON d.classid = CAST('pg_class' AS regclass) AND c.oid = d.objid AND c.relkind = 'S'
    JOIN pg_sequence s ON s.seqrelid = c.oid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.refclassid = CAST('pg_class' AS regclass) AND d.refobjid = to_regclass(:name) AND d.deptype IN ('a', 'i')
    ORDER BY a.attnum
    """
)


@dataclass(frozen=True, slots=True)
class SequenceColumn:
    """A column and its sequence; ``identity`` is how the column was declared, where it is to be that again."""

    column: str
    sequence: Path
    identity: str | None


def kept_sequences(connection: Connection, table: Path) -> Sequence[SequenceColumn]:
    """The columns whose sequences this table owns."""
    return [
        SequenceColumn(row.column, (row.schema, row.name), row.said.removeprefix(_NOTE) if _is_noted(row) else None)
        for row in _sequences(connection, table)
    ]


def loosen(connection: Connection, table: Path) -> Sequence[SequenceColumn]:
    """Replace each identity by a sequence of the same name, because several tables can draw from that."""
    for row in _sequences(connection, table):
        if row.identity:
            _loosen(connection, table, row)
    return kept_sequences(connection, table)


def own(connection: Connection, columns: Sequence[SequenceColumn], table: Path) -> None:
    """Make this table the owner of the sequences, so that they are dropped with it alone."""
    for one in columns:
        run(
            connection,
            "ALTER SEQUENCE {sequence} OWNED BY {column}",
            sequence=one.sequence,
            column=(*table, one.column),
        )


def tighten(connection: Connection, columns: Sequence[SequenceColumn], table: Path) -> None:
    """Make columns identities again that were."""
    for one in columns:
        if one.identity is None:
            continue
        last, called = position(connection, one.sequence)
        parts: dict[str, Part] = {"table": table, "column": (one.column,)}
        run(connection, "ALTER TABLE {table} ALTER {column} DROP DEFAULT", **parts)
        (row,) = [each for each in _sequences(connection, table) if each.column == one.column]
        run(connection, "DROP SEQUENCE {sequence}", sequence=one.sequence)
        run(
            connection,
            "ALTER TABLE {table} ALTER {column} ADD GENERATED {how} AS IDENTITY (SEQUENCE NAME {sequence} {options})",
            **parts,
            how=ident.SQL(_IDENTITY[one.identity]),
            sequence=one.sequence,
            options=options(row, row.seqstart, cycle=row.seqcycle),
        )
        set_position(connection, one.sequence, last, called)


def _sequences(connection: Connection, table: Path) -> Sequence[Row[Any]]:
    return connection.execute(_SEQUENCES, {"name": quoted(*table)}).all()


def _is_noted(row: Row[Any]) -> bool:
    return row.said is not None and row.said.startswith(_NOTE)


def _loosen(connection: Connection, table: Path, row: Row[Any]) -> None:
    sequence: Path = (row.schema, row.name)
    last, called = position(connection, sequence)
    parts: dict[str, Part] = {"table": table, "column": (row.column,), "sequence": sequence}
    run(connection, "ALTER TABLE {table} ALTER {column} DROP IDENTITY", **parts)
    run(
        connection,
        "CREATE SEQUENCE {sequence} AS {type} {options} OWNED BY {owner}",
        **parts,
        type=ident.SQL(row.type),
        options=options(row, row.seqstart, cycle=row.seqcycle),
        owner=(*table, row.column),
    )
    set_position(connection, sequence, last, called)
    set_default(connection, table, row.column, next_of(quoted(*sequence)))
    run(connection, "COMMENT ON SEQUENCE {sequence} IS {note}", **parts, note=_NOTE + row.identity)
    # An identity column needs no privilege on its sequence; a default does.
    for grant in grants(connection, table):
        if grant.what == "INSERT":
            run(
                connection,
                "GRANT USAGE ON SEQUENCE {sequence} TO {role}",
                **parts,
                role=ident.SQL("PUBLIC") if grant.is_public else name(grant.role),
            )
