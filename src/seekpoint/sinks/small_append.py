"""Few rows of ``Append`` by INSERT, sent together with another statement; COPY would take two round trips of its own.

:func:`insert_of_all` makes one INSERT that is sent with hold and advance. :func:`open_few` sends an INSERT for each row
whose answers come with advance (see ``DeferredStatements.send_rows``): the last rows of a transaction alone. An error
names no row then: the batch is run again, by COPY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection

from seekpoint.pipeline.sink import Row, Writer
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.round_trip import Statement, array, numbered
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.column_types import SAME_TYPES, types_recalled, types_then
from seekpoint.sinks.conversions import EXACT, Conversions
from seekpoint.sinks.copy import Texts, driver_of, flat_texts, open_copy, writing_cursor
from seekpoint.sinks.encoders import Unwritable
from seekpoint.sinks.insert import PARAMETERS, ROWS, insert
from seekpoint.sinks.target_table import found_before, recalled

MOST_ROWS_PIPELINED = 20  # rows; above, COPY is cheaper
MOST_RECORDS_IN_ONE_INSERT = 100  # records; above, COPY is cheaper than one INSERT of them all
MOST_BYTES = 1 << 20  # of keys and values, and of rows; above, the server would hold at once what COPY streams

Columns = Callable[[], Sequence[str] | None]


class _Few:
    """Gathers rows while they are few, and hands them to COPY as soon as they are not."""

    def __init__(self, most: int, open_copy: Callable[[], Writer]) -> None:
        self._most, self._open_copy = most, open_copy
        self._copy: Writer | None = None
        self.rows: list[Row] = []

    def write(self, rows: Sequence[Row]) -> None:
        if self._copy is None and len(self.rows) + len(rows) <= self._most:
            self.rows.extend(rows)
        else:
            self.hand_over().write(rows)

    def hand_over(self) -> Writer:
        """From here on by COPY."""
        if self._copy is None:
            self._copy = self._open_copy()
            if self.rows:
                self._copy.write(self.rows)
                self.rows = []
        return self._copy


@contextmanager
def open_few(tx: Connection, path: Sequence[str], columns: Columns, allowed: Conversions = EXACT) -> Iterator[Writer]:
    """Write to ``path`` until the block is left; as :func:`open_copy` does, or faster where the rows are few."""
    most = MOST_ROWS_PIPELINED if isinstance(tx, HandlerConnection) and tx.deferred.accepts_rows else 0
    with ExitStack() as stack:
        few = _Few(most, lambda: stack.enter_context(_open(tx, path, columns, allowed)))
        yield few
        if few.rows and not (recalled(tx, path).is_plain and _sent(tx, path, columns, allowed, few.rows)):
            few.hand_over()


def _open(
    tx: Connection, path: Sequence[str], columns: Columns, allowed: Conversions
) -> AbstractContextManager[Writer]:
    return open_copy(tx, path, columns, allowed=allowed, by_insert=recalled(tx, path).is_secured)


def _sent(tx: Connection, path: Sequence[str], columns: Columns, allowed: Conversions, rows: Sequence[Row]) -> bool:
    """Whether the rows were sent; those with a value that cannot be written are not: COPY names it."""
    names, types = tuple(columns() or ()), types_then(driver_of(tx), path)
    if not types.casts or not types.declared.keys() >= set(names):
        return False
    with writing_cursor(driver_of(tx)) as cursor:
        texts = Texts(cursor, names, types.columns, allowed)
        try:
            written = [texts.of(row) for row in rows]
        except (Unwritable, ValueError):  # also: a row of another width
            return False
    if sum(len(value) for row in written for value in row if value is not None) > MOST_BYTES:
        return False
    assert isinstance(tx, HandlerConnection)
    return tx.deferred.send_rows(
        insert(tuple(path), names), written, (SAME_TYPES, _check_parameters(path, names, types.declared))
    )


def _check_parameters(path: Sequence[str], names: Sequence[str], declared: Mapping[str, str]) -> list[Any]:
    """The parameters of SAME_TYPES."""
    by_name = sorted(names, key=str.encode)
    return [[declared[name] for name in by_name], quoted(*path), by_name]


def knows_plain_table(tx: HandlerConnection, path: Sequence[str]) -> bool:
    """Whether this session knows the table, and that INSERT and COPY do alike there; nothing is asked."""
    if not tx.deferred.is_allowed:
        return False
    driver = tx.deferred.driver
    found, types = found_before(driver, path), types_recalled(driver, path)
    return found is not None and found.is_plain and types is not None and types.casts


def insert_of_all(
    tx: HandlerConnection,
    path: Sequence[str],
    columns: Sequence[str] | None,
    rows: Sequence[Row],
    allowed: Conversions = EXACT,
) -> list[Statement] | None:
    """The rows as one INSERT, and a query that raises where the table was altered since this session asked.

    Only where :func:`knows_plain_table`. Empty where there is no row, None where COPY has to write or refuse one.
    """
    if not rows:
        return []
    driver = tx.deferred.driver
    types = types_recalled(driver, path)
    if types is None or not columns or not types.declared.keys() >= set(columns):
        return None
    if len(rows) > ROWS or len(rows) * len(columns) > PARAMETERS:
        return None
    try:
        values = flat_texts(driver, columns, types.columns, allowed, rows, most=MOST_BYTES)
    except Exception:  # noqa: BLE001 -- the dumpers raise what they like; COPY names the row, or streams large ones
        return None
    check = _check(tuple(path), tuple(columns), tuple(types.declared[name] for name in columns), driver.info.encoding)
    # Never prepared: the parameters' types would stay what they were when the table is altered.
    return [Statement(numbered(insert(tuple(path), tuple(columns), len(rows)))[0], values), check]


@lru_cache(maxsize=256)
def _check(path: tuple[str, ...], columns: tuple[str, ...], declared: tuple[str, ...], encoding: str) -> Statement:
    """SAME_TYPES, for a table whose columns were declared like this."""
    asked, table, names = _check_parameters(path, columns, dict(zip(columns, declared, strict=True)))
    same = [each.encode(encoding) for each in (array(asked), table, array(names))]
    return Statement(numbered(SAME_TYPES)[0], same, is_prepared=True)
