"""COPY into the table itself, chunk by chunk, after a savepoint: right while every key is new."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import psycopg
from sqlalchemy import Connection

from seekpoint.pipeline.sink import Row, RowRefused
from seekpoint.postgres.sqlstates import EXCLUSION_VIOLATION, UNIQUE_VIOLATION
from seekpoint.sinks.column_type import ColumnTypes
from seekpoint.sinks.conversions import Conversions
from seekpoint.sinks.copy import open_copy

# Another unique index may be looked at before the key's: then a row that is an update fails on that one, too.
_CONFLICTS = frozenset({UNIQUE_VIOLATION, EXCLUSION_VIOLATION})


class DirectCopy:
    """The server looks at each row while the next are decoded; it alone says whether a key is there already.

    Two rows of one key are a conflict, too. What was written is ``kept`` until it is taken, for another write strategy.
    """

    def __init__(
        self, tx: Connection, path: Sequence[str], columns: Sequence[str], types: ColumnTypes, allowed: Conversions
    ) -> None:
        self.kept: list[Sequence[Row]] = []
        self._stack = ExitStack()
        self._stack.enter_context(tx.begin_nested())
        self._copy = self._stack.enter_context(open_copy(tx, path, lambda: columns, types, allowed))

    def write(self, rows: Sequence[Row]) -> None:
        self.kept.append(rows)
        self._copy.write(rows)

    def close(self) -> bool:
        """Whether the server took all; if not, a key is there already, and nothing was written.

        Raises RowRefused for what no other write strategy would take either.
        """
        try:
            self._stack.close()
        except RowRefused as refused:
            if getattr(refused.cause, "sqlstate", None) in _CONFLICTS:
                return False
            raise
        except psycopg.errors.DeadlockDetected:  # with another writer of the same new keys; sorted, there is none
            return False
        return True

    def undo(self, error: BaseException) -> None:
        """Take back what was written. Raises what becomes of the error, where the server has said more."""
        self._stack.__exit__(type(error), error, error.__traceback__)
