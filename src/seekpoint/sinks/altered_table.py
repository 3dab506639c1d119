"""Runs a transaction again if its table was altered or replaced after the session looked it up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import psycopg
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
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.session_tables import TableLookup, forget, looked_up, session_table

# Errors that a change since this session's lookup may cause. The table was replaced, perhaps by a view: wrong object
# type, object not in prerequisite state (a view that takes no rows), undefined table. Row security was enabled: feature
# not supported (COPY).
_CHANGED = frozenset({WRONG_OBJECT_TYPE, OBJECT_NOT_IN_PREREQUISITE_STATE, UNDEFINED_TABLE, FEATURE_NOT_SUPPORTED})
# Lookups of tables that refused rows, by engine. If a later lookup is equal, the table has not changed, and its error
# is raised.
_refused: WeakKeyDictionary[Engine, set[TableLookup]] = WeakKeyDictionary()


@contextmanager
def rerun_if_changed(tx: Connection, path: Sequence[str]) -> Iterator[None]:
    """If the table ``path`` has changed, make its error in the block transient, so that the transaction runs again.

    A table that was replaced or altered after this session's lookup may refuse the rows. If the next lookup finds the
    same state, the table has not changed, and its error is raised as it is. A table that was not plain is looked up
    each time: once its rule, view or row security is dropped, small batches take fewer round trips.
    """
    driver, refused = driver_of(tx), _refused.setdefault(tx.engine, set())
    known, refused_before = session_table(driver, path).lookup, frozenset(refused)  # a copy: later ones do not count
    was_known = known is not None and known.is_plain
    if not was_known:
        forget(driver, path)
    table = looked_up(driver, path)
    if was_known and table in refused_before:  # the table refused rows of another session of the pool: look again
        forget(driver, path)
        table, was_known = looked_up(driver, path), False
    may_be_new = table.is_plain and table not in refused_before
    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        cause = driver_error(error)
        if sqlstate(error) not in _CHANGED or not (was_known or may_be_new):
            raise
        forget(driver, path)
        refused.add(table)
        raise psycopg.errors.SerializationFailure(
            f"{'.'.join(path)} was changed after this session had read its definition ({cause}): it is read again"
        ) from error
