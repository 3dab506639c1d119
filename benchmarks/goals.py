"""The goals, as data; and whether rows meet them."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from report import MEDIAN_OF, RATE, Row, pairs


@dataclass(frozen=True)
class Goal:
    """A figure that must be at least (or ``at_most``) the ``bar``.

    With ``to``: the ratio of ``key`` of the question ``of`` to the same of ``to``, round by round. Without: the figure
    ``key`` of ``of`` itself, in the rows whose mode begins with ``case``; of a script that repeats on its own, one row
    is enough (``once``).
    """

    goal: str
    bar: float
    of: str
    to: str | None = None
    key: str = RATE
    case: str = ""
    at_most: bool = False
    once: bool = False

    def figures(self, rows: Sequence[Row]) -> list[float]:
        """One for each round that measured it."""
        if self.to is not None:
            return pairs(rows, (self.of, None), (self.to, None), self.key)
        return [
            row[self.key]
            for row in rows
            if row["question"] == self.of and str(row.get("mode", "")).startswith(self.case) and self.key in row
        ]

    def judge(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The goal with its figure; ``met`` is None where too few rounds measured it."""
        found = self.figures(rows)
        figure = round(statistics.median(found), 3) if found else None
        met = None
        if figure is not None and (self.once or len(found) >= MEDIAN_OF):
            met = (operator.le if self.at_most else operator.ge)(figure, self.bar)
        what = f"{self.key} of '{self.of}'" + (f" / '{self.to}', within a round" if self.to else "")
        how = f"median of {len(found)} rounds: {what}" if found else f"not measured: {what}"
        if found and met is None:
            how += f"; fewer than {MEDIAN_OF}, so nothing is said"
        bar = f"{'<=' if self.at_most else '>='} {self.bar:g}"
        return {"goal": self.goal, "bar": bar, "figure": figure, "met": met, "how": how}


_dearer = partial(Goal, key="dearer_percent", at_most=True)


def _claim(what: str, key: str) -> Goal:
    goal, case = f"claim of 1,000 partitions: {what}", "1000 partitions, analyzed"
    return Goal(goal, 3, "claims", key=key, case=case, at_most=True, once=True)


def _lock(what: str, bar: float, case: str) -> Goal:
    goal, case = f"{what} of two million rows: seconds under the lock", f"2,000,000 rows, {case}"
    return Goal(goal, bar, "reload", key="lock_seconds", case=case, at_most=True, once=True)


GOALS = (
    Goal("append, of the COPY floor without a primary key", 0.65, "append", "floor"),
    Goal("append, of the COPY floor with a primary key", 0.8, "append, key", "floor, key"),
    Goal("append, of the bare streamed loop", 0.9, "append", "bare"),
    Goal("append with a key, of the bare streamed loop with a key", 0.9, "append, key", "bare, key"),
    Goal("append, to Flink's XA mode: one slot, one worker", 2, "append", "flink xa"),
    Goal("append, to Flink's XA mode: two slots, two workers", 2, "append, 2 workers", "flink xa, 2"),
    Goal("append, to Connect's insert: one task, one worker", 2.5, "append", "connect insert"),
    Goal("append, to Connect's insert: two tasks, two workers", 2.5, "append, 2 workers", "connect insert, 2"),
    Goal("upsert, to Flink's: one slot, one worker", 1.5, "upsert", "flink upsert"),
    Goal("upsert, to Flink's: two slots, two workers", 1.5, "upsert, 2 workers", "flink upsert, 2"),
    Goal("upsert, to Connect's: one task, one worker", 2, "upsert", "connect upsert"),
    Goal("upsert, to Connect's: two tasks, two workers", 2, "upsert, 2 workers", "connect upsert, 2"),
    Goal("append, to the seeds' synchronous loop, which writes nothing", 10, "append", "seeds, sync"),
    Goal("append, to the same loop with crc32c", 4, "append", "seeds, sync, crc32c"),
    _dearer("the ledger's statements, at 1,000 records a transaction: percent dearer", 2, "ledger, 1,000"),
    _dearer("one record a transaction: the ledger over the same insert alone, percent dearer", 15, "small"),
    _claim("the statement that claims, in the database, milliseconds", "in_database_p50_ms"),
    _claim("the whole of Ledger.claim, milliseconds", "claim_p50_ms"),
    Goal("a reload's staging by Spark's tasks, to Spark's JDBC writer", 2.5, "staging, Spark", "staging, JDBC"),
    _lock("merge, 1 % changed,", 0.2, "merge, 1 % changed, any keys"),
    _lock("generation, all changed,", 0.05, "generation"),
    _lock("swap, all changed,", 0.05, "swap"),
)


def judge(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every goal, in order."""
    return [goal.judge(rows) for goal in GOALS]
