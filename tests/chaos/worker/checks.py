"""The checks: a sampler that checks snapshots while faults happen, and the account at the end of each round.

They read the database directly, never through a proxy, and share no code with the library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, LiteralString

import psycopg

from chaos.worker.schedule import PoolPlan
from support.background import Background

Offsets = Mapping[int, int]  # of each partition
Check = Callable[[psycopg.Connection[Any], str, Offsets, Offsets], list[str]]

TABLE = "chaos_results"
SUMS = "chaos_sums"
CHANGED = "chaos_changed"  # rows that change events make
FIRSTS = "chaos_firsts"  # the first row of each key
FOUND = "chaos_found"  # the rows of topics that were found while running
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
  FROM chaos_results WHERE topic = %s AND worker <> 'edited') AS rows
WHERE "offset" <= before ORDER BY seq LIMIT 20
"""
DISORDER_OF_KEY = DISORDER.replace("PARTITION BY partition", "PARTITION BY partition, key").replace(
    "WHERE topic = %s", "WHERE topic = %s AND key IS NOT NULL"
)
# What is left to do for a topic's group: records that wait for a retry, and those of found topics before their ends.
WAITING = "SELECT count(*) FROM seekpoint.dead_letter WHERE topic = %s AND state = 'waiting'"
NOT_PASSED = """
SELECT coalesce(sum(high - coalesce(next_offset, 0)), 0) FROM unnest(%s::text[], %s::bigint[]) AS e(topic, high)
LEFT JOIN seekpoint.partition_offset USING (topic)
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
ORDERS = {"partition": DISORDER, "key": DISORDER_OF_KEY}
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

# The rows that the changes of these offsets make (`pipelines._Changes` says which change an offset is), but for dead
# letters. Each row is changed in every 32 offsets, so the last 640 decide, even if some of them are dead letters.
MADE_BY_CHANGES = """
SELECT p, id, v FROM (
  SELECT DISTINCT ON (p, id) e.p, c.id, c.v
  FROM unnest(%(partitions)s::int[], %(low)s::bigint[], %(high)s::bigint[]) AS e(p, low, high)
  CROSS JOIN generate_series(greatest(e.low, e.high - 640), e.high - 1) AS n
  CROSS JOIN LATERAL (SELECT mod(n, 8) AS id, n WHERE mod(n, 32) < 16 UNION ALL
    SELECT mod(n, 8), NULL WHERE mod(n, 32) / 8 = 2 UNION ALL SELECT mod(n, 8) + 8, n WHERE mod(n, 32) / 8 = 2 UNION ALL
    SELECT mod(n, 8) + 8, NULL WHERE mod(n, 32) / 8 = 3) AS c(id, v)
  WHERE NOT EXISTS (SELECT FROM chaos_accounted d
    WHERE d.topic = %(topic)s AND d.partition = e.p AND d."offset" = n AND d.worker = 'dead letter')
  ORDER BY p, id, n DESC) AS last
WHERE v IS NOT NULL
"""
WRONG_CHANGES = f"""
SELECT p, id, stored.v, wanted.v FROM chaos_changed AS stored FULL JOIN ({MADE_BY_CHANGES}) AS wanted USING (p, id)
WHERE stored.v IS DISTINCT FROM wanted.v OR stored.o IS DISTINCT FROM stored.v ORDER BY p, id LIMIT 20
"""

WRONG_FIRSTS = """
SELECT p, k, stored.o, wanted.o FROM (SELECT * FROM chaos_firsts WHERE topic = %(topic)s) AS stored
FULL JOIN (
  SELECT partition AS p, "offset" / 64 * 8 + mod("offset", 8) AS k, min("offset") AS o
  FROM chaos_results WHERE topic = %(topic)s GROUP BY 1, 2
) AS wanted USING (p, k)
WHERE stored.o IS DISTINCT FROM wanted.o ORDER BY p, k LIMIT 20
"""
# The rows' keys are the records' own; an event has its key as its id. None of them is without an event.
WRONG_EVENTS = """
SELECT partition, "offset", key, event FROM chaos_results
WHERE topic = %(topic)s AND event IS DISTINCT FROM 'made ' || coalesce(key, 'none') || ' {"worker":"any"}'
UNION ALL SELECT partition, record_offset, convert_from(key, 'UTF8'), error FROM seekpoint.dead_letter
WHERE topic = %(topic)s AND cause = 'decode'
ORDER BY 1, 2 LIMIT 20
"""
# The group's other topics: each has all its rows up to its position, once and in order.
WRONG_FOUND = """
SELECT o.topic, o.next_offset, count(r.seq) FROM seekpoint.partition_offset AS o
LEFT JOIN chaos_found AS r ON r.topic = o.topic AND r.partition = o.partition
WHERE o.consumer_group = %(topic)s AND o.topic <> %(topic)s GROUP BY o.topic, o.next_offset
HAVING coalesce(array_agg(r."offset" ORDER BY r.seq) FILTER (WHERE r.seq IS NOT NULL), '{}')
       <> ARRAY(SELECT generate_series(0, o.next_offset - 1))
"""
# Edited dead letters: those that were replayed have the edited value's row; all have the value of the log.
WRONG_EDITS = """
SELECT coalesce(d.partition, r.partition), coalesce(d.record_offset, r."offset"), d.state, d.value, d.edited_value,
       r.worker
FROM (SELECT * FROM chaos_results WHERE topic = %(topic)s AND worker = 'edited') AS r
FULL JOIN (SELECT * FROM seekpoint.dead_letter WHERE topic = %(topic)s
  AND (edited_value IS NOT NULL OR state = 'replayed')) AS d
ON d.partition = r.partition AND d.record_offset = r."offset"
WHERE (d.state = 'replayed') IS DISTINCT FROM (r.worker IS NOT NULL)
   OR d.edited_value IS DISTINCT FROM '{"worker":"edited"}' OR d.value = d.edited_value LIMIT 20
"""
EDITED = "SELECT id FROM seekpoint.dead_letter WHERE state = 'replayed' AND edited_value IS NOT NULL"


class Sampler(Background):
    """Checks rows against positions in one read-only snapshot after the other, during a ``with`` block (O2).

    In every snapshot, each partition's rows must be exactly the offsets from ``base``, where the round began, up to the
    ledger's position. ``checks`` look at the pool's other tables. ``may_fall``: a position may go back in this round
    (O4). ``alarm`` is called with every violation.
    """

    def __init__(
        self,
        dsn: str,
        topic: str,
        base: Mapping[int, int],
        alarm: Callable[[str], None],
        *,
        may_fall: bool,
        checks: Sequence[Check] = (),
    ) -> None:
        super().__init__()
        self._checks = checks
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
                now = {row[0]: row[1] for row in rows}
                wrong = [line for check in self._checks for line in check(connection, self._topic, self._base, now)]
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

    def wait_until_none(self, query: LiteralString, parameters: Sequence[Any], seconds: float) -> int:
        """Wait until the query counts nothing; returns what it counts at the deadline."""
        deadline = monotonic() + seconds
        with psycopg.connect(self._dsn, connect_timeout=2, autocommit=True) as connection:
            while True:
                (count,) = connection.execute(query, parameters).fetchone() or (0,)
                if not count or monotonic() > deadline:
                    return int(count)
                self._stop.wait(0.05)

    def wait_for(self, ends: Mapping[int, int], seconds: float) -> bool:
        """Wait until the ledger has these positions; False if none has moved for ``seconds``.

        Suspect ranges are applied in small parts: on a slow machine all of them may take longer.
        """
        with self.news:
            while self.positions != dict(ends):
                if not self._moves(seconds):
                    return False
        return True

    def _moves(self, seconds: float) -> bool:
        before = dict(self.positions)
        return self.news.wait_for(lambda: self.positions != before, seconds)


@dataclass
class Account:
    """The comparison of all produced records with all rows, at the end of a round (O1, O3)."""

    records: int
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def differing(self) -> list[str]:
        """All differences, as lines."""
        return [*self.lost, *self.twice, *self.disorder, *self.other]


def positions(connection: psycopg.Connection[Any], topic: str) -> dict[int, int]:
    """The ledger's position of each partition."""
    asked = "SELECT partition, next_offset FROM seekpoint.partition_offset WHERE topic = %s"
    return dict(connection.execute(asked, [topic]).fetchall())


def wrong_sums(connection: psycopg.Connection[Any], topic: str, _low: Offsets, _high: Offsets) -> list[str]:
    """The sums that differ from those of the rows, as lines."""
    return [
        f"sums of {topic} {name}: {records} records, offsets {offsets}; its rows are {count} with {total}"
        for name, records, offsets, count, total in connection.execute(WRONG_SUMS, [topic, topic])
    ]


def wrong_changes(connection: psycopg.Connection[Any], topic: str, low: Offsets, high: Offsets) -> list[str]:
    """The rows that differ from those that the changes in ``[low, high)`` make, as lines."""
    return [
        f"row {id_} of {topic}/{partition} has {stored}, but its changes make it {wanted}"
        for partition, id_, stored, wanted in connection.execute(WRONG_CHANGES, changes_in(topic, low, high))
    ]


def changes_in(topic: str, low: Offsets, high: Offsets) -> dict[str, Any]:
    """The parameters of MADE_BY_CHANGES."""
    numbers = sorted(low)
    return {
        "topic": topic, "partitions": numbers, "low": [low[n] for n in numbers], "high": [high[n] for n in numbers]
    }  # fmt: skip


def wrong_firsts(connection: psycopg.Connection[Any], topic: str, _low: Offsets, _high: Offsets) -> list[str]:
    """The keys whose stored row is not that of their first record, as lines."""
    return [
        f"key {key} of {topic}/{partition} has the row of offset {stored}, but its first is {first}"
        for partition, key, stored, first in connection.execute(WRONG_FIRSTS, {"topic": topic})
    ]


def wrong_events(connection: psycopg.Connection[Any], topic: str, _low: Offsets, _high: Offsets) -> list[str]:
    """The rows whose CloudEvent is not that of their record, as lines."""
    return [
        f"{topic}/{partition} offset {offset}, key {key}, is event {event}"
        for partition, offset, key, event in connection.execute(WRONG_EVENTS, {"topic": topic})
    ]


def wrong_found(connection: psycopg.Connection[Any], topic: str, _low: Offsets, _high: Offsets) -> list[str]:
    """The group's found topics that do not have each row up to their position, once and in order, as lines."""
    return [
        f"{other} stands at {position}, with {rows} rows, not each once and in order"
        for other, position, rows in connection.execute(WRONG_FOUND, {"topic": topic})
    ]


def wrong_edits(connection: psycopg.Connection[Any], topic: str, _low: Offsets, _high: Offsets) -> list[str]:
    """The edited dead letters whose row, or stored value, is wrong, as lines."""
    return [
        f"dead letter {topic}/{partition} offset {offset} is {state}, with value {value}, edited {edited}; row {row}"
        for partition, offset, state, value, edited, row in connection.execute(WRONG_EDITS, {"topic": topic})
    ]


_CHECKS: Mapping[str, Check] = {
    "sums": wrong_sums, "changes": wrong_changes, "firsts": wrong_firsts, "cloud_events": wrong_events,
    "found": wrong_found, "edits": wrong_edits,
}  # fmt: skip


def checks_of(plan: PoolPlan) -> list[Check]:
    """The checks of a pool's other tables."""
    return [check for trait, check in _CHECKS.items() if getattr(plan, trait)]


def account(
    connection: psycopg.Connection[Any],
    topic: str,
    low: Mapping[int, int],
    high: Mapping[int, int],
    checks: Sequence[Check] = (),
    *,
    order: str = "partition",
) -> Account:
    """Check that each offset in ``[low, high)`` has one row, in this ``order``, that no others do, and ``checks``."""
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
    account.other = [line for check in checks for line in check(connection, topic, low, high)]
    account.disorder = [
        f"out of order: {topic}/{p} offset {n} was written (row {seq}) after offset {before}"
        for p, n, before, seq in (connection.execute(ORDERS[order], [topic]) if order in ORDERS else ())
    ]
    return account
