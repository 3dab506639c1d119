"""The named interleavings of the protocol, with real workers on a real broker and a real Postgres.

What two connections alone can show is under ``ledger/``; here the worker's own loop has to find its way.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from seekpoint import Partition, StartAt, events
from seekpoint.errors import HandlerOutdated
from seekpoint.kafka.client import Client
from seekpoint.kafka.config import consumer_config, make_consumer
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.pipeline.policy import Limits
from support.events import Gate, Run
from support.ledger_worker import scalar, waits_for_lock
from support.manual_worker import ManualWorker, actions, rival, seize
from support.waiting import until
from support.worker_group import WorkerGroup

# -- zombies --------------------------------------------------------------------------------------------------


def test_a_worker_frozen_with_a_batch_in_hand_is_refused(worker_group: WorkerGroup) -> None:
    """I2: it wakes up after a new claim: nothing of its batch is written, and it reads on from the ledger."""
    name, stored = worker_group.log(10)
    gate = Gate(events.BatchOpened)
    run = worker_group.worker(name, observe=[gate])
    gate.wait()
    seize(worker_group, rival(worker_group), name, 0)
    gate.open()
    run.seen.wait_for(events.Refused)
    run.seen.wait_for(events.ClaimLost)
    run.reached(name, 10)  # the seizer does nothing; Kafka still says that the partition is ours
    order = [type(event) for event in run.seen.events]
    assert order.index(events.Refused) < order.index(events.Committed)
    worker_group.record_table.assert_holds(name, stored)
    assert worker_group.ledger.read()[0].epoch == 3


# -- an operator's move ---------------------------------------------------------------------------------------


@pytest.mark.pins("batch")
def test_a_rewind_under_a_running_worker(worker_group: WorkerGroup, threads: ThreadPoolExecutor) -> None:
    """I5: it waits for the open batch; it fences the worker, which reads on from there and applies that again."""
    name, stored = worker_group.log(10)
    gate = Gate(events.Applied)
    run = worker_group.worker(name, observe=[gate])
    gate.wait()
    before = worker_group.ledger.read()[0]
    moving = threads.submit(worker_group.ledger.reset_offset, name, 0, 4, log=None, reason="bug 17", actor="ann")
    until(
        lambda: waits_for_lock(worker_group.engine, f"%{worker_group.ledger.owner.hex[:8]}%"),
        "the operator at the lock",
    )
    gate.open()
    moved = moving.result()
    assert (moved.next_offset, moved.epoch) == (4, before.epoch + 1)
    run.seen.wait_for(events.Activated, lambda e: e.offset == 4)
    run.seen.wait_for(events.Committed, lambda e: e.spans[0].start == 4)
    worker_group.wait_for_position(name, 10)
    assert worker_group.record_table.written(name) == [*stored, *stored[4:]]
    assert worker_group.ledger.read()[0].epoch > moved.epoch
    [action] = actions(worker_group)
    assert (action.action, action.from_offset, action.to_offset) == ("reset", moving_from(run), 4)
    assert (action.actor, action.reason) == ("ann", "bug 17")
    assert run.seen.all(events.Resynced) == []  # nothing was lost or rolled back: an operator decided


def moving_from(run: Run) -> int:
    """Where the first batch had brought the partition."""
    return run.seen.all(events.Committed)[0].spans[0].end


def test_a_rewind_under_an_idle_worker(worker_group: WorkerGroup) -> None:
    """I5: nothing comes that would be refused: the worker looks, and obeys within a second."""
    name = worker_group.topic(2)
    first, second = worker_group.produce(name, 10), worker_group.produce(name, 3, partition=1)
    run = worker_group.worker(name)
    run.reached(name, 10)
    run.reached(name, 3, partition=1)
    mark = run.seen.mark()
    worker_group.ledger.reset_offset(name, 0, 0, log=None, reason="from the beginning", actor="ann")
    assert run.seen.wait_for(events.ClaimLost, since=mark).partition == Partition(name, 0)
    assert run.seen.wait_for(events.Activated, since=mark).offset == 0
    worker_group.wait_for_position(name, 10)
    run.stop()
    assert sorted(worker_group.record_table.written(name)) == sorted([*first, *first, *second])
    assert [a.action for a in actions(worker_group)] == ["reset"]


def test_a_skip_under_a_running_worker(worker_group: WorkerGroup) -> None:
    """I5, I4: what is skipped is not applied, whatever the worker had read of it already."""
    name, stored = worker_group.log(10)
    gate = Gate(events.BatchOpened)
    run = worker_group.worker(name, observe=[gate])
    gate.wait()
    worker_group.ledger.reset_offset(name, 0, 7, log=None, reason="known to be bad", lost="skipped")
    gate.open()
    run.seen.wait_for(events.Refused)
    run.finish(name, 10)
    worker_group.record_table.assert_holds(name, stored[7:])
    query = f"SELECT from_offset || '-' || to_offset FROM {worker_group.schema}.lost_range"
    assert scalar(worker_group.engine, query) == "0-7"


def test_a_newer_handler_ends_the_older_worker(worker_group: WorkerGroup) -> None:
    """I5: a claim by version 2 fences version 1 in the middle of its batch, and ends it."""
    name, _ = worker_group.log(10)
    gate = Gate(events.BatchOpened)
    run = worker_group.worker(name, observe=[gate])
    gate.wait()
    seize(worker_group, rival(worker_group, version=2), name, 0)
    gate.open()
    run.ends_with(HandlerOutdated, "version 2, but this process runs version 1")
    assert worker_group.record_table.written(name) == []


# -- several partitions in a batch ----------------------------------------------------------------------------


def test_one_of_two_partitions_in_a_batch_is_refused(worker_group: WorkerGroup) -> None:
    """I3: the other is committed; the refused one's records are read again from the ledger's position: no gap.

    With positions taken from the last commit instead of the reader's read position this loses records: the shortest
    history that the model finds has eight steps, and this is it.
    """
    name, stored = worker_group.log(5, 2)
    with ManualWorker(worker_group, name) as manual_worker:
        batch = manual_worker.batch(10)
        assert {p.number for p in batch.buffer.reads} == {0, 1}
        seize(worker_group, rival(worker_group), name, 1)
        manual_worker.commit(batch)
        manual_worker.seen.wait_for(events.Refused)
        assert manual_worker.seen.wait_for(events.ClaimLost).partition == Partition(name, 1)
        [committed] = manual_worker.seen.all(events.Committed)
        assert [str(span) for span in committed.spans] == [f"{name}/0 [0, 5)"]
        worker_group.record_table.assert_holds(name, stored[:5])
        # The buffer of partition 1 is gone. What comes next of it must begin at the ledger's position.
        stored += worker_group.produce(name, 5, partition=1)
        again = manual_worker.batch(10)
        assert {p.number: read.start for p, read in again.buffer.reads.items()} == {1: 0}
        manual_worker.commit(again)
    worker_group.record_table.assert_holds(name, stored)
    assert worker_group.positions() == {Partition(name, 0): 5, Partition(name, 1): 10}


def test_a_dropped_chunk_is_a_refusal_and_not_a_gap(worker_group: WorkerGroup) -> None:
    """I3: a chunk was read and never applied: the next is refused, and reading begins again after the last commit."""
    name, stored = worker_group.log(10)
    with ManualWorker(worker_group, name) as manual_worker:
        manual_worker.batch(4)  # read, and dropped by some mistake: the read position moved over it
        manual_worker.commit(manual_worker.batch(6))
        manual_worker.seen.wait_for(events.Refused)
        assert worker_group.record_table.written(name) == []
        assert manual_worker.seen.all(events.Committed) == []
        manual_worker.commit(manual_worker.batch(10))
    worker_group.record_table.assert_holds(name, stored)


def test_every_partition_of_a_batch_is_refused(worker_group: WorkerGroup) -> None:
    """I2, I3: nothing is left of the batch: no empty transaction is committed, nothing is written."""
    name, stored = worker_group.log(5, 2)
    with ManualWorker(worker_group, name) as manual_worker:
        batch = manual_worker.batch(10)
        seize(worker_group, rival(worker_group), name, 0, 1)
        manual_worker.commit(batch)
        assert manual_worker.seen.all(events.Committed) == []
        assert worker_group.record_table.written(name) == []
        manual_worker.commit(manual_worker.batch(10))
    worker_group.record_table.assert_holds(name, stored)


# -- a new topic ----------------------------------------------------------------------------------------------


def test_two_workers_start_a_new_topic_at_latest_at_once(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: records that come between the two resolutions are read: what is `latest` is decided once for the topic."""
    name = worker_group.topic(2)
    worker_group.produce(name, 3)
    resolve, calls, came = Watermarks.resolve, [], threading.Event()
    stored: list[tuple[int, int]] = []

    def slowly(self: Watermarks, topic: str, *args: Any) -> Any:
        calls.append(topic)
        answer = resolve(self, topic, *args)
        came.set()
        until(
            lambda: waits_for_lock(worker_group.engine, f"seekpoint % {worker_group.group[:30]}%"),
            "the other one at the lock",
        )
        stored.extend(worker_group.produce(name, 5))
        stored.extend(worker_group.produce(name, 5, partition=1))
        return answer

    monkeypatch.setattr(Watermarks, "resolve", slowly)
    pipeline = worker_group.pipeline(name, start=StartAt.latest())
    limits = Limits(claim_wait=20.0)
    worker = worker_group.worker(pipeline, partitions=[(name, 0)], limits=limits)
    assert came.wait(20)
    two = worker_group.worker(pipeline, partitions=[(name, 1)], limits=limits)
    worker.reached(name, 8)
    two.reached(name, 5, partition=1)
    worker.stop()
    two.stop()
    assert calls == [name]
    worker_group.record_table.assert_holds(name, stored)
    assert [row.first_offset for row in worker_group.ledger.read()] == [3, 0]


# -- activation again -----------------------------------------------------------------------------------------


def test_a_partition_is_activated_again_while_it_is_read(
    worker_group: WorkerGroup, protocol: Mapping[str, Any]
) -> None:
    """I3, I6: the client may still be ending the old placement when the new one seeks: it is waited for."""
    name, _ = worker_group.log(100)
    config = consumer_config({"bootstrap.servers": worker_group.broker, **protocol}, group=worker_group.group)
    client, assigned, partition = Client(make_consumer(config), config), threading.Event(), Partition(name, 0)
    client.subscribe([name], lambda _: assigned.set(), lambda *_: None)

    def read() -> int | None:
        return next((m.offset() for m in client.read(50, 0.1) if m.error() is None), None)

    try:
        until(lambda: read() is None and assigned.is_set(), "the assignment")
        for offset in range(60):
            client.assign({partition: (offset, 0)}, {})
            if offset % 2:  # while the client reads, and while its queue is full
                assert until(lambda: None if (value := read()) is None else (value,), "a record") == (offset,)
    finally:
        client.close()
