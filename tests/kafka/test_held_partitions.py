"""A transaction holds the partitions of its first chunk, and those that moved lately; it reads no other.

Each chunk has fifteen records, and forty of each partition follow each other: the first chunk is of one partition, the
third of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Engine

from seekpoint import Partition, events
from seekpoint.kafka.client import Client
from seekpoint.ledger import Claim, Expected, GroupLedger, Move
from seekpoint.worker import apply, reader
from seekpoint.worker.assignment import held as held_partitions
from support.events import Gate, Run
from support.manual_worker import rival, seize
from support.postgres_proxy import MOVES, PostgresProxy
from support.waiting import SECONDS
from support.worker_group import WorkerGroup

pytestmark = [
    pytest.mark.usefixtures("short_backoff"),
    pytest.mark.pins("batch", "small_batch", "read_ahead"),
]

PARTITIONS, EACH = 4, 40
ALL = PARTITIONS * EACH


@pytest.fixture(autouse=True)
def held_sets(monkeypatch: pytest.MonkeyPatch) -> list[set[Partition]]:
    """What each transaction held. No transaction moves another partition."""
    monkeypatch.setattr(reader, "CHUNK", 15)
    monkeypatch.setattr(apply, "MOST_RECORDS_IN_ONE_INSERT", 0)  # a small batch reads all before it holds anything
    held_sets: list[set[Partition]] = []
    hold, advance = GroupLedger.hold, GroupLedger.advance

    def noted(self: GroupLedger, tx: Any, expected: Sequence[Expected]) -> str:
        partitions = [e.claim.partition for e in expected]
        assert len(set(partitions)) == len(partitions)
        held_sets.append(set(partitions))
        return hold(self, tx, expected)

    def checked(self: GroupLedger, tx: Any, moves: Sequence[Move], *more: Any) -> list[Claim]:
        moves = list(moves)
        assert {move.claim.partition for move in moves} <= held_sets[-1]
        return advance(self, tx, moves, *more)

    monkeypatch.setattr(GroupLedger, "hold", noted)
    monkeypatch.setattr(GroupLedger, "advance", checked)
    return held_sets


@pytest.fixture(autouse=True)
def chunk_waits(monkeypatch: pytest.MonkeyPatch, held_sets: list[set[Partition]]) -> list[int]:
    """So many transactions wait for their next chunk: they are never closed for want of records."""
    read, left, transactions = Client.read, [ALL], [1]

    def waits(self: Client, most: int, wait: float) -> list[Any]:
        is_patient = wait == 0 and left[0] > 0 and len(held_sets) <= transactions[0]
        messages = [] if is_patient else read(self, most, wait)
        while is_patient and len(messages) < min(most, left[0]):
            if not (more := read(self, min(most, left[0]) - len(messages), SECONDS)):
                break
            messages += more
        left[0] -= sum(message.error() is None for message in messages)
        return messages

    monkeypatch.setattr(Client, "read", waits)
    return transactions


def spans(run: Run) -> list[set[int]]:
    """The partitions of each transaction that was committed."""
    return [{span.partition.number for span in e.spans} for e in run.seen.all(events.Committed)]


def read(run: Run) -> int:
    """How many records were read from Kafka."""
    return sum(e.records for e in run.seen.all(events.ChunkRead))


@pytest.fixture
def finish(worker_group: WorkerGroup) -> Callable[[Run, str, list[tuple[int, int]]], None]:
    """Wait until all is applied: each record once, in order."""

    def wait(run: Run, topic: str, stored: list[tuple[int, int]]) -> None:
        worker_group.finish(run, topic, stored)
        worker_group.record_table.assert_holds(topic, stored)

    return wait


Finish = Callable[[Run, str, list[tuple[int, int]]], None]


def test_a_chunk_of_another_partition_closes_the_batch_and_begins_the_next(
    worker_group: WorkerGroup, held_sets: list[set[Partition]], chunk_waits: list[int], finish: Finish
) -> None:
    chunk_waits[0] = 2
    name, stored = worker_group.log(EACH, PARTITIONS)
    run = worker_group.worker(name)
    finish(run, name, stored)
    first, second = held_sets[:2]
    assert len(first) == 1, "the first chunk's"
    assert len(second) == PARTITIONS, "full chunks: there is a backlog"
    assert [len(span) for span in spans(run)[:2]] == [1, PARTITIONS - 1]
    assert read(run) == ALL, "nothing is read twice"


def test_partitions_that_moved_lately_are_held_too(
    worker_group: WorkerGroup,
    held_sets: list[set[Partition]],
    chunk_waits: list[int],
    finish: Finish,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunk_waits[0] = PARTITIONS
    monkeypatch.setattr(held_partitions.HeldPartitions, "closed_by_another", lambda self, *, is_full: None)
    name, stored = worker_group.log(EACH, PARTITIONS)
    run = worker_group.worker(name)
    finish(run, name, stored)
    assert [len(held) for held in held_sets] == [1, 2, 3, 4], "one more with each transaction"
    assert [len(span) for span in spans(run)] == [1] * PARTITIONS


def test_a_kept_chunk_survives_an_unknown_commit(
    worker_group: WorkerGroup, proxy: PostgresProxy, new_engine: Callable[..., Engine], finish: Finish
) -> None:
    name, stored = worker_group.log(EACH, PARTITIONS)
    gate = Gate(events.Advanced)
    run = worker_group.worker(name, engine=new_engine(proxy.dsn, pool_pre_ping=True), observe=[gate])
    gate.wait()
    proxy.arm("before_commit", MOVES)
    gate.open()
    finish(run, name, stored)
    assert run.seen.all(events.CommitUnknown)
    assert len(run.seen.all(events.Activated)) == PARTITIONS, "neither the batch's nor the chunk's are read again"


def test_a_kept_chunk_is_dropped_with_its_claim(worker_group: WorkerGroup, finish: Finish) -> None:
    """I2: another process has claimed the kept partition: its records are read again from the position then."""
    name, stored = worker_group.log(EACH, PARTITIONS)
    gate = Gate(events.Advanced)
    run = worker_group.worker(name, observe=[gate])
    gate.wait()
    (mine,) = {span.partition.number for span in run.seen.all(events.Advanced)[0].spans}
    seize(worker_group, rival(worker_group), name, *({*range(PARTITIONS)} - {mine}))
    gate.open()
    finish(run, name, stored)
    assert len(run.seen.all(events.ClaimLost)) == PARTITIONS - 1


def test_a_reset_of_a_kept_partition_is_obeyed(worker_group: WorkerGroup) -> None:
    """I5: what was kept is before the operator's offset, and is not applied."""
    name, stored = worker_group.log(EACH, PARTITIONS)
    gate = Gate(events.Advanced)
    run = worker_group.worker(name, observe=[gate])
    gate.wait()
    (mine,) = {span.partition.number for span in run.seen.all(events.Advanced)[0].spans}
    other = (mine + 1) % PARTITIONS
    worker_group.ledger.reset_offset(name, other, 30, log=None, reason="a test", lost="operator")
    gate.open()
    worker_group.finish(run, name, stored)
    expected = [place for place in stored if place[0] != other or place[1] >= 30]
    worker_group.record_table.assert_holds(name, expected)
