"""Chooses a write strategy from the number of rows and the results of the last transactions. No I/O."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

SMALL = 100  # rows: below, one statement beats COPY's round trips
LONGEST = 512  # most large transactions between two attempts at COPY into the table


class WriteStrategy(StrEnum):
    """How rows reach the table."""

    UNNEST = "unnest"  # all in one statement
    TEMP_TABLE = "temp_table"  # COPY into a temporary table, then INSERT .. ON CONFLICT from there
    COPY = "copy"  # COPY into the table itself, after a savepoint: succeeds while every key is new


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    """What a sink that merges rows did in one transaction or part.

    ``rows`` counts the incoming rows and tombstones, ``upserts`` and ``deletes`` rows of the table. ``fell_back``: COPY
    into the table met an existing key or a tombstone, and the rows were staged after all. ``pooled``: the connection is
    through a pooler.
    """

    strategy: WriteStrategy
    rows: int
    upserts: int
    deletes: int
    fell_back: bool = False
    pooled: bool = False


def described(*, direct: bool) -> dict[WriteStrategy, str]:
    """The write strategies, and when each is used; ``direct``: COPY into the table is possible."""
    return {
        WriteStrategy.UNNEST: f"fewer than {SMALL} rows in a transaction: one INSERT .. ON CONFLICT",
        WriteStrategy.COPY: "more rows, while all their keys are new: COPY into the table, after a savepoint"
        if direct
        else "never: the table has row security, or is a view",
        WriteStrategy.TEMP_TABLE: "more rows otherwise: COPY into a temporary table, then one INSERT .. ON CONFLICT",
    }


class WriteStrategies:
    """Chooses one sink's write strategy, and remembers the results.

    COPY into the table is tried as long as it succeeds. Each failure doubles the number of large transactions that are
    staged before the next attempt, each success halves it. So new keys are written at the speed of COPY, and a stream
    of updates wastes only one attempt in about 500 transactions, which fails at its first row.
    """

    def __init__(self) -> None:
        self.used: Counter[WriteStrategy] = Counter()
        self.conflicts = 0  # failed attempts at COPY into the table
        self.last: Wrote | None = None
        self.current: WriteStrategy | None = None  # of the last large transaction
        self._pause = self._wait = 0
        # The last statement was refused without a line: write the next rows by COPY into a temporary table, whose
        # errors have one.
        self._named = False

    def gathers(self, rows: int) -> bool:
        """Whether this number of rows is gathered for one statement."""
        return rows < SMALL

    @property
    def names_rows(self) -> bool:
        """Whether to stage rows unaggregated, because the last statement was refused without naming a row."""
        return self._named

    def choose(self, rows: int, *, deduped: bool, direct: bool) -> WriteStrategy:
        """The write strategy for this number of rows.

        ``deduped``: no two of them have the same key. ``direct``: the table takes COPY, and has the unique index.
        """
        if self.gathers(rows) and deduped and not self._named:
            return WriteStrategy.UNNEST
        if self.gathers(rows) or not deduped or not direct:
            return WriteStrategy.TEMP_TABLE
        if self._wait:
            self._wait -= 1
            return WriteStrategy.TEMP_TABLE
        return WriteStrategy.COPY

    def met_a_conflict(self) -> None:
        """Note that COPY into the table failed on an existing key."""
        self.conflicts += 1
        self._pause = self._wait = min(LONGEST, max(1, self._pause * 2))

    def was_refused(self) -> None:
        """Note that the server refused a row without naming it."""
        self._named = True

    def wrote(self, outcome: Wrote) -> None:
        """Note that all rows are written."""
        self.last, self._named = outcome, False
        self.used[outcome.strategy] += 1
        if outcome.strategy is WriteStrategy.COPY:
            self._pause //= 2
        if outcome.strategy is not WriteStrategy.UNNEST:
            self.current = outcome.strategy
