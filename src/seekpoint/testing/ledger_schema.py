"""A schema with the ledger's tables that the tests of one process share: each of them finds it empty."""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any, cast

from psycopg import Connection, connect
from psycopg.rows import scalar_row
from psycopg.sql import SQL, Composed, Identifier

from seekpoint import schema
from seekpoint.ledger.schema_revision import HEAD
from seekpoint.ledger.tables import metadata

_ANY_SCHEMA = "ANY SCHEMA"  # a name that must be quoted, so that each of its places in the script can be found
_MOST_BYTES = 4_000_000  # of all tables: beyond that, deleted rows would slow down the tests that follow

# Each catalog row of the schema and what is in it, by its version: whatever DDL touches gets a new xmin.
_SIGNATURE = """
WITH relation AS (SELECT c.oid, c.xmin FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s)
SELECT md5(string_agg(version, ',' ORDER BY version)) FROM (
    SELECT 'n' || oid || ' ' || xmin AS version FROM pg_namespace WHERE nspname = %(schema)s
    UNION ALL SELECT 'r' || oid || ' ' || xmin FROM relation
    UNION ALL SELECT 'a' || a.attrelid || ' ' || a.attnum || ' ' || a.xmin
        FROM pg_attribute AS a JOIN relation ON relation.oid = a.attrelid
    UNION ALL SELECT 'd' || d.oid || ' ' || d.xmin FROM pg_attrdef AS d JOIN relation ON relation.oid = d.adrelid
    UNION ALL SELECT 'c' || k.oid || ' ' || k.xmin FROM pg_constraint AS k JOIN relation ON relation.oid = k.conrelid
    UNION ALL SELECT 't' || t.oid || ' ' || t.xmin
        FROM pg_trigger AS t JOIN relation ON relation.oid = t.tgrelid WHERE NOT t.tgisinternal
    UNION ALL SELECT 'p' || p.oid || ' ' || p.xmin FROM pg_policy AS p JOIN relation ON relation.oid = p.polrelid
) AS versions
"""

# How to remove what a test made. What depends on it goes with it (CASCADE), so that a later line may find nothing; an
# extension takes its members with it, and a table the sequences of its columns.
_ADDED = """
WITH member AS (SELECT classid, objid FROM pg_depend WHERE deptype = 'e')
(SELECT format('DROP EXTENSION IF EXISTS %%I CASCADE', extname)
FROM pg_extension JOIN pg_namespace AS n ON n.oid = extnamespace WHERE nspname = %(schema)s)
UNION ALL
(SELECT format('DROP %%s IF EXISTS %%I.%%I CASCADE',
    CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE'
        WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END, nspname, relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
WHERE nspname = %(schema)s AND relkind = ANY('{r,p,v,m,S,f,c}') AND relname <> ALL(%(relations)s)
    AND NOT EXISTS (SELECT FROM member WHERE classid = 'pg_class'::regclass AND objid = c.oid)
ORDER BY relkind = 'S')
UNION ALL
SELECT format('DROP ROUTINE IF EXISTS %%s CASCADE', p.oid::regprocedure)
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace WHERE nspname = %(schema)s
    AND NOT EXISTS (SELECT FROM member WHERE classid = 'pg_proc'::regclass AND objid = p.oid)
UNION ALL
SELECT format('DROP TYPE IF EXISTS %%I.%%I CASCADE', nspname, typname)
FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = typnamespace WHERE nspname = %(schema)s AND typtype = ANY('{e,d,r}')
    AND NOT EXISTS (SELECT FROM member WHERE classid = 'pg_type'::regclass AND objid = t.oid)
"""

_RELATIONS = """
SELECT relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = %(schema)s
"""

_BYTES = """
SELECT coalesce(sum(pg_relation_size(c.oid)), 0) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
WHERE nspname = %(schema)s AND relkind = 'r'
"""

_USED_SEQUENCES = """
SELECT format('%%I.%%I', schemaname, sequencename) FROM pg_sequences
WHERE schemaname = %(schema)s AND last_value IS NOT NULL
"""


class LedgerSchema:
    """Lends the ledger's tables to one test after another, without rows and with nothing else in their schema.

    Emptying them takes a small part of the time in which they are made. A test may change the tables themselves
    (columns, grants, triggers, policies): then they are made again for the next test, under another name.
    """

    def __init__(self) -> None:
        self.name = _new_name()
        self._dsn: str | None = None
        self._signature: str | None = None
        self._relations: list[str] = []

    def prepare(self, dsn: str) -> None:
        """Make the tables, unless they are there as they were made."""
        self._dsn = dsn
        with _transaction(dsn) as tx:
            if self._signature is None or self._signature != self._sign(tx):
                tx.execute(_drop(self.name))
                tx.execute(_script().replace(f'"{_ANY_SCHEMA}"', f'"{self.name}"').encode())
                self._relations = _scalars(tx, _RELATIONS, schema=self.name)
                self._signature = self._sign(tx)

    def empty(self) -> None:
        """Remove what a test has written and made; where it changed the ledger's own tables, remove them as well.

        Raises LockNotAvailable where the test left a transaction open: a mistake to hear about, not to wait for.
        """
        assert self._dsn is not None
        pristine, self._signature = self._signature, None  # where this fails, the next test gets new tables
        with _transaction(self._dsn) as tx:
            tx.execute("SET LOCAL lock_timeout = '10s'")
            for statement in _scalars(tx, _ADDED, schema=self.name, relations=self._relations):
                tx.execute(statement.encode())
            if self._sign(tx) != pristine or _scalars(tx, _BYTES, schema=self.name)[0] > _MOST_BYTES:
                tx.execute(_drop(self.name))
                self.name = _new_name()
                return
            tx.execute(_deletes(self.name))
            tx.execute(_revision(self.name), [HEAD])
            for sequence in _scalars(tx, _USED_SEQUENCES, schema=self.name):
                tx.execute("SELECT setval(%s::regclass, 1, false)", [sequence])
        self._signature = pristine

    @property
    def is_made(self) -> bool:
        """Whether the tables are there."""
        return self._signature is not None

    def remove(self, dsn: str) -> None:
        """Remove the schema at the end of the run."""
        with _transaction(dsn) as tx:
            tx.execute(_drop(self.name))

    def _sign(self, tx: Connection) -> str | None:
        """Which versions of which catalog rows the schema has; None where there is no schema."""
        return cast("str | None", _scalars(tx, _SIGNATURE, schema=self.name)[0])


def _transaction(dsn: str) -> Connection:
    """A connection for one transaction: tests may close or replace whatever is between them and the server."""
    return connect(dsn, prepare_threshold=None)


def _scalars(tx: Connection, query: str, **values: Any) -> list[Any]:
    with tx.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(query.encode(), values).fetchall()


def _drop(name: str) -> Composed:
    return SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(name))


def _new_name() -> str:
    return f"seekpoint_{secrets.token_hex(6)}"


@cache
def _script() -> str:
    return schema.sql(schema=_ANY_SCHEMA)


@cache
def _deletes(name: str) -> Composed:
    """One statement for each table, children first."""
    tables = [Identifier(name, table.name) for table in reversed(metadata.sorted_tables)]
    return SQL("; ").join(SQL("DELETE FROM {}").format(table) for table in tables)


def _revision(name: str) -> Composed:
    """The revision as it was: tests of refusals store another one."""
    return SQL("UPDATE {} SET version_num = %s").format(Identifier(name, "alembic_version"))
