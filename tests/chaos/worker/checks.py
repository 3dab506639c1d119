"""The checks: a sampler that checks snapshots while faults happen, and the account at the end of each round.

They read the database directly, never through a proxy, and share no code with the library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from support.background import Background

TABLE = "chaos_results"
SUMS = "chaos_sums"
ACCOUNTED = "chaos_accounted"  # a view: the table's rows, and the dead letters

# One snapshot: the position of each partition, and what was applied or dead-lettered in it.
SNAPSHOT = """
SELECT o.partition, o.next_offset, count(r."offset"), count(DISTINCT r."offset"), min(r."offset"), max(r."offset")
FROM seekpoint.partition_offset o
LEFT JOIN chaos_accounted r ON r.topic = o.topic AND r.partition = o.partition
WHERE o.topic = %s
GROUP BY o.partition, o.next_offset
ORDER BY o.partition
"""
DISORDER = """
SELECT partition, "offset", before, seq FROM (
  SELECT partition, "offset", seq, lag("offset") OVER (PARTITION BY partition ORDER BY seq) AS before
  FROM chaos_results WHERE topic = %s) AS rows
WHERE "offset" <= before ORDER BY seq LIMIT 20
"""
TWICE = """
SELECT partition, "offset", count(*), array_agg(worker ORDER BY seq) FROM chaos_accounted WHERE topic = %s
GROUP BY partition, "offset" HAVING count(*) > 1 ORDER BY partition, "offset"
"""
LOST = """
SELECT e.partition, n FROM unnest(%s::int[], %s::bigint[], %s::bigint[]) AS e(partition, low, high)
CROSS JOIN generate_series(e.low, e.high - 1) AS n
WHERE NOT EXISTS (SELECT FROM chaos_accounted r WHERE r.topic = %s AND r.partition = e.partition AND r."offset" = n)
ORDER BY e.partition, n
"""
STRANGE = """
SELECT r.partition, r."offset", r.worker FROM chaos_accounted r
LEFT JOIN unnest(%s::int[], %s::bigint[], %s::bigint[]) AS e(partition, low, high) USING (partition)
WHERE r.topic IS DISTINCT FROM %s OR e.low IS NULL OR r."offset" < e.low OR r."offset" >= e.high
ORDER BY r.partition, r."offset"
"""
# What the sums of a topic's partitions, and of all of them, differ in from the table's rows.
WRONG_SUMS = """
SELECT name, sums.records, sums.offsets, wanted.records, wanted.offsets FROM (
  SELECT coalesce('p' || partition, 'all') AS name, count(*) AS records, sum("offset") AS offsets,
         min("offset") AS lowest, max("offset") AS highest
  FROM chaos_results WHERE topic = %s GROUP BY GROUPING SETS ((), (partition))
) AS wanted FULL JOIN (SELECT * FROM chaos_sums WHERE topic = %s) AS sums USING (name)
WHERE (coalesce(sums.records, 0), coalesce(sums.offsets, 0), sums.lowest, sums.highest)
      IS DISTINCT FROM (coalesce(wanted.records, 0), coalesce(wanted.offsets, 0), wanted.lowest, wanted.highest)
ORDER BY name
"""


class Sampler(Background):
    """Checks rows against positions in one read-only snapshot after the other, during a ``with`` block (O2).

    In every snapshot, each partition's rows must be exactly the offsets from ``base``, where the round began, up to the
    ledger's position; with ``has_sums`` the sums must be those of the rows. ``may_fall``: a position may go back in
    this round (O4). ``alarm`` is called with every violation.
    """

    def __init__(
        self,
        dsn: str,
        topic: str,
        base: Mapping[int, int],
        alarm: Callable[[str], None],
        *,
        may_fall: bool,
        has_sums: bool,
    ) -> None:
        super().__init__()
        self._has_sums = has_sums
        self._dsn, self._topic, self._base, self._may_fall, self._alarm = dsn, topic, base, may_fall, alarm
        self.news = threading.Condition()
        self.positions: dict[int, int] = dict(base)
        self.snapshots = 0

    @property
    def applied(self) -> int:
        """The sum of the ledger's positions, as of the last snapshot."""
        return sum(self.positions.values())

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn, connect_timeout=2, autocommit=True) as connection:
                    self._watch(connection)
            except psycopg.OperationalError:
                self._stop.wait(0.05)  # the server is down: that is this round's fault
            except Exception as error:
                self._alarm(f"the sampler broke down: {error!r}")
                raise

    def _watch(self, connection: psycopg.Connection[Any]) -> None:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        while not self._stop.wait(0.02):
            with connection.transaction():
                rows = connection.execute(SNAPSHOT, [self._topic]).fetchall()
                wrong = wrong_sums(connection, self._topic) if self._has_sums else []
            self._judge(rows)
            for line in wrong:
                self._alarm(f"snapshot {self.snapshots}: {line}")

    def _judge(self, rows: Sequence[tuple[Any, ...]]) -> None:
        with self.news:
            self.snapshots += 1
            for partition, position, count, distinct, low, high in rows:
                base = self._base[partition]
                expected = (position - base, position - base, *((base, position - 1) if count else (None, None)))
                if (count, distinct, low, high) != expected:
                    self._alarm(
                        f"snapshot {self.snapshots}: partition {partition} stands at {position}, the round "
                        f"began at {base}, with {count} rows, {distinct} distinct, from {low} to {high}"
                    )
                before = self.positions[partition]
                if position < before and not self._may_fall:
                    self._alarm(f"partition {partition} went back from {before} to {position} without cause")
                self.positions[partition] = position
            self.news.notify_all()

    def wait_for(self, ends: Mapping[int, int], seconds: float) -> bool:
        """Wait until the ledger has these positions; False at the deadline."""
        with self.news:
            return self.news.wait_for(lambda: self.positions == dict(ends), seconds)


@dataclass
class Account:
    """The comparison of all produced records with all rows, at the end of a round (O1, O3)."""

    records: int
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    sums: list[str] = field(default_factory=list)

    @property
    def differing(self) -> list[str]:
        """All differences, as lines."""
        return [*self.lost, *self.twice, *self.disorder, *self.sums]


def positions(connection: psycopg.Connection[Any], topic: str) -> dict[int, int]:
    """The ledger's position of each partition."""
    asked = "SELECT partition, next_offset FROM seekpoint.partition_offset WHERE topic = %s"
    return dict(connection.execute(asked, [topic]).fetchall())


def wrong_sums(connection: psycopg.Connection[Any], topic: str) -> list[str]:
    """The sums that differ from those of the rows, as lines."""
    return [
        f"sums of {topic} {name}: {records} records, offsets {offsets}; its rows are {count} with {total}"
        for name, records, offsets, count, total in connection.execute(WRONG_SUMS, [topic, topic])
    ]


def account(
    connection: psycopg.Connection[Any],
    topic: str,
    low: Mapping[int, int],
    high: Mapping[int, int],
    *,
    has_sums: bool = False,
) -> Account:
    """Check that each offset in ``[low, high)`` has one row, in the log's order, that no others do, and the sums."""
    numbers = sorted(low)
    ranges = [numbers, [low[n] for n in numbers], [high[n] for n in numbers], topic]
    account = Account(sum(high[n] - low[n] for n in numbers))
    account.lost = [f"lost: {topic}/{p} offset {n}" for p, n in connection.execute(LOST, ranges)]
    account.twice = [
        f"{count} times: {topic}/{p} offset {n} by {', '.join(workers)}"
        for p, n, count, workers in connection.execute(TWICE, [topic])
    ]
    account.twice += [
        f"applied again or never produced: partition {p} offset {n} by {worker}"
        for p, n, worker in connection.execute(STRANGE, ranges)
    ]
    account.sums = wrong_sums(connection, topic) if has_sums else []
    account.disorder = [
        f"out of order: {topic}/{p} offset {n} was written (row {seq}) after offset {before}"
        for p, n, before, seq in connection.execute(DISORDER, [topic])
    ]
    return account
