"""The invariant that holds in each snapshot while positions are reset: rows are what the positions have passed."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, text

from support.background import Background

Ranges = dict[int, list[tuple[int, int]]]
"""What a partition's position has passed, in the order of time: the offsets from the first to before the second."""

POSITIONS = "SELECT partition, next_offset FROM {s}.partition_offset WHERE consumer_group = :group"
RESETS = """
SELECT partition, from_offset, to_offset FROM {s}.admin_action
WHERE consumer_group = :group AND action = 'reset' ORDER BY id"""
ROWS = 'SELECT partition, count(*), sum("offset") FROM {s}.book GROUP BY partition'


class Log:
    """The offsets of a topic's records: all, or those in ``stored`` where transactions leave others between them."""

    def __init__(self, *stored: Sequence[tuple[int, int]]) -> None:
        self._stored = stored

    def records(self, partition: int, spans: Iterable[tuple[int, int]]) -> Iterator[Sequence[int]]:
        """The offsets of the records in each of these, from the first offset to before the second."""
        offsets: Sequence[int] = range(2**62)
        if self._stored:
            offsets = sorted(offset for stored in self._stored for p, offset in stored if p == partition)
        for start, end in spans:
            yield offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]


def passed(connection: Connection, schema: str, group: str) -> Ranges:
    """From 0 to the first reset's position, from its target to that of the next one, and to the position now."""
    ranges: Ranges = defaultdict(list)
    began: dict[int, int] = defaultdict(int)
    for partition, from_offset, to_offset in _ask(connection, RESETS, schema, group):
        ranges[partition].append((began[partition], from_offset))
        began[partition] = to_offset
    for partition, position in _ask(connection, POSITIONS, schema, group):
        ranges[partition].append((began[partition], position))
    return ranges


def _ask(connection: Connection, query: str, schema: str, group: str) -> Sequence[Any]:
    statement = text(query.format(s=f'"{schema}"'))
    return connection.execute(statement, {"group": group} if ":group" in query else {}).all()


class Checker(Background):
    """Compares rows and positions in one snapshot after another, for the length of a ``with`` block.

    ``log`` says which offsets have records. ``failures`` has a sentence for each snapshot in which they differ; the
    block's end raises them as AssertionError.
    """

    def __init__(self, engine: Engine, schema: str, group: str, log: Log) -> None:
        super().__init__()
        self._engine, self._schema, self._group, self._log = engine, schema, group, log
        self._pause = threading.Event()
        self.failures: list[str] = []
        self.snapshots = 0

    def __exit__(self, *error: object) -> None:
        super().__exit__()
        if error[0] is None:
            assert not self.failures, self.failures[:5]

    def _run(self) -> None:
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._engine.connect().execution_options(**options) as connection:
            while not self._stop.wait(0.05):
                with connection.begin():
                    rows = {p: (many, total) for p, many, total in _ask(connection, ROWS, self._schema, self._group)}
                    self._check(rows, passed(connection, self._schema, self._group))

    def _check(self, rows: Mapping[int, tuple[int, int]], ranges: Ranges) -> None:
        self.snapshots += 1
        for partition, spans in ranges.items():
            offsets = list(self._log.records(partition, spans))
            many, total = sum(map(len, offsets)), sum(map(sum, offsets))
            if (stored := rows.get(partition, (0, 0))) != (many, total):
                self.failures.append(
                    f"snapshot {self.snapshots}, partition {partition}: {stored[0]} rows (sum of offsets {stored[1]}), "
                    f"but the position has passed {many} ({total}): {spans[-3:]}"
                )
