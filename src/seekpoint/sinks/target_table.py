"""What is under the name of a sink's table, as the session knows it, and a second try where that has changed."""

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
# Errors of a table that was exchanged since this session looked, for another or for a view: wrong object type, object
# not in prerequisite state (a view that takes no rows), undefined table. And of one whose row security was enabled
# since: feature not supported (COPY).
_CHANGED = frozenset({WRONG_OBJECT_TYPE, OBJECT_NOT_IN_PREREQUISITE_STATE, UNDEFINED_TABLE, FEATURE_NOT_SUPPORTED})


@dataclass(frozen=True, slots=True)
class Found:
    """What is under a name. ``state`` is another one as soon as it is altered, or something else takes its name."""

    is_plain: bool
    state: str | None = None
    is_secured: bool = False  # row security is active for this role: the server refuses COPY


_known: WeakKeyDictionary[psycopg.Connection[Any], dict[tuple[str, ...], Found]] = WeakKeyDictionary()
# What took no rows, by engine: found in the same state once more, it has not changed, and its error is raised.
_refused: WeakKeyDictionary[Engine, set[Found]] = WeakKeyDictionary()


def recalled(tx: Connection, path: Sequence[str]) -> Found:
    """What was there when this session looked; it does so once for each name."""
    known, name = _known.setdefault(driver_of(tx), {}), tuple(path)
    if name not in known:
        with driver_of(tx).cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(_LOOK, [quoted(*name)]).fetchone()
        known[name] = Found(False) if row is None else Found(bool(row[0]), *row[1:])
    return known[name]


def found_before(driver: psycopg.Connection[Any], path: Sequence[str]) -> Found | None:
    """What was there when this session looked; None where it has not looked yet."""
    return _known.get(driver, {}).get(tuple(path))


@contextmanager
def rerun_if_changed(tx: Connection, path: Sequence[str]) -> Iterator[None]:
    """Rows for ``path`` are written within the block; where the table has changed, the transaction is run again.

    A table that is exchanged or altered after the session's look may refuse the rows: then the block ends with a
    transient error. What is found then in the same state has not changed: its error is raised as it is.

    What was no plain table is checked again each time: once the rule, the view or the row security is gone, small
    batches are sent in two round trips again.
    """
    known, name = _known.get(driver_of(tx), {}), tuple(path)
    was_known, refused = name in known, _refused.setdefault(tx.engine, set())
    refused_before = frozenset(refused)  # before the look: what others find out from here on says nothing about it
    if was_known and not known[name].is_plain:
        _forget(tx, name)
    found = recalled(tx, name)
    if was_known and found in refused_before:  # another session of the pool has found out meanwhile
        _forget(tx, name)
        found, was_known = recalled(tx, name), False
    may_be_new = found.is_plain and found not in refused_before
    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        cause = driver_error(error)
        if sqlstate(error) not in _CHANGED or not (was_known or may_be_new):
            raise
        _forget(tx, name)
        refused.add(found)
        raise psycopg.errors.SerializationFailure(
            f"{'.'.join(name)} is not what it was when this session looked ({cause}): it will be read again"
        ) from error


def _forget(tx: Connection, name: tuple[str, ...]) -> None:
    _known.get(driver_of(tx), {}).pop(name, None)
