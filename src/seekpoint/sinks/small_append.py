"""Writes a small ``Append`` batch with one INSERT, sent with a statement of the ledger; COPY takes two round trips.

An error of this INSERT names no row, so the batch is written again with COPY.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import psycopg
from sqlalchemy import Connection

from seekpoint.pipeline.sink import Row
from seekpoint.postgres.round_trip import Statement, array, positional
from seekpoint.sinks.column_types import SAME_TYPES, as_read
from seekpoint.sinks.conversions import EXACT, Conversions
from seekpoint.sinks.copy import driver_of, flat_texts
from seekpoint.sinks.insert import PARAMETERS, ROWS, insert
from seekpoint.sinks.session_tables import session_table

MOST_RECORDS_IN_ONE_INSERT = 100  # records; above, COPY is cheaper than one INSERT
MOST_BYTES = 1 << 20  # bytes of keys and values, and of rows; above, COPY streams what one INSERT would hold in memory


def knows_plain_table(tx: Connection, path: Sequence[str]) -> bool:
    """Whether this session knows that INSERT and COPY have the same effect on the table; no query is sent.

    False if the application has set a cursor class, because that class must see each statement.
    """
    driver = driver_of(tx)
    if driver.cursor_factory is not psycopg.Cursor:
        return False
    table = session_table(driver, path)
    return table.lookup is not None and table.lookup.is_plain and table.types is not None and table.types.casts


def insert_of_all(
    tx: Connection,
    path: Sequence[str],
    columns: Sequence[str] | None,
    rows: Sequence[Row],
    allowed: Conversions = EXACT,
) -> list[Statement] | None:
    """The rows as one INSERT, and a query that fails if the table was altered after this session read its types.

    Requires :func:`knows_plain_table`. Empty without rows; None if only COPY can write the rows, or refuse one.
    """
    if not rows:
        return []
    driver = driver_of(tx)
    types = session_table(driver, path).types
    if types is None or not columns or not types.declared.keys() >= set(columns):
        return None
    if len(rows) > ROWS or len(rows) * len(columns) > PARAMETERS:
        return None
    try:
        values = flat_texts(driver, columns, types.columns, allowed, rows, most=MOST_BYTES)
    except Exception:  # noqa: BLE001 -- dumpers may raise anything; COPY names the row, or streams large ones
        return None
    declared = tuple((name, types.declared[name]) for name in columns)
    check = _check(tuple(path), declared, driver.info.encoding)
    # Never prepared: a prepared statement keeps the parameters' types even if the table is altered.
    return [Statement(positional(insert(tuple(path), tuple(columns), len(rows)))[0], values), check]


@lru_cache(maxsize=256)
def _check(path: tuple[str, ...], declared: tuple[tuple[str, str], ...], encoding: str) -> Statement:
    """A query that fails if the columns' declarations have changed."""
    declarations, names, table = as_read(path, dict(declared))
    values = [text.encode(encoding) for text in (array(declarations), array(names), table)]
    return Statement(positional(SAME_TYPES)[0], values, is_prepared=True)
