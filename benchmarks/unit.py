"""A worker's unit of work without a worker: one partition, and records that are made here.

``Silent`` leaves out the ledger's two statements, to measure their cost.
"""

from __future__ import annotations

import os
import secrets
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
from sqlalchemy import Connection, create_engine

from seekpoint import Limits, Pipeline, schema
from seekpoint.events import Announcer
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Claim, Expected, GroupLedger, Move
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.postgres.round_trip import Statement, begin_and_run
from seekpoint.records import Partition, RawRecord
from seekpoint.testing.kit import FixedClaims
from seekpoint.worker.assignment import Chunk
from seekpoint.worker.assignment.chunk import Read
from seekpoint.worker.open_batch import Buffer, OpenBatch
from seekpoint.worker.unit_of_work import Committer
from setting import DSN, URL
from subject import KIND

VALUES = [msgspec.json.encode(record) for record in islice(KIND.make(10_000), 10_000)]
RECORDS = list(KIND.make(10_000))


class Silent(GroupLedger):
    """Confirms everything, and writes nothing."""

    def hold(self, tx: Connection, expected: Sequence[Expected]) -> str:  # noqa: ARG002 -- as GroupLedger has it
        return ""

    def advance(
        self,
        tx: Connection,  # noqa: ARG002
        moves: Iterable[Move],
        transaction: str | None = None,  # noqa: ARG002
        rows: Sequence[Statement] = (),  # noqa: ARG002
    ) -> list[Claim]:
        return [replace(m.claim, next_offset=m.to_offset) for m in moves]

    def hold_and_advance(self, tx: Any, moves: Iterable[Move], rows: Sequence[Statement]) -> list[Claim]:
        begin_and_run(tx.driver, rows)
        return self.advance(tx, moves)


class Unit:
    """Commits ``size`` records at each call. ``make`` makes the pipeline for a group."""

    def __init__(
        self,
        make: Callable[[str], Pipeline],
        size: int,
        kind: type[GroupLedger] = GroupLedger,
        *,
        synchronous: bool = True,
    ) -> None:
        pipeline = make(f"unit-{secrets.token_hex(4)}")
        # Without the ledger's statements nothing else would set synchronous_commit.
        options = f"-c synchronous_commit={'on' if synchronous else 'off'}"
        engine = create_engine(URL, connect_args={"options": options})
        schema.upgrade(engine)
        ledger = kind(engine, pipeline.group, synchronous_commit=synchronous)
        partition, topic_id = Partition(KIND.name, 0), uuid4()
        claimed = ledger.claim(
            [partition], {KIND.name: topic_id}, cluster_id="benchmark", start=lambda _: {partition: 0}
        )
        self._held, self._partition, self._size = FixedClaims(ledger, claimed.granted), partition, size
        self._committer = Committer(ledger, PipelineWriters(pipeline), self._held, Announcer(()))
        self._limits = Limits()
        self.ledger = ledger

    def __call__(self) -> None:
        claim = self._held.claims[self._partition]
        start, end = claim.next_offset, claim.next_offset + self._size
        records = [
            RawRecord(KIND.name, 0, n, 1_700_000_000_000, None, VALUES[n % len(VALUES)], (), 1)
            for n in range(start, end)
        ]
        chunk = Chunk(records, {self._partition: Read(claim, start, end, 1, 1_700_000_000_000)})
        self._committer.commit(OpenBatch(Buffer(chunk, lambda: None, lambda *_: Answer(), self._limits)))
        assert self._held.claims[self._partition].next_offset == end, "the records were not committed"

    def close(self) -> None:
        """Give the connection back."""
        self._committer.close()
        self.ledger.engine.dispose()


def pin() -> None:
    """Pin this process and the server's sessions to one core: they alternate, and a round trip takes 30 us.

    On two cores it takes 30 or 90, depending on the scheduler. Skipped if the system does not allow it.
    """
    core = {max(os.sched_getaffinity(0))}
    with psycopg.connect(DSN) as connection:
        backends = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        ).fetchall()
    with suppress(OSError):
        for (pid,) in backends:
            os.sched_setaffinity(pid, core)
        os.sched_setaffinity(0, core)


def in_turn(
    subjects: Mapping[str, Callable[[], Any]], rounds: int, calls: int, *, one_core: bool = False
) -> dict[str, list[float]]:
    """Seconds of a call, by subject: the median of each round, in which all subjects alternate."""
    for subject in subjects.values():
        for _ in range(12):  # the driver prepares a statement at its fifth use, the server plans it five times
            subject()
    cores = os.sched_getaffinity(0)
    if one_core:
        pin()
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for n in range(rounds):
        names = list(subjects)
        for name in names if n % 2 else reversed(names):
            seconds[name].append(statistics.median(_timed(subjects[name]) for _ in range(calls)))
    os.sched_setaffinity(0, cores)
    return seconds


def _timed(call: Callable[[], Any]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
