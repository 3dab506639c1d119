"""The goals, and whether the rows of a report meet them."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from report import CPU, MEDIAN_OF, RATE, Row, pairs


@dataclass(frozen=True)
class Goal:
    """A figure that must be at least (or ``at_most``) the ``bar``, on this number of ``processors`` (None: any).

    With ``to``, it is the ratio of the ``key`` of question ``of`` to that of question ``to``, within each round.
    Without, it is the ``key`` of ``of``, in rows whose mode begins with ``case``; ``once``: one row is enough, because
    the script repeats itself. ``before`` is the figure when the goal was set, ``far_goal`` a much harder bar. ``limit``
    says what keeps the figure below the bar, and which benchmark shows it.
    """

    goal: str
    bar: float
    of: str
    to: str | None = None
    key: str = RATE
    case: str = ""
    at_most: bool = False
    once: bool = False
    processors: int | None = 2
    before: float | None = None
    far_goal: float | None = None
    limit: str = ""

    def figures(self, rows: Sequence[Row], suffix: str) -> list[float]:
        """The figure of each round that measured it."""
        of = self.of + suffix
        if self.to is not None:
            return pairs(rows, (of, None), (self.to + suffix, None), self.key)
        mine = [r for r in rows if r["question"] == of and str(r.get("mode", "")).startswith(self.case)]
        if self.key == CPU:
            return [1e6 * row["cpu_seconds"] / row["records"] for row in mine if row.get("cpu_seconds")]
        return [row[self.key] for row in mine if self.key in row]

    def judge(self, rows: Sequence[Row], processors: int) -> dict[str, Any]:
        """The goal with its figure; ``met`` is None if too few rounds measured it.

        Questions that were asked on other than the report's ``processors`` have the number in their name.
        """
        elsewhere = self.processors not in {None, processors}
        figures = self.figures(rows, f" ({self.processors} processors)" if elsewhere else "")
        figure = round(statistics.median(figures), 3) if figures else None
        met = None
        if figure is not None and (self.once or len(figures) >= MEDIAN_OF):
            met = (operator.le if self.at_most else operator.ge)(figure, self.bar)
        what = f"{self.key} of '{self.of}'" + (f" / '{self.to}', within a round" if self.to else "")
        of = f"median of {len(figures)} rounds" if len(figures) > 1 else "one run"
        how = f"{of}: {what}" if figures else f"not measured: {what}"
        if figures and met is None:
            how += f"; fewer than {MEDIAN_OF}: too few to decide"
        sign = "<=" if self.at_most else ">="
        return {
            "goal": self.goal,
            "processors": self.processors,
            "before": self.before,
            "bar": f"{sign} {self.bar:g}",
            "far_goal": None if self.far_goal is None else f"{sign} {self.far_goal:g}",
            "figure": figure,
            "least": round(min(figures), 3) if figures else None,
            "most": round(max(figures), 3) if figures else None,
            "rounds": len(figures),
            "met": met,
            "how": how,
            "limit": "" if met else self.limit,
        }


# -- what keeps figures below their bars: text of the page, with the benchmark that shows it ------------------------

_THREAD = (
    "The worker's own thread is the limit: fetching, decoding and writing take most of the elapsed time, and the server"
    " waits for it (*where each microsecond goes*). The hand-written loop with its offsets in Postgres has the same"
    " limit a little later (*the core*)."
)
_CPU = "The sum of the client library's threads, decoding and writing: *where each microsecond goes* has each part."
_SMALL = (
    "A worker asks for the topics' ids, and compares and advances its offsets; the loop sends an offset to Kafka"
    " (*records per transaction*: CPU µs a record; *operations*: topic ids)."
)
_TOPIC_IDS = (
    "Asking for a topic's id grows with its partitions, hold's statement with those that it locks"
    " (*operations*: topic ids, claims)."
)
_CLAIM = (
    "The statement that claims upserts a row of the ledger for each partition, and each becomes an object in Python"
    " (*operations*: claims, the time in the database beside the whole). It happens once in a rebalance."
)
_STATUS = "The rows of all groups are read at once, and each becomes an object in Python (*operations*: status)."
_MERGE = (
    "The worker reads and decodes the next batch while the server merges, but the server's merge of that batch waits"
    " for the end of the transaction before. *Ready rows by the upsert's SQL* (*upserts*) wait in the same way, and no"
    " client reads or decodes beside them: no worker with one connection can pass that."
)
_PEER = "The worker's own thread is the limit on our side (*where each microsecond goes*); the peer's rate is its own."
_OBSERVED = (
    "Each event is counted on the worker's thread; samples, mirror and collections take the interpreter from it for a"
    " moment, five to sixty times as often here as by default (*the ledger*: append, observed)."
)
_CHECK = "Rows that were sent together with a refused one are written again (*operations*: poison)."
_TWO = (
    "Each worker's own thread is the limit, as with one (*where each microsecond goes*). Two of them, two backends and"
    " the broker share four processors, so that two are less than twice as fast as one (*the core*: append, 2 workers)."
)
_LOCK = (
    "A merge of 1 % changes every hundredth row, so nearly every page; the first change of a page after a checkpoint is"
    " written to the WAL as a whole page, and the benchmark makes a checkpoint right before. For the table's pages that"
    " is done before the lock"
    " ([decision 25](decisions/0025-touch-the-changed-pages-before-the-merge-lock.md)), for the index's it"
    " cannot be. The table is also searched for keys that only the older code made or deleted"
    " (*reloads*)."
)


_once = partial(Goal, at_most=True, once=True)
_cpu = partial(Goal, key=CPU, at_most=True, far_goal=0.5, limit=_CPU)


def _lock(what: str, bar: float, case: str, limit: str = "") -> Goal:
    goal, case = f"{what} of two million rows: seconds under the lock", f"2,000,000 rows, {case}"
    return _once(goal, bar, "reload", key="lock_seconds", case=case, processors=None, limit=limit)


_RATIOS = (
    Goal("append ÷ ready rows by COPY", 0.48, "append", "floor", before=0.44, limit=_THREAD),
    Goal("append ÷ ready rows by COPY, primary key", 0.65, "append, key", "floor, key", before=0.5, limit=_THREAD),
)

GOALS = (
    *_RATIOS,
    _cpu("worker process, CPU µs a record", 2.1, "append", before=2.5),
    Goal(
        "1 record a transaction ÷ hand-written loop",
        0.9,
        "append, 1",
        "loop, 1",
        before=0.5,
        far_goal=1.5,
        limit=_SMALL,
    ),
    Goal("10 records a transaction ÷ hand-written loop", 0.9, "append, 10", "loop, 10", before=0.49, limit=_SMALL),
    Goal("100 records a transaction ÷ hand-written loop", 0.85, "append, 100", "loop, 100", before=0.64, limit=_SMALL),
    _once(
        "1,000 partitions owned, records in one: ms of hold, advance, topic ids and COMMIT",
        3,
        "commits, 1 of 1,000",
        key="ledger_p50_ms",
        case="1,000 partitions",
        before=16,
        far_goal=1,
        limit=_TOPIC_IDS,
    ),
    _once(
        "status of 1,000 partitions of 200 groups, with a month of samples, ms",
        1000,
        "status",
        key="whole_p50_ms",
        case="status, 1,000 partitions",
        limit=_STATUS,
    ),
    _once(
        "slowest page of the console, 1,000 partitions of 200 groups, with a month of samples, ms",
        200,
        "status",
        key="whole_p50_ms",
        case="slowest page, 1,000 partitions",
    ),
    _once(
        "claim of 1,000 partitions, ms",
        12,
        "claims, 1,000",
        key="claim_p50_ms",
        case="1000 partitions, analyzed",
        before=23,
        far_goal=8,
        limit=_CLAIM,
    ),
    Goal(
        "upsert, 100 % conflicts ÷ ready rows by the same SQL",
        0.9,
        "upsert, 100 % conflicts",
        "upsert sql, 100 % conflicts",
        before=0.8,
        far_goal=1.1,
        limit=_MERGE,
    ),
    Goal(
        "upsert, 50 % conflicts ÷ ready rows by the same SQL",
        0.95,
        "upsert, 50 % conflicts",
        "upsert sql, 50 % conflicts",
        before=0.86,
        far_goal=1.1,
        limit=_MERGE,
    ),
    *(
        Goal(f"sums ÷ upsert, {keys} keys", 0.8, f"sums, {keys} keys", f"replaced, {keys} keys")
        for keys in ("1,000", "100,000", "10,000,000")
    ),
    Goal(
        "append ÷ Flink XA",
        2.2,
        "append",
        "flink xa",
        limit=_PEER,
    ),
    Goal("upsert ÷ Flink upsert", 2.4, "upsert", "flink upsert", limit=_PEER),
    Goal(
        "append ÷ Connect insert",
        3.9,
        "append",
        "connect insert",
        limit=_PEER,
    ),
    Goal("upsert ÷ Connect upsert", 4.2, "upsert", "connect upsert", limit=_PEER),
    *(
        Goal(f"Debezium's events{kind} ÷ Debezium's JDBC sink", 3, f"debezium{kind}", f"connect changes-unnest{kind}")
        for kind in ("", ", no schemas")
    ),
    Goal(
        "append ÷ kafka-python, commit after each poll",
        9.9,
        "append",
        "seeds, sync",
        limit=_PEER,
    ),
    Goal(
        "append ÷ the same with crc32c",
        3,
        "append",
        "seeds, sync, crc32c",
        limit=_PEER,
    ),
    Goal(
        "one bad record in 1,000, refused by a CHECK ÷ no bad record",
        0.7,
        "poison",
        key="of_clean",
        case="Append, CHECK, 1 in 1,000",
        once=True,
        before=0.46,
        limit=_CHECK,
    ),
    Goal(
        "append with metrics, the tables for operators and the mirror ÷ append without",
        0.98,
        "append, observed",
        "append, unobserved",
        limit=_OBSERVED,
    ),
    *(replace(goal, processors=4, before=None) for goal in _RATIOS),
    Goal("two workers ÷ ready rows by COPY", 0.8, "append, 2 workers", "floor", processors=4, before=0.78, limit=_TWO),
    Goal("two workers ÷ Flink XA, two tasks", 2, "append, 2 workers", "flink xa, 2", processors=4),
    Goal("two workers ÷ Connect insert, two tasks", 2.5, "append, 2 workers", "connect insert, 2", processors=4),
    Goal("upsert, two workers ÷ Flink upsert, two tasks", 1.5, "upsert, 2 workers", "flink upsert, 2", processors=4),
    Goal("upsert, two workers ÷ Connect upsert, two tasks", 2, "upsert, 2 workers", "connect upsert, 2", processors=4),
    Goal(
        "a reload's staging by Spark's tasks ÷ Spark's JDBC writer",
        2.5,
        "staging, Spark",
        "staging, JDBC",
        processors=None,
    ),
    _lock("merge, 1 % changed,", 0.2, "merge, 1 % changed, any keys", _LOCK),
    _lock("swap, all changed,", 0.05, "swap"),
)
ASKED = {
    processors: tuple(
        dict.fromkeys(name for goal in GOALS for name in (goal.of, goal.to) if name and goal.processors == processors)
    )
    for processors in (2, 4)
}
"""By number of processors, the questions of its goals."""


def judge(rows: Sequence[Row], runs: Sequence[Row]) -> list[dict[str, Any]]:
    """Every goal, in order."""
    processors = runs[0]["cores_used"] if runs else 0
    return [goal.judge(rows, processors) for goal in GOALS]
