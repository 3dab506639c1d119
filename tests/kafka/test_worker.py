"""What one worker reads and writes: batches, limits, memory, and logs with gaps, control records and open ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Connection

from seekpoint import Batch, Limits, Partition, events
from support.log_changes import COMPACTED, in_transactions, messages
from support.worker_group import QUICK, WorkerGroup

# -- batches ------------------------------------------------------------------------------------------------


def test_one_record_is_written_at_once_in_a_transaction_of_its_own(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    run = worker_group.worker(name)
    run.placed()
    stored = []
    for n in range(5):
        stored += worker_group.produce(name, [f"{n}"])
        run.reached(name, n + 1)
    run.stop()
    assert [e.records for e in run.seen.all(events.Committed)] == [1] * 5
    assert min(e.seconds for e in run.seen.all(events.Committed)) < 1, "no linger: it commits when the queue is empty"
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.pins("batch")
def test_many_records_are_written_in_big_batches(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(3)
    stored = [place for number in range(3) for place in worker_group.produce(name, 10_000, partition=number)]
    run = worker_group.worker(name)
    worker_group.finish(run, name, stored)
    sizes = [e.records for e in run.seen.all(events.Committed)]
    assert sum(sizes) == 30_000
    assert max(sizes) > 2_000
    assert len(sizes) < 30
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.pins("batch")
@pytest.mark.parametrize("most", [120, 700])
@pytest.mark.parametrize("handler", [False, True], ids=["streamed", "whole"])
def test_limits_bound_the_records_of_a_transaction(worker_group: WorkerGroup, handler: bool, most: int) -> None:
    name, stored = worker_group.log(4_000)
    pipeline = (
        worker_group.pipeline(name, handle=worker_group.record_table.enter) if handler else worker_group.pipeline(name)
    )
    run = worker_group.worker(pipeline, limits=Limits(batch_records=most))
    run.finish(name, 4_000)
    assert 100 < max(e.records for e in run.seen.all(events.Committed)) <= most
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.pins("batch")
def test_limits_bound_the_bytes_of_a_transaction(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(["x" * 10_000] * 3_000)
    run = worker_group.worker(name, limits=Limits(batch_bytes=1_000_000))
    run.finish(name, 3_000)
    # The size of a chunk is known when it is read: the last one may go beyond the limit.
    assert max(e.records for e in run.seen.all(events.Committed)) <= 100 + 500
    worker_group.record_table.assert_holds(name, stored)


def test_the_handler_gets_whole_batches_in_the_order_of_the_log(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(2)
    batches: list[Batch[str, Any]] = []

    def keep(tx: Connection, batch: Batch[str, Any]) -> None:
        batches.append(batch)
        worker_group.record_table.enter(tx, batch)

    stored = worker_group.produce(name, 300, partition=0) + worker_group.produce(name, 300, partition=1)
    run = worker_group.worker(worker_group.pipeline(name, handle=keep))
    worker_group.finish(run, name, stored)
    for batch in batches:
        for span in batch.spans:
            assert [r.offset for r in batch.by_partition()[span.partition]] == list(range(span.start, span.end))
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_slow_database_bounds_memory_instead_of_filling_it(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    worker_group.produce(name, ["x" * 1_000] * 60_000)  # 60 MB
    process = worker_group.worker_process(
        name,
        handle="slow",
        limits={"batch_records": 500, "batch_bytes": 500_000},
        kafka={**QUICK, "queued.max.messages.kbytes": 2048, "fetch.message.max.bytes": 262_144},
    )
    process.wait_for("Committed", count=2)
    early = process.memory()
    process.wait_for("Committed", count=14)
    assert process.memory() - early < 20_000_000, "what is not yet written stays in Kafka"


# -- what is not in the log, or not yet ---------------------------------------------------------------------


def test_i3_aborted_records_and_control_records_are_gaps_not_losses(worker_group: WorkerGroup) -> None:
    """I3: they are not delivered to anybody; the position goes over them, the trailing marker too."""
    name = worker_group.topic()
    in_transactions(worker_group.broker, name, (2, True), (2, False), (1, True))  # with markers at 2, 5 and 7
    run = worker_group.worker(name)
    worker_group.wait_for_position(name, 8)  # over the trailing marker too: it must not look like a lag for ever
    assert not run.seen.all(events.PartitionStopped)
    run.stop()
    worker_group.record_table.assert_holds(name, [(0, 0), (0, 1), (0, 6)])
    again = worker_group.worker(name)
    again.placed()
    worker_group.produce(name, ["d"])
    again.finish(name, 9)
    assert [e.offset for e in again.seen.all(events.Activated)] == [8]
    assert not again.seen.all(events.PartitionStopped)
    worker_group.record_table.assert_holds(name, [(0, 0), (0, 1), (0, 6), (0, 8)])


def test_i3_a_log_that_ends_in_an_aborted_transaction_is_passed(worker_group: WorkerGroup) -> None:
    """I3: nothing is applied, and the position is at the log's end."""
    name = worker_group.topic()
    in_transactions(worker_group.broker, name, (3, False))
    run = worker_group.worker(name)
    worker_group.wait_for_position(name, 4)
    run.stop()
    assert worker_group.record_table.written(name) == []


def test_records_after_an_open_transaction_wait_for_its_end(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(3)
    producer = in_transactions(worker_group.broker, name, (1, None))  # 3
    worker_group.produce(name, 2)  # 4, 5: cannot be read before it is decided
    run = worker_group.worker(name, limits=Limits(lag_check=0.2))
    run.reached(name, 3)
    sampled = run.seen.mark()
    run.seen.wait_for(events.LagSampled, lambda e: e.lag == {(name, 0): 0}, since=sampled)
    run.seen.wait_for(events.LagSampled, since=sampled, count=5)
    assert worker_group.positions() == {Partition(name, 0): 3}
    producer.commit_transaction(30)
    worker_group.wait_for_position(name, 7)
    run.stop()
    worker_group.record_table.assert_holds(name, [*stored, (0, 3), (0, 4), (0, 5)])


@pytest.mark.long
def test_a_compacted_log_is_read_across_its_holes(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(config=COMPACTED)
    for n in range(20):  # few keys, many segments: the cleaner leaves the last record of each key
        worker_group.produce(name, [(f"key-{k}", f"{n}") for k in range(3)])
        threading.Event().wait(0.12)
    worker_group.produce(name, [("last", "0")])
    worker_group.wait(lambda: len(log(worker_group, name)) < 40, 90)
    run = worker_group.worker(name)
    run.finish(name, 61)
    assert not run.seen.all(events.PartitionStopped)
    written = worker_group.record_table.written(name)
    assert len(written) < 40, "the log was compacted before it was read"
    assert written == sorted(set(written))
    assert set(log(worker_group, name)) <= set(written)
    worker_group.ledger.reset_offset(name, 0, 1, log=None, reason="read again, from an offset that was compacted away")
    again = worker_group.worker(name)
    again.finish(name, 61)
    assert not again.seen.all(events.PartitionStopped)


def log(worker_group: WorkerGroup, name: str) -> list[tuple[int, int | None]]:
    """What is in the log now."""
    return [(0, message.offset()) for message in messages(worker_group.broker, name)]


# -- a pause under a running worker -------------------------------------------------------------------------


def test_a_paused_group_is_healthy_again_when_it_is_resumed(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(10)
    run = worker_group.worker(name)
    run.reached(name, 10)
    worker_group.ledger.pause(reason="maintenance", actor="ann")
    run.seen.wait_for(events.Paused)
    stored += worker_group.produce(name, 5)
    health = run.health()
    assert "maintenance" in (health.trouble or "")
    assert (health.live, health.ready) == (True, False)
    mark = run.seen.mark()
    worker_group.ledger.resume()
    run.seen.wait_for(events.Activated, since=mark)
    run.reached(name, 15)
    run.ready()
    run.stop()
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_paused_group_without_records_is_healthy_again_when_it_is_resumed(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    run = worker_group.worker(name)
    run.placed()
    worker_group.ledger.pause(reason="maintenance", actor="ann")
    run.seen.wait_for(events.Paused)
    worker_group.ledger.resume()
    run.ready()
    run.stop()
