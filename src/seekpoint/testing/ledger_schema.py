"""A schema with the ledger's tables that the tests of one process share: each test finds it empty."""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any, LiteralString, NamedTuple

from psycopg import Connection, Cursor, OperationalError, connect
from psycopg.errors import LockNotAvailable
from psycopg.sql import SQL, Composed, Identifier, Literal

from seekpoint import schema
from seekpoint.ledger.schema_revision import HEAD
from seekpoint.ledger.tables import metadata

_ANY_SCHEMA = "ANY SCHEMA"  # a name that must be quoted, so that each use in the script can be replaced
_MOST_BYTES = 4_000_000  # most pages of all tables: with more, deleted rows would slow down later tests
_LOCK_TIMEOUT = "10s"

# Oids of the schema and of all its relations, by which catalog rows are looked up through an index.
_OIDS: LiteralString = """
SELECT n.oid::text AS namespace, array_agg(c.oid)::text AS relations
FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid WHERE nspname = {schema} GROUP BY n.oid
"""

# Number of the catalog rows of the ledger's own tables, and the sum of their versions: DDL gives a changed row a higher
# xmin, and the count shows added and removed rows.
_SIGNATURE: LiteralString = """
SELECT count(*) || ' ' || coalesce(sum(version), 0) FROM (
    SELECT xmin::text::int8 FROM pg_namespace WHERE oid = {namespace} AND nspname = {schema}
    UNION ALL SELECT xmin::text::int8 FROM pg_class WHERE oid = ANY({relations})
    UNION ALL SELECT xmin::text::int8 FROM pg_attribute WHERE attrelid = ANY({relations})
    UNION ALL SELECT xmin::text::int8 FROM pg_attrdef WHERE adrelid = ANY({relations})
    UNION ALL SELECT xmin::text::int8 FROM pg_constraint WHERE conrelid = ANY({relations})
    UNION ALL SELECT xmin::text::int8 FROM pg_index WHERE indrelid = ANY({relations})
    UNION ALL SELECT xmin::text::int8 FROM pg_trigger WHERE tgrelid = ANY({relations}) AND NOT tgisinternal
    UNION ALL SELECT xmin::text::int8 FROM pg_rewrite WHERE ev_class = ANY({relations})
    UNION ALL SELECT xmin::text::int8 FROM pg_policy WHERE polrelid = ANY({relations})
) AS versions (version)
"""

# Statements that drop a test's objects. IF EXISTS, because an earlier CASCADE may have dropped one. They omit members
# of an extension, sequences of a table's columns, and functions of a range type, which are dropped with those.
_ADDED: LiteralString = """
WITH added AS (
    SELECT classid, objid FROM pg_depend AS made WHERE refclassid = 'pg_namespace'::regclass AND refobjid = {namespace}
        AND NOT EXISTS (SELECT FROM pg_depend AS whole WHERE whole.classid = made.classid AND whole.objid = made.objid
            AND whole.deptype = ANY('{{e,i}}') AND whole.refclassid <> 'pg_class'::regclass)
)
(SELECT format('DROP EXTENSION IF EXISTS %I CASCADE', extname) FROM pg_extension WHERE extnamespace = {namespace})
UNION ALL
(SELECT format('DROP %s IF EXISTS %I.%I CASCADE',
    CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE'
        WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END, {schema}, relname)
FROM pg_class WHERE oid IN (SELECT objid FROM added WHERE classid = 'pg_class'::regclass)
    AND oid <> ALL({relations}) AND relkind = ANY('{{r,p,v,m,S,f}}')
ORDER BY relkind = 'S')
UNION ALL
SELECT format('DROP ROUTINE IF EXISTS %s CASCADE', oid::regprocedure) FROM pg_proc
WHERE oid IN (SELECT objid FROM added WHERE classid = 'pg_proc'::regclass)
UNION ALL
SELECT format('DROP TYPE IF EXISTS %I.%I CASCADE', {schema}, typname) FROM pg_type
WHERE oid IN (SELECT objid FROM added WHERE classid = 'pg_type'::regclass)
"""

# A table that never had a row has no page.
_STATE: LiteralString = """
WITH sized AS (
    SELECT relname, pg_relation_size(oid) AS bytes FROM pg_class WHERE oid = ANY({relations}) AND relkind = 'r'
)
SELECT ({signature}), ARRAY({drops}), (SELECT coalesce(sum(bytes), 0) FROM sized),
    ARRAY(SELECT relname::text FROM sized WHERE bytes > 0),
    ARRAY(SELECT relname::text FROM pg_class
        WHERE oid = ANY({relations}) AND CASE relkind WHEN 'S' THEN pg_sequence_last_value(oid) END IS NOT NULL)
"""


class _State(NamedTuple):
    """The schema's state after a test."""

    signature: str
    drops: list[str]
    bytes: int
    tables: list[str]
    """The tables that may have rows."""
    sequences: list[str]


class LedgerSchema:
    """Lends the ledger's tables to one test after another, without rows or other objects in the schema.

    To empty tables is much faster than to create them. If a test changes the tables themselves (columns, grants,
    triggers, policies), they are created again for the next test, with another name. One connection serves all tests;
    if it is cut, the next test gets another.
    """

    def __init__(self) -> None:
        self._name = _new_name()
        self._locked: list[str] = []  # schemas that were not emptied, because a test left a transaction open
        self._dsn = ""
        self._connection: Connection | None = None
        self._oids: dict[str, Literal] = {}
        self._signature: str | None = None
        self._is_checked = False

    def lend(self) -> str:
        """The schema's name. The test may change the schema without a :meth:`prepare` or :meth:`empty`."""
        self._is_checked = False
        return self._name

    def prepare(self, dsn: str) -> None:
        """Create the tables, unless they exist unchanged."""
        if dsn != self._dsn:
            self._close()
            self._dsn, self._is_checked = dsn, False
        if not (self._is_checked or self._is_as_made()):
            self._execute(SQL("; ").join([_drop(self._name), SQL(_script(self._name))]))
            namespace, relations = self._row(SQL(_OIDS).format(schema=Literal(self._name)))
            self._oids = {"namespace": Literal(namespace), "relations": Literal(relations)}
            self._signature = self._state().signature
        self._is_checked = True

    def empty(self) -> None:
        """Remove a test's rows and objects, and the ledger's own tables if the test altered them.

        Raises LockNotAvailable if the test left a transaction open, which is a mistake in the test. The next test has
        tables under another name, so that only one test fails.
        """
        try:
            self._empty()
        except LockNotAvailable:
            self._locked.append(self._name)
            self._name = _new_name()
            raise

    def _empty(self) -> None:
        pristine, self._signature, self._is_checked = self._signature, None, False  # after a failure: new tables
        state = self._state()
        if state.signature != pristine or state.bytes > _MOST_BYTES:
            self._execute(_drop(self._name))
            self._name = _new_name()
            return
        statements = [SQL(drop) for drop in state.drops]
        self._execute(SQL("; ").join([*statements, *_clean(self._name, state)]))
        self._signature, self._is_checked = pristine, True

    @property
    def is_made(self) -> bool:
        """Whether there are tables to remove, including those that could not be emptied."""
        return self._signature is not None or bool(self._locked)

    def remove(self, dsn: str) -> None:
        """Remove the schema at the end of the run."""
        self._close()
        self._dsn = dsn
        self._execute(SQL("; ").join(map(_drop, [self._name, *self._locked])))
        self._close()

    def _is_as_made(self) -> bool:
        if self._signature is None:
            return False
        state = self._state()
        return state.signature == self._signature and not state.drops

    def _state(self) -> _State:
        parts = {"schema": Literal(self._name), **self._oids}
        signature, drops = SQL(_SIGNATURE).format(**parts), SQL(_ADDED).format(**parts)
        return _State(*self._row(SQL(_STATE).format(signature=signature, drops=drops, **parts)))

    def _row(self, query: Composed) -> tuple[Any, ...]:
        cursor = self._execute(query)
        cursor.nextset()
        (row,) = cursor.fetchall()
        return row

    def _execute(self, script: Composed) -> Cursor:
        """Run the statements in one transaction; if the connection was cut, again on a new one."""
        script = SQL("SET LOCAL lock_timeout = {}; ").format(_LOCK_TIMEOUT) + script
        if self._connection is not None:
            try:
                return self._connection.execute(script)
            except LockNotAvailable:
                raise
            except OperationalError:  # a test, a server or a pooler has ended the session
                self._close()
        self._connection = connect(self._dsn, autocommit=True, prepare_threshold=None)
        return self._connection.execute(script)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _drop(name: str) -> Composed:
    return SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(name))


def _new_name() -> str:
    return f"seekpoint_{secrets.token_hex(6)}"


def _script(name: str) -> str:
    return _any_script().replace(f'"{_ANY_SCHEMA}"', f'"{name}"')


@cache
def _any_script() -> str:
    return schema.sql(schema=_ANY_SCHEMA)


def _clean(name: str, state: _State) -> list[Composed]:
    """Statements that delete all rows, children first, and reset the revision, which tests of refusals change."""
    tables = [table.name for table in reversed(metadata.sorted_tables) if table.name in state.tables]
    deletes = [SQL("DELETE FROM {}").format(Identifier(name, table)) for table in tables]
    revision = SQL("UPDATE {} SET version_num = {head} WHERE version_num <> {head}")
    resets = [
        SQL("SELECT setval({}::regclass, 1, false)").format(Literal(Identifier(name, sequence).as_string()))
        for sequence in state.sequences
    ]
    return [*deletes, revision.format(Identifier(name, "alembic_version"), head=Literal(HEAD)), *resets]
