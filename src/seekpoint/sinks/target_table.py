"""Looks up the table that a sink's name refers to, once for each session; reruns a transaction if it has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
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

_LOOK = f"""
SELECT {PLAIN}, c.oid::text || ' ' || c.xmin::text, row_security_active(c.oid)
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""  # noqa: S608
# Errors after a change since this session looked. The table was replaced, perhaps by a view: wrong object type, object
# not in prerequisite state (a view that takes no rows), undefined table. Row security was enabled: feature not
# supported (COPY).
_CHANGED = frozenset({WRONG_OBJECT_TYPE, OBJECT_NOT_IN_PREREQUISITE_STATE, UNDEFINED_TABLE, FEATURE_NOT_SUPPORTED})


@dataclass(frozen=True, slots=True)
class TableLookup:
    """The table that a name refers to. ``state`` changes if the table is altered, or replaced under its name."""

    is_plain: bool
    state: str | None = None
    is_secured: bool = False  # row security is active for this role: the server refuses COPY


_known: WeakKeyDictionary[psycopg.Connection[Any], dict[tuple[str, ...], TableLookup]] = WeakKeyDictionary()
# Lookups of tables that refused rows, by engine. If a later lookup is equal, the table has not changed: its error is
# raised.
_refused: WeakKeyDictionary[Engine, set[TableLookup]] = WeakKeyDictionary()


def recalled(tx: Connection, path: Sequence[str]) -> TableLookup:
    """The table that the name referred to when this session first looked it up; later calls send no query."""
    cache, name = _known.setdefault(driver_of(tx), {}), tuple(path)
    if name not in cache:
        with driver_of(tx).cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(_LOOK, [quoted(*name)]).fetchone()
        cache[name] = TableLookup(False) if row is None else TableLookup(bool(row[0]), *row[1:])
    return cache[name]


def found_before(driver: psycopg.Connection[Any], path: Sequence[str]) -> TableLookup | None:
    """The lookup that this session has made of the name; None if it has made none."""
    return _known.get(driver, {}).get(tuple(path))


@contextmanager
def rerun_if_changed(tx: Connection, path: Sequence[str]) -> Iterator[None]:
    """Run the transaction again if the table ``path`` has changed: turn its error in the block into a transient one.

    A table that was replaced or altered after this session's lookup may refuse the rows. If the next lookup finds the
    same state, the table has not changed, and its error is raised as it is. A table that was not plain is looked up
    each time, because small batches take fewer round trips once its rule, view or row security has been dropped.
    """
    cache, name = _known.get(driver_of(tx), {}), tuple(path)
    was_known, refused = name in cache, _refused.setdefault(tx.engine, set())
    refused_before = frozenset(refused)  # a copy: later additions do not count
    if was_known and not cache[name].is_plain:
        _forget(tx, name)
    table = recalled(tx, name)
    if was_known and table in refused_before:  # another session of the pool has had its rows refused: look again
        _forget(tx, name)
        table, was_known = recalled(tx, name), False
    may_be_new = table.is_plain and table not in refused_before
    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        cause = driver_error(error)
        if sqlstate(error) not in _CHANGED or not (was_known or may_be_new):
            raise
        _forget(tx, name)
        refused.add(table)
        raise psycopg.errors.SerializationFailure(
            f"{'.'.join(name)} was changed after this session had read its definition ({cause}): it is read again"
        ) from error


def _forget(tx: Connection, name: tuple[str, ...]) -> None:
    _known.get(driver_of(tx), {}).pop(name, None)
