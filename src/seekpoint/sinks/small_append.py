"""A few rows, by one statement each, pipelined: COPY would take two round trips, these take none.

Only the last rows of a transaction, and only where its next statement awaits them (see
``DeferredStatements.send_rows``). An error has no line then: the batch is run again, and comes here no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from sqlalchemy import Connection

from seekpoint.pipeline.sink import Row, Writer
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.column_types import SAME_TYPES, types_then
from seekpoint.sinks.copy import Texts, Unwritable, driver_of, open_copy, writing_cursor
from seekpoint.sinks.insert import insert
from seekpoint.sinks.target_table import recalled

FEW = 20  # rows; above, COPY is cheaper

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
def open_few(tx: Connection, path: Sequence[str], columns: Columns) -> Iterator[Writer]:
    """Write to ``path`` until the block is left; as :func:`open_copy` does, or faster where the rows are few."""
    most = FEW if isinstance(tx, HandlerConnection) and tx.deferred.accepts_rows else 0
    with ExitStack() as stack:
        few = _Few(most, lambda: stack.enter_context(_open(tx, path, columns)))
        yield few
        if few.rows and not (recalled(tx, path).is_plain and _left(tx, path, columns, few.rows)):
            few.hand_over()


def _open(tx: Connection, path: Sequence[str], columns: Columns) -> AbstractContextManager[Writer]:
    return open_copy(tx, path, columns, by_insert=recalled(tx, path).is_secured)


def _left(tx: Connection, path: Sequence[str], columns: Columns, rows: Sequence[Row]) -> bool:
    """Whether the rows were sent; those with a value that cannot be written are not: COPY names it."""
    names, types = tuple(columns() or ()), types_then(driver_of(tx), path)
    if not types.casts or not types.oids.keys() >= set(names):
        return False
    with writing_cursor(driver_of(tx)) as cursor:
        texts = Texts(cursor, names, types.json)
        try:
            written = [texts.of(row) for row in rows]
        except (Unwritable, ValueError):  # also: a row of another width
            return False
    by_name = sorted(names, key=str.encode)
    same = [[types.oids[name] for name in by_name], quoted(*path), by_name]
    assert isinstance(tx, HandlerConnection)
    return tx.deferred.send_rows(insert(tuple(path), names), written, (SAME_TYPES, same))
