"""Where a sink's rows go: to the table it names or, where that is a view over generations, to the one that counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from seekpoint.postgres.sqlstates import (
    FEATURE_NOT_SUPPORTED,
    OBJECT_NOT_IN_PREREQUISITE_STATE,
    UNDEFINED_TABLE,
    WRONG_OBJECT_TYPE,
    driver_error,
    sqlstate,
)
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.column_types import PLAIN
from seekpoint.sinks.copy import driver_of

COLUMN = "seekpoint_generation"  # of the tables of such a view: which generation they are

# A view over generations is one that reads a ledger's pointer; which ledger's, the view alone knows.
_LOOK = f"""
SELECT {PLAIN}, n.nspname, c.relname,
       c.oid::text || ' ' || c.xmin::text, row_security_active(c.oid), (
    SELECT l.nspname FROM pg_rewrite r
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class g ON g.oid = d.refobjid JOIN pg_namespace l ON l.oid = g.relnamespace
    WHERE c.relkind = 'v' AND r.ev_class = c.oid AND g.relkind = 'r' AND g.relname = 'generation'
          AND (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = g.oid
               AND a.attname IN ('table_schema', 'table_name', 'number', 'current', 'parent')) = 5
    LIMIT 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""  # noqa: S608
_CURRENT = sql.SQL("SELECT current FROM {}.generation WHERE table_schema = %s AND table_name = %s")
# Errors of a table whose generations were enabled or disabled since this session looked: wrong object type, object not
# in prerequisite state (a view that takes no rows), undefined table. And of one whose row security was enabled since:
# feature not supported (COPY).
_MOVED = frozenset({WRONG_OBJECT_TYPE, OBJECT_NOT_IN_PREREQUISITE_STATE, UNDEFINED_TABLE, FEATURE_NOT_SUPPORTED})


@dataclass(frozen=True, slots=True)
class Found:
    """What is under a name. ``ledger`` is the schema of the pointer, where it is a view over generations.

    ``state`` is another one as soon as it is renamed, or something else takes its name.
    """

    is_plain: bool
    path: tuple[str, ...]
    state: str | None = None
    is_secured: bool = False  # row security is active for this role: the server refuses COPY
    ledger: str | None = None

    def current(self, tx: Connection) -> tuple[str, ...] | None:
        """The table of the generation that counts, as of this statement; None where the pointer does not know it."""
        assert self.ledger is not None
        statement = _CURRENT.format(sql.Identifier(self.ledger))
        row = _cursor(tx).execute(statement, self.path).fetchone()
        return None if row is None else (self.path[0], row[0])


_known: WeakKeyDictionary[psycopg.Connection[Any], dict[tuple[str, ...], Found]] = WeakKeyDictionary()
# What took no rows, by engine: found in the same state once more, it has not been moved, and its error is raised.
_refused: WeakKeyDictionary[Engine, set[Found]] = WeakKeyDictionary()


def look(tx: Connection, path: Sequence[str]) -> Found:
    """What is there now."""
    row = _cursor(tx).execute(_LOOK, [quoted(*path)]).fetchone()
    return Found(False, tuple(path)) if row is None else Found(bool(row[0]), (row[1], row[2]), *row[3:])


def recalled(tx: Connection, path: Sequence[str]) -> Found:
    """What was there when this session looked; it does so once for each name."""
    known, name = _known.setdefault(driver_of(tx), {}), tuple(path)
    if name not in known:
        known[name] = look(tx, name)
    return known[name]


def found_before(driver: psycopg.Connection[Any], path: Sequence[str]) -> Found | None:
    """What was there when this session looked; None where it has not looked yet."""
    return _known.get(driver, {}).get(tuple(path))


@contextmanager
def target_path(tx: Connection, path: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The table that rows for ``path`` are written to within the block.

    After the locks on the offsets it stays that one: a cut-over takes them, too. Sessions that hold none, or whose
    look is from before, may meet a table whose generations were enabled or disabled, and takes no rows: then the block
    ends with an error that passes, and the transaction is run again. What is found then in the same state was not
    moved: its error is raised as it is.
    """
    known, name = _known.get(driver_of(tx), {}), tuple(path)
    was_known, refused = name in known, _refused.setdefault(tx.engine, set())
    refused_before = frozenset(refused)  # before the look: what others find out from here on says nothing about it
    found = recalled(tx, name)
    if was_known and found in refused_before:  # another session of the pool has found out meanwhile
        _forget(tx, name)
        found, was_known = recalled(tx, name), False
    where: tuple[str, ...] | None = name
    if found.ledger is not None and (where := found.current(tx)) is None:
        _forget(tx, name)  # it was given up
        found = recalled(tx, name)
        was_known, where = False, name if found.ledger is None else found.current(tx)
    may_be_new = (found.is_plain or found.ledger is not None) and found not in refused_before
    try:
        yield where or name
    except (psycopg.Error, DBAPIError) as error:
        cause = driver_error(error)
        if sqlstate(error) not in _MOVED or not (was_known or may_be_new):
            raise
        _forget(tx, name)
        refused.add(found)
        raise psycopg.errors.SerializationFailure(
            f"{'.'.join(name)} is not what it was when this session looked ({cause}): it will be read again"
        ) from error


def _forget(tx: Connection, name: tuple[str, ...]) -> None:
    _known.get(driver_of(tx), {}).pop(name, None)


def _cursor(tx: Connection) -> psycopg.Cursor[tuple[Any, ...]]:
    return driver_of(tx).cursor(row_factory=tuple_row)
