"""Reads the table all the time, and checks each answer: the proof that no reader sees two versions."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import monotonic
from typing import Self

from sqlalchemy import Engine, Row, text

from demo.reload.handling import GROUP, TABLE, VERSIONS

PAUSE = 0.01  # seconds between two polls; or as long as the last one took, so that polls are not the main load

_PRICE = " ".join(f"WHEN {number} THEN {version.sql}" for number, version in VERSIONS.items())
# One statement, so one moment: the rows, the version that the ledger names, and the offsets. Without holes in the
# topic the rows of one partition have the offsets 0 to its position - 1, whose sum is known.
POLL = text(
    f"""
    SELECT count(*) AS rows, coalesce(sum(topic_offset), 0) AS sum,
           count(*) FILTER (WHERE cents = CASE g.version {_PRICE} END) AS of_version,
           g.version, p.rows AS due, p.sum AS sum_due
    FROM (SELECT version FROM seekpoint.consumer_group WHERE name = '{GROUP}') AS g
    CROSS JOIN (
        SELECT sum(next_offset) AS rows, sum(next_offset * (next_offset - 1) / 2) AS sum
        FROM seekpoint.partition_offset WHERE consumer_group = '{GROUP}'
    ) AS p
    LEFT JOIN {TABLE} ON true
    GROUP BY g.version, p.rows, p.sum
    """
)


@dataclass(frozen=True, slots=True)
class Polls:
    """How often the table was read, and how often it did not match the ledger at that moment."""

    polls: int = 0
    torn: int = 0

    def since(self, before: Polls) -> Polls:
        """The polls since ``before``."""
        return Polls(self.polls - before.polls, self.torn - before.torn)


def complaint(row: Row[tuple[int, ...]], before: int) -> str | None:
    """What is wrong with an answer, or None; ``before`` is the number of rows in the last answer."""
    if row.of_version != row.rows:
        return f"{row.rows - row.of_version:,} of {row.rows:,} rows are not of version {row.version}"
    if (row.rows, row.sum) != (row.due, row.sum_due):
        return f"{row.rows:,} rows (offsets' sum {row.sum}) where the ledger has {row.due:,} ({row.sum_due})"
    if row.rows < before:
        return f"{row.rows:,} rows, fewer than the {before:,} before"
    return None


class Reader:
    """Polls on its own connection until the block ends."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._stop = engine, threading.Event()
        self._turn = threading.Condition()
        self._polls, self._torn, self._rows = 0, 0, 0
        self.complaints: list[str] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def count(self) -> Polls:
        """The polls so far; raises the error that ended the reading."""
        with self._turn:
            if self._error is not None:
                raise self._error
            return Polls(self._polls, self._torn)

    def once_more(self, patience: float) -> bool:
        """Wait until a poll has begun and ended after this call; False if none has after ``patience`` seconds."""
        with self._turn:
            wanted = self._polls + 2  # the running poll may have begun before
            return self._turn.wait_for(lambda: self._polls >= wanted or self._error is not None, patience)

    def _read(self) -> None:
        try:
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("SET max_parallel_workers_per_gather = 0"))
                pause = PAUSE
                while not self._stop.wait(pause):
                    began = monotonic()
                    row = connection.execute(POLL).one()
                    self._judge(row)
                    pause = max(PAUSE, monotonic() - began)
        except BaseException as error:  # noqa: BLE001 -- raised by count
            with self._turn:
                self._error = error
                self._turn.notify_all()

    def _judge(self, row: Row[tuple[int, ...]]) -> None:
        problem = complaint(row, self._rows)
        with self._turn:
            self._polls += 1
            if problem is not None:
                self._torn += 1
                self.complaints.append(problem)
            self._rows = row.rows
            self._turn.notify_all()
