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
from support.kafka_postgres import Scene
from support.ledger_desk import scalar, waits_for_lock
from support.manual_worker import Bench, actions, rival, seize
from support.waiting import until

# -- zombies --------------------------------------------------------------------------------------------------


def test_a_worker_frozen_with_a_batch_in_hand_is_refused(scene: Scene) -> None:
    """I2: it wakes up after a new claim: nothing of its batch is written, and it reads on from the ledger."""
    name, stored = scene.log(10)
    gate = Gate(events.BatchOpened)
    run = scene.worker(name, observe=[gate])
    gate.wait()
    seize(scene, rival(scene), name, 0)
    gate.open()
    run.seen.wait_for(events.Refused)
    run.seen.wait_for(events.ClaimLost)
    run.reached(name, 10)  # the seizer does nothing; Kafka still says that the partition is ours
    order = [type(event) for event in run.seen.events]
    assert order.index(events.Refused) < order.index(events.Committed)
    scene.book.assert_holds(name, stored)
    assert scene.ledger.read()[0].epoch == 3


# -- an operator's move ---------------------------------------------------------------------------------------


@pytest.mark.pins("batch")
def test_a_rewind_under_a_running_worker(scene: Scene, elsewhere: ThreadPoolExecutor) -> None:
    """I5: it waits for the batch in hand; it fences the worker, which reads on from there and applies that again."""
    name, stored = scene.log(10)
    gate = Gate(events.Applied)
    run = scene.worker(name, observe=[gate])
    gate.wait()
    before = scene.ledger.read()[0]
    moving = elsewhere.submit(scene.ledger.reset_offset, name, 0, 4, log=None, reason="bug 17", actor="ann")
    until(lambda: waits_for_lock(scene.engine, f"%{scene.ledger.owner.hex[:8]}%"), "the operator at the lock")
    gate.open()
    moved = moving.result()
    assert (moved.next_offset, moved.epoch) == (4, before.epoch + 1)
    run.seen.wait_for(events.Activated, lambda e: e.offset == 4)
    run.seen.wait_for(events.Committed, lambda e: e.spans[0].start == 4)
    scene.wait_for_position(name, 10)
    assert scene.book.written(name) == [*stored, *stored[4:]]
    assert scene.ledger.read()[0].epoch > moved.epoch
    [action] = actions(scene)
    assert (action.action, action.from_offset, action.to_offset) == ("reset", moving_from(run), 4)
    assert (action.actor, action.reason) == ("ann", "bug 17")
    assert run.seen.all(events.Resynced) == []  # nothing was lost or rolled back: an operator decided


def moving_from(run: Run) -> int:
    """Where the first batch had brought the partition."""
    return run.seen.all(events.Committed)[0].spans[0].end


def test_a_rewind_under_an_idle_worker(scene: Scene) -> None:
    """I5: nothing comes that would be refused: the worker looks, and obeys within a second."""
    name = scene.topic(2)
    first, second = scene.produce(name, 10), scene.produce(name, 3, partition=1)
    run = scene.worker(name)
    run.reached(name, 10)
    run.reached(name, 3, partition=1)
    mark = run.seen.mark()
    scene.ledger.reset_offset(name, 0, 0, log=None, reason="from the beginning", actor="ann")
    assert run.seen.wait_for(events.ClaimLost, since=mark).partition == Partition(name, 0)
    assert run.seen.wait_for(events.Activated, since=mark).offset == 0
    scene.wait_for_position(name, 10)
    run.stop()
    assert sorted(scene.book.written(name)) == sorted([*first, *first, *second])
    assert [a.action for a in actions(scene)] == ["reset"]


def test_a_skip_under_a_running_worker(scene: Scene) -> None:
    """I5, I4: what is skipped is not applied, whatever the worker had read of it already."""
    name, stored = scene.log(10)
    gate = Gate(events.BatchOpened)
    run = scene.worker(name, observe=[gate])
    gate.wait()
    scene.ledger.reset_offset(name, 0, 7, log=None, reason="known to be bad", lost="skipped")
    gate.open()
    run.seen.wait_for(events.Refused)
    run.finish(name, 10)
    scene.book.assert_holds(name, stored[7:])
    query = f"SELECT from_offset || '-' || to_offset FROM {scene.schema}.lost_range"
    assert scalar(scene.engine, query) == "0-7"


def test_a_newer_handler_ends_the_older_worker(scene: Scene) -> None:
    """I5: a claim by version 2 fences version 1 in the middle of its batch, and ends it."""
    name, _ = scene.log(10)
    gate = Gate(events.BatchOpened)
    run = scene.worker(name, observe=[gate])
    gate.wait()
    seize(scene, rival(scene, version=2), name, 0)
    gate.open()
    run.seen.wait_for(events.WorkerStopped)
    with pytest.raises(HandlerOutdated, match="version 2, this process runs version 1"):
        run.stop()
    assert scene.book.written(name) == []


# -- several partitions in a batch ----------------------------------------------------------------------------


def test_one_of_two_partitions_in_a_batch_is_refused(scene: Scene) -> None:
    """I3: the other is committed; the refused one's records are read again from the ledger's position: no gap.

    With positions taken from the last commit instead of the reader's read position this loses records: the shortest
    history that the model finds has eight steps, and this is it.
    """
    name, stored = scene.log(5, 2)
    with Bench(scene, name) as bench:
        batch = bench.batch(10)
        assert {p.number for p in batch.buffer.reads} == {0, 1}
        seize(scene, rival(scene), name, 1)
        bench.commit(batch)
        bench.seen.wait_for(events.Refused)
        assert bench.seen.wait_for(events.ClaimLost).partition == Partition(name, 1)
        [committed] = bench.seen.all(events.Committed)
        assert [str(span) for span in committed.spans] == [f"{name}/0 [0, 5)"]
        scene.book.assert_holds(name, stored[:5])
        # The buffer of partition 1 is gone. What comes next of it must begin at the ledger's position.
        stored += scene.produce(name, 5, partition=1)
        again = bench.batch(10)
        assert {p.number: read.start for p, read in again.buffer.reads.items()} == {1: 0}
        bench.commit(again)
    scene.book.assert_holds(name, stored)
    assert scene.positions() == {Partition(name, 0): 5, Partition(name, 1): 10}


def test_a_dropped_chunk_is_a_refusal_and_not_a_gap(scene: Scene) -> None:
    """I3: a chunk was read and never applied: the next is refused, and reading begins again after the last commit."""
    name, stored = scene.log(10)
    with Bench(scene, name) as bench:
        bench.batch(4)  # read, and dropped by some mistake: the read position moved over it
        bench.commit(bench.batch(6))
        bench.seen.wait_for(events.Refused)
        assert scene.book.written(name) == []
        assert bench.seen.all(events.Committed) == []
        bench.commit(bench.batch(10))
    scene.book.assert_holds(name, stored)


def test_every_partition_of_a_batch_is_refused(scene: Scene) -> None:
    """I2, I3: nothing is left of the batch: no empty transaction is committed, nothing is written."""
    name, stored = scene.log(5, 2)
    with Bench(scene, name) as bench:
        batch = bench.batch(10)
        seize(scene, rival(scene), name, 0, 1)
        bench.commit(batch)
        assert bench.seen.all(events.Committed) == []
        assert scene.book.written(name) == []
        bench.commit(bench.batch(10))
    scene.book.assert_holds(name, stored)


# -- a new topic ----------------------------------------------------------------------------------------------


def test_two_workers_start_a_new_topic_at_latest_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: records that come between the two resolutions are read: what is `latest` is decided once for the topic."""
    name = scene.topic(2)
    scene.produce(name, 3)
    resolve, calls, came = Watermarks.resolve, [], threading.Event()
    stored: list[tuple[int, int]] = []

    def slowly(self: Watermarks, topic: str, *args: Any) -> Any:
        calls.append(topic)
        found = resolve(self, topic, *args)
        came.set()
        until(lambda: waits_for_lock(scene.engine, f"seekpoint % {scene.group[:30]}%"), "the other one at the lock")
        stored.extend(scene.produce(name, 5))
        stored.extend(scene.produce(name, 5, partition=1))
        return found

    monkeypatch.setattr(Watermarks, "resolve", slowly)
    pipeline = scene.pipeline(name, start=StartAt.latest())
    limits = Limits(claim_wait=20.0)
    one = scene.worker(pipeline, partitions=[(name, 0)], limits=limits)
    assert came.wait(20)
    two = scene.worker(pipeline, partitions=[(name, 1)], limits=limits)
    one.reached(name, 8)
    two.reached(name, 5, partition=1)
    one.stop()
    two.stop()
    assert calls == [name]
    scene.book.assert_holds(name, stored)
    assert [row.first_offset for row in scene.ledger.read()] == [3, 0]


# -- activation again -----------------------------------------------------------------------------------------


def test_a_partition_is_activated_again_while_it_is_read(scene: Scene, protocol: Mapping[str, Any]) -> None:
    """I3, I6: the client may still be ending the old placement when the new one seeks: it is waited for."""
    name, _ = scene.log(100)
    config = consumer_config({"bootstrap.servers": scene.broker, **protocol}, group=scene.group)
    client, assigned, at = Client(make_consumer(config), config), threading.Event(), Partition(name, 0)
    client.subscribe([name], lambda _: assigned.set(), lambda *_: None)

    def read() -> int | None:
        return next((m.offset() for m in client.read(50, 0.1) if m.error() is None), None)

    try:
        until(lambda: read() is None and assigned.is_set(), "the assignment")
        for offset in range(60):
            client.assign({at: (offset, 0)}, {})
            if offset % 2:  # while the client reads, and while its queue is full
                assert until(lambda: None if (found := read()) is None else (found,), "a record") == (offset,)
    finally:
        client.close()
