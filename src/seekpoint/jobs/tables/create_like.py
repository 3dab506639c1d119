"""Creates tables like a live one, with new sequences, so that no default draws from a live table's sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection, Row, text

from seekpoint.jobs.tables.carry import give_storage
from seekpoint.jobs.tables.sql_templates import Composable, Part, composed, rows, run
from seekpoint.jobs.tables.staging_schema import Staging, is_there, unlogged
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.sinks.catalog import quoted

# ``sequences``: those from which the default draws; ``calls``: the default depends on users' functions.
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
_IS_COMPLETED = text(
    """
    SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal AND tgenabled <> 'D'
                   AND tgtype & 7 = 7)  -- a row, before, INSERT
    """
)
_NOT_NULL = text(
    """
    SELECT attname AS column FROM pg_attribute
    WHERE attrelid = to_regclass(:name) AND attnotnull AND attidentity = '' AND attnum > 0 AND NOT attisdropped
    """
)
_IDENTITIES = text(
    """
    SELECT attname AS column, pg_get_serial_sequence(:name, attname) AS sequence FROM pg_attribute
    WHERE attrelid = to_regclass(:name) AND attidentity <> '' AND NOT attisdropped ORDER BY attnum
    """
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
    *,
    prefix: str,
    replaces: bool = False,
    also: Composable | None = None,
    before_triggers: bool = False,
) -> None:
    """Create an empty table like ``live``, without indexes; ``also`` are further columns.

    Its sequences are new, and their names begin with ``prefix``. If the table ``replaces`` the live one, they start at
    the live sequences' next numbers. Otherwise their numbers are not used, and the table has no defaults that call
    users' functions. ``before_triggers``: the live table's BEFORE triggers complete the rows later, so rows are not
    checked here.
    """
    completed = before_triggers and connection.execute(_IS_COMPLETED, {"name": quoted(*live)}).scalar_one()
    run(
        connection,
        "CREATE {unlogged} TABLE {table} "
        "(LIKE {live} INCLUDING ALL EXCLUDING DEFAULTS EXCLUDING STATISTICS EXCLUDING INDEXES{unchecked}{also})",
        unchecked=ident.SQL(" EXCLUDING CONSTRAINTS" if completed else ""),
        unlogged=unlogged(path[0]),
        table=path,
        live=live,
        also=ident.SQL("") if also is None else ident.SQL(", ") + also,
    )
    for n, row in enumerate(_defaults(connection, live)):
        column: dict[str, Part] = {"table": path, "column": (row.column,)}
        if _is_drawn(row):
            sequence = (path[0], f"{prefix}_s{n}")
            _make_sequence(connection, sequence, row.sequences[0], column, replaces=replaces)
            set_default(connection, path, row.column, _drawing_from(row, sequence))
        elif replaces or not _is_stateful(row):
            set_default(connection, path, row.column, row.expression)
        else:
            run(connection, "ALTER TABLE {table} ALTER {column} DROP NOT NULL", **column)
    for row in connection.execute(_NOT_NULL, {"name": quoted(*path)}).all() if completed else ():
        run(connection, "ALTER TABLE {table} ALTER {column} DROP NOT NULL", table=path, column=(row.column,))
    _set_identities(connection, path, live, replaces=replaces)
    if replaces:
        give_storage(connection, live, path)


def _set_identities(connection: Connection, path: Path, live: Path, *, replaces: bool) -> None:
    sequences = _identities(connection, path)
    if not replaces:
        for own in sequences.values():
            run(connection, "ALTER SEQUENCE {own} CYCLE", own=ident.SQL(own))
        return
    for column, sequence in _identities(connection, live).items():
        settings = _settings(connection, sequence)
        run(
            connection,
            "ALTER SEQUENCE {own} AS {type} RESTART WITH {start}",  # LIKE creates every sequence as bigint
            own=ident.SQL(sequences[column]),
            type=ident.SQL(settings.type),
            start=_next(connection, sequence, settings),
        )


def draw_from_live(connection: Connection, staging: Staging, target: Target) -> None:
    """Before the swap, make the rebuilt table draw from the live sequences, moved past its own numbers.

    An identity column keeps the rebuilt table's sequence, moved past the live sequence's numbers.
    """
    built = staging.table(target)
    for n, row in enumerate(_defaults(connection, target.path)):
        own = (built[0], f"{target.staged}_s{n}")
        if _is_drawn(row) and is_there(connection, own):
            _continue(connection, row.sequences[0], after=own)
            set_default(connection, built, row.column, row.expression)
            run(connection, "DROP SEQUENCE {own}", own=own)
    live = _identities(connection, target.path)
    for column, sequence in _identities(connection, built).items():
        if column in live:  # otherwise the live table was altered, and the swap is refused later
            _continue(connection, sequence, after=ident.SQL(live[column]))


def set_default(connection: Connection, path: Path, column: str, expression: str) -> None:
    """Give a column this default, as the catalog prints it."""
    statement = "ALTER TABLE {table} ALTER {column} SET DEFAULT {expression}"
    run(connection, statement, table=path, column=(column,), expression=ident.SQL(expression))


def _identities(connection: Connection, table: Path) -> dict[str, str]:
    """The sequence of each identity column."""
    return {row.column: row.sequence for row in connection.execute(_IDENTITIES, {"name": quoted(*table)})}


def _defaults(connection: Connection, table: Path) -> Sequence[Row[Any]]:
    return connection.execute(_DEFAULTS, {"name": quoted(*table)}).all()


def drawn_columns(connection: Connection, table: Path) -> list[str]:
    """The columns whose values depend on the order of rows: identities, and defaults that draw numbers.

    A default that calls a user's function may draw numbers.
    """
    drawn = [row.column for row in _defaults(connection, table) if _is_stateful(row)]
    return [*drawn, *_identities(connection, table)]


def _is_stateful(row: Row[Any]) -> bool:
    """Whether the default draws numbers, or calls a user's function."""
    return bool(row.calls or row.sequences or "nextval(" in row.expression)


def _is_drawn(row: Row[Any]) -> bool:
    """Whether the default calls ``nextval`` on one sequence, so that another can replace it."""
    return not row.calls and len(row.sequences) == 1 and next_of(row.sequences[0]) in row.expression


def next_of(sequence: str) -> str:
    """The default that draws from a sequence, as the catalog prints it."""
    return "nextval({}::regclass)".format("'" + sequence.replace("'", "''") + "'")


def _drawing_from(row: Row[Any], sequence: Path) -> str:
    return str(row.expression).replace(next_of(row.sequences[0]), next_of(quoted(*sequence)))


def _make_sequence(connection: Connection, path: Path, live: str, owner: Mapping[str, Part], *, replaces: bool) -> None:
    settings = _settings(connection, live)
    start = _next(connection, live, settings) if replaces else settings.seqstart
    run(
        connection,
        "CREATE SEQUENCE {path} AS {type} {options} OWNED BY {table}.{column}",
        path=path,
        type=ident.SQL(settings.type),
        options=composed(
            "START {start} INCREMENT {step} MINVALUE {least} MAXVALUE {most} CACHE {cache} {cycle}",
            start=start,
            step=settings.seqincrement,
            least=settings.seqmin,
            most=settings.seqmax,
            cache=settings.seqcache,
            cycle=ident.SQL("NO CYCLE" if replaces else "CYCLE"),
        ),
        **owner,
    )


def _settings(connection: Connection, sequence: str) -> Row[Any]:
    return connection.execute(_SEQUENCE, {"sequence": sequence}).one()


def _next(connection: Connection, sequence: str, settings: Row[Any]) -> int:
    """The next number of a sequence, or the start of an exhausted one.

    A cycling sequence continues at its start; any other raises an error after the swap.
    """
    last, called = position(connection, ident.SQL(sequence))
    start: int = last + settings.seqincrement if called else last
    return start if settings.seqmin <= start <= settings.seqmax else int(settings.seqstart)


def position(connection: Connection, sequence: Part) -> tuple[int, bool]:
    """The last number of a sequence, and whether it was drawn."""
    [(last, called)] = rows(connection, "SELECT last_value, is_called FROM {it}", it=sequence)
    return last, called


def _continue(connection: Connection, sequence: str, *, after: Part) -> None:
    """Move a sequence past the numbers that were drawn from another one."""
    last, called = position(connection, after)
    step = _settings(connection, sequence).seqincrement
    if not called or (position(connection, ident.SQL(sequence))[0] - last) * step >= 0:
        return
    # Locks the sequence until COMMIT: otherwise setval() could reset it below a number that was drawn meanwhile.
    run(connection, "ALTER SEQUENCE {it} INCREMENT {step}", it=ident.SQL(sequence), step=step)
    if (position(connection, ident.SQL(sequence))[0] - last) * step < 0:
        run(connection, "SELECT setval({it}::regclass, {last})", it=sequence, last=last)
