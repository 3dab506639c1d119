"""COPY into the table itself, chunk by chunk, after a savepoint: it succeeds while every key is new."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import psycopg
from sqlalchemy import Connection

from seekpoint.pipeline.sink import Row, RowRefused
from seekpoint.postgres.sqlstates import EXCLUSION_VIOLATION, UNIQUE_VIOLATION
from seekpoint.sinks.column_type import ColumnTypes
from seekpoint.sinks.copy import open_copy
from seekpoint.sinks.dedupe import Target

# The server may check another unique index before the index of the key, so an update can fail on the other index.
_CONFLICTS = frozenset({UNIQUE_VIOLATION, EXCLUSION_VIOLATION})


class DirectCopy:
    """Streams rows into the table: the server checks each while the next rows are decoded. Fails on an existing key.

    Two rows of one key are a conflict, too. ``chunks`` has all rows, so that another write strategy can write them.
    """

    def __init__(self, tx: Connection, target: Target, types: ColumnTypes) -> None:
        self.chunks: list[Sequence[Row]] = []
        self._stack = ExitStack()
        self._stack.enter_context(tx.begin_nested())
        allowed, event_rules = target.conversions, target.event_rules
        copy = open_copy(tx, target.path, lambda: target.columns, types, allowed, event_rules=event_rules)
        self._copy = self._stack.enter_context(copy)

    def write(self, rows: Sequence[Row]) -> None:
        self.chunks.append(rows)
        self._copy.write(rows)

    def close(self) -> bool:
        """End the COPY. Returns False, with nothing written, if a key exists already.

        Raises RowRefused for a row that no other write strategy would take either.
        """
        try:
            self._stack.close()
        except RowRefused as refused:
            if getattr(refused.cause, "sqlstate", None) in _CONFLICTS:
                return False
            raise
        # A deadlock with another writer of the same new keys: sorted rows avoid it.
        except psycopg.errors.DeadlockDetected:
            return False
        return True

    def undo(self, error: BaseException) -> None:
        """Roll back what was written. Raises RowRefused instead of ``error`` if the server has named a row."""
        self._stack.__exit__(type(error), error, error.__traceback__)
