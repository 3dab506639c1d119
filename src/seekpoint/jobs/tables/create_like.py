"""Creates tables like a live one, with sequences of their own: no default draws from a live table's sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection, Row, text

from seekpoint.jobs.tables.sql_templates import Composable, Part, composed, name, regclass, rows, run
from seekpoint.jobs.tables.staging_schema import Staging, is_there, unlogged
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.sinks.catalog import quoted

LIKE = "LIKE {} INCLUDING ALL EXCLUDING DEFAULTS EXCLUDING STATISTICS"
WITHOUT_INDEXES = f"{LIKE} EXCLUDING INDEXES"


class Sequences(Enum):
    """How columns are filled that draw from a sequence in the live table.

    ``IGNORED``: they are not read, and defaults that call functions of users are left out. ``OWN``: the table has
    sequences of its own. ``CONTINUED``: those begin where the live ones are, for the table is to replace the live one.
    """

    IGNORED = auto()
    OWN = auto()
    CONTINUED = auto()


# ``sequences`` are those that the default draws from; ``calls``: it depends on functions of users.
_DEFAULTS = text(
    """
    SELECT a.attname AS column, pg_get_expr(d.adbin, d.adrelid) AS expression,
           ARRAY(SELECT CAST(CAST(r.refobjid AS regclass) AS text)
                 FROM pg_depend r JOIN pg_class c ON c.oid = r.refobjid
                 WHERE r.classid = CAST('pg_attrdef' AS regclass) AND r.objid = d.oid
                       AND r.refclassid = CAST('pg_class' AS regclass) AND c.relkind = 'S') AS sequences,
           EXISTS (SELECT FROM pg_depend r WHERE r.classid = CAST('pg_attrdef' AS regclass) AND r.objid = d.oid
                   AND r.refclassid = CAST('pg_proc' AS regclass)) AS calls
    FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
    WHERE d.adrelid = to_regclass(:name) AND a.attgenerated = '' ORDER BY a.attnum
    """
)
_IDENTITIES = text(
    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attidentity <> '' AND NOT attisdropped"
)
_SEQUENCE = text(
    """
    SELECT format_type(seqtypid, NULL) AS type, seqstart, seqincrement, seqmin, seqmax, seqcache
    FROM pg_sequence WHERE seqrelid = CAST(:sequence AS regclass)
    """
)


def make_like(
    connection: Connection,
    path: Path,
    live: Path,
    numbers: Sequences,
    *,
    prefix: str,
    like: str = WITHOUT_INDEXES,
    also: Composable | None = None,
) -> None:
    """Create the table, empty; ``also`` are further columns, ``prefix`` begins the names of its own sequences."""
    run(
        connection,
        "CREATE {unlogged} TABLE {table} ({like}{also})",
        unlogged=unlogged(path[0]),
        table=path,
        like=ident.SQL(like).format(name(*live)),
        also=ident.SQL("") if also is None else ident.SQL(", ") + also,
    )
    for n, row in enumerate(_defaults(connection, live)):
        column: dict[str, Part] = {"table": path, "column": (row.column,)}
        if _is_drawn(row):
            sequence = (path[0], f"{prefix}_s{n}")
            _make_sequence(connection, sequence, row.sequences[0], numbers, column)
            set_default(connection, path, row.column, _drawing_from(row, sequence))
        elif numbers is not Sequences.IGNORED or not (row.calls or row.sequences or "nextval(" in row.expression):
            set_default(connection, path, row.column, row.expression)
        else:
            run(connection, "ALTER TABLE {table} ALTER {column} DROP NOT NULL", **column)
    if numbers is Sequences.IGNORED:
        for identity in connection.execute(_IDENTITIES, {"name": quoted(*path)}).scalars().all():
            run(connection, "ALTER TABLE {table} ALTER {column} SET CYCLE", table=path, column=(identity,))


def draw_from_live(connection: Connection, staging: Staging, target: Target) -> None:
    """Before the rebuilt table replaces the live one: make it draw from the live sequences, after its own numbers."""
    built = staging.table(target)
    for n, row in enumerate(_defaults(connection, target.path)):
        own = (built[0], f"{target.staged}_s{n}")
        if _is_drawn(row) and is_there(connection, own):
            _continue(connection, own, row.sequences[0])
            set_default(connection, built, row.column, row.expression)
            run(connection, "DROP SEQUENCE {own}", own=own)


def set_default(connection: Connection, path: Path, column: str, expression: str) -> None:
    """Give a column this default, as the catalog prints it."""
    given = "ALTER TABLE {table} ALTER {column} SET DEFAULT {expression}"
    run(connection, given, table=path, column=(column,), expression=ident.SQL(expression))


def _defaults(connection: Connection, table: Path) -> Sequence[Row[Any]]:
    return connection.execute(_DEFAULTS, {"name": quoted(*table)}).all()


def _is_drawn(row: Row[Any]) -> bool:
    """Whether the default draws from one sequence, which can be replaced by another."""
    return not row.calls and len(row.sequences) == 1 and next_of(row.sequences[0]) in row.expression


def next_of(sequence: str) -> str:
    """The default that draws from a sequence, as the catalog prints it."""
    return "nextval({}::regclass)".format("'" + sequence.replace("'", "''") + "'")


def _drawing_from(row: Row[Any], sequence: Path) -> str:
    return str(row.expression).replace(next_of(row.sequences[0]), next_of(quoted(*sequence)))


def _make_sequence(
    connection: Connection, path: Path, live: str, numbers: Sequences, owner: Mapping[str, Part]
) -> None:
    its = connection.execute(_SEQUENCE, {"sequence": live}).one()
    start = its.seqstart
    if numbers is Sequences.CONTINUED:
        last, called = position(connection, ident.SQL(live))
        start = last + its.seqincrement if called else last
    if not its.seqmin <= start <= its.seqmax:  # the live one is used up: it may begin again, or is refused by itself
        start = its.seqstart
    run(
        connection,
        "CREATE SEQUENCE {path} AS {type} {options} OWNED BY {table}.{column}",
        path=path,
        type=ident.SQL(its.type),
        options=options(its, start, cycle=numbers is Sequences.IGNORED),
        **owner,
    )


def options(row: Row[Any], start: int, *, cycle: bool) -> Composable:
    """The options of CREATE SEQUENCE for one like the sequence of this row of pg_sequence."""
    return composed(
        "START {start} INCREMENT {step} MINVALUE {least} MAXVALUE {most} CACHE {cache} {cycle}",
        start=start,
        step=row.seqincrement,
        least=row.seqmin,
        most=row.seqmax,
        cache=row.seqcache,
        cycle=ident.SQL("CYCLE" if cycle else "NO CYCLE"),
    )


def position(connection: Connection, sequence: Part) -> tuple[int, bool]:
    """The last number of a sequence, and whether it was drawn."""
    [(last, called)] = rows(connection, "SELECT last_value, is_called FROM {it}", it=sequence)
    return last, called


def set_position(connection: Connection, sequence: Path, last: int, called: bool) -> None:
    """Let a sequence continue after this number, or from it where it was not drawn."""
    run(connection, "SELECT setval({it}, {last}, {called})", it=regclass(sequence), last=last, called=called)


def _continue(connection: Connection, own: Path, live: str) -> None:
    """Take the live sequence past the numbers that were drawn from the run's own."""
    last, called = position(connection, own)
    step = connection.execute(_SEQUENCE, {"sequence": live}).one().seqincrement
    if not called or (position(connection, ident.SQL(live))[0] - last) * step >= 0:
        return
    # No session draws from it until COMMIT: else a number that was drawn meanwhile would be given out again.
    run(connection, "ALTER SEQUENCE {live} INCREMENT {step}", live=ident.SQL(live), step=step)
    if (position(connection, ident.SQL(live))[0] - last) * step < 0:
        run(connection, "SELECT setval({live}::regclass, {last})", live=live, last=last)
