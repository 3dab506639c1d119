"""A record whose handler raises: tried again on the stated schedule, its partition waiting, the others not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import text

from seekpoint import Limits, Partition, Retry, events
from seekpoint.errors import PoisonStop
from support.crashing_handlers import CrashingHandler
from support.events import Run
from support.worker_group import PROTOCOLS, WorkerGroup

Protocol = Mapping[str, Any]
WAIT = 8.0  # seconds of a wait during which something else must happen, which takes about one
LATE = 20.0  # seconds later than due, on a machine that does other things too


def start(
    worker_group: WorkerGroup,
    name: str,
    retry: Retry,
    on_poison: str = "dead_letter",
    crashing_handler: CrashingHandler | None = None,
    **options: Any,
) -> Run:
    """A worker whose handler fails as the records say."""
    handle, delay = crashing_handler or CrashingHandler(worker_group.record_table), options.pop("delay", None)
    pipeline = worker_group.pipeline(name, handle=handle, retry=retry, on_poison=on_poison, delay=delay)
    return worker_group.worker(pipeline, observe=[handle.watch], **options)


@pytest.mark.long
def test_the_schedule_is_kept_and_announced_and_the_others_resume(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(2)
    values = ["ok"] * 5 + ["fail 3"] + ["ok"] * 5
    stored = worker_group.produce(name, values, partition=0)
    retry = Retry(attempts=5, wait_initial=0.5, multiplier=3, jitter=0)
    run = start(worker_group, name, retry)
    run.seen.wait_for(events.RetryScheduled)
    assert run.health().retrying[Partition(name, 0)].offset == 5
    assert worker_group.positions()[Partition(name, 0)] == 5, "what was before it is committed"
    stored += worker_group.produce(name, 50, partition=1)
    run.reached(name, 50, 1)
    assert not run.seen.all(events.RetrySucceeded), "while the other one waits"
    with worker_group.engine.connect() as connection:
        busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE :ours AND xact_start IS NOT NULL"
        ours = f"%{worker_group.group}"[:40] + "%"
        worker_group.wait(lambda: connection.execute(text(busy), {"ours": ours}).scalar_one() == 0)
    run.finish(name, 11, 0)
    waits = run.seen.all(events.RetryScheduled)
    assert [(e.offset, e.attempt, e.attempts, e.wait, e.then) for e in waits] == [
        (5, 1, 5, 0.5, "dead_letter"),
        (5, 2, 5, 1.5, "dead_letter"),
        (5, 3, 5, 4.5, "dead_letter"),
    ]
    tried = run.seen.all(events.SingleRecordAttempt)
    assert [e.attempt for e in tried] == [2, 3, 4]
    opened = [e.attempt for e in run.seen.events if isinstance(e, events.BatchOpened) and e.at > tried[0].at]
    assert set(opened) == {1}, "what is tried alone is handed on once"
    for scheduled, begun in zip(waits, tried, strict=True):
        assert scheduled.wait <= begun.at - scheduled.at + 0.001 < scheduled.wait + LATE
    assert not run.health().retrying
    assert [(e.offset, e.attempt) for e in run.seen.all(events.RetrySucceeded)] == [(5, 4)]
    worker_group.record_table.assert_holds(name, stored)
    assert not worker_group.dead_letters("state", "cause", "attempts")


def test_after_the_last_attempt_it_is_poison(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    stored = worker_group.produce(name, ["ok", "fail", "ok", "fail", "fail", "ok"])
    run = start(worker_group, name, Retry(attempts=3, wait_initial=0.1))
    run.finish(name, 6)
    worker_group.record_table.assert_holds(name, [stored[0], stored[2], stored[5]])
    assert worker_group.dead_letters("state", "cause", "attempts") == [
        (0, offset, "dead_lettered", "handler", 3) for offset in (1, 3, 4)
    ]
    assert not run.seen.all(events.RetrySucceeded)


def test_under_stop_the_partition_stops_in_front_of_it_and_a_new_worker_tries_once_more(
    worker_group: WorkerGroup,
) -> None:
    name, stored = worker_group.log(["ok", "fail 2", "ok"])
    retry = Retry(attempts=2, wait_initial=0.1)
    run = start(worker_group, name, retry, "stop")
    stop = run.seen.wait_for(events.PartitionStopped).error
    assert isinstance(stop, PoisonStop)
    assert not run.health().retrying
    run.stop()
    corrected = CrashingHandler(worker_group.record_table)
    corrected.failed[0, 1] = 2
    again = start(worker_group, name, retry, "stop", corrected)
    again.finish(name, 3)
    assert [e.attempt for e in again.seen.all(events.SingleRecordAttempt)] == [3]
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_wait_is_no_longer_than_its_schedule_though_the_databases_clock_was_set_back(
    worker_group: WorkerGroup,
) -> None:
    """What is on record is a time of the database: an hour is put on it here, as if its clock had lost one."""
    name, stored = worker_group.log(["ok", "fail 1", "ok"])
    retry = Retry(attempts=3, wait_initial=2.0, jitter=0)
    run = start(worker_group, name, retry, "stop")
    run.seen.wait_for(events.RetryScheduled)
    run.stop()
    with worker_group.engine.begin() as tx:
        later = f"UPDATE \"{worker_group.schema}\".partition_trouble SET retry_at = retry_at + interval '1 hour'"
        assert tx.execute(text(later)).rowcount == 1
    again = start(worker_group, name, retry, "stop")
    assert again.seen.wait_for(events.RetryScheduled).wait <= 2.0
    again.finish(name, 3)
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_wait_survives_a_kill_of_its_process(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(["ok", "fail 1", "ok"])
    wait: dict[str, Any] = {"attempts": 3, "wait_initial": WAIT, "jitter": 0}
    process = worker_group.worker_process(
        name, handle="crashing", retry=wait, on_poison="dead_letter", kafka=PROTOCOLS["cooperative"]
    )
    failed = float(process.wait_for("RetryScheduled")["at"])  # one clock for all processes
    process.kill()
    run = start(worker_group, name, Retry(**wait), kafka=PROTOCOLS["cooperative"])
    retry_event = run.seen.wait_for(events.RetryScheduled)
    assert (retry_event.attempt, retry_event.attempts) == (1, 3)
    assert retry_event.failure.error.startswith("TimeoutError: no answer for 1 (at ")
    assert "crashing_handlers.py:" in retry_event.failure.error
    assert retry_event.wait < WAIT
    run.reached(name, 3)
    tried = run.seen.all(events.SingleRecordAttempt)
    run.stop()
    assert [e.attempt for e in tried] == [2]
    assert WAIT - 0.5 < tried[0].at - failed < WAIT + LATE, "what was left of the wait"
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_wait_survives_a_rebalance(worker_group: WorkerGroup, protocol: Protocol) -> None:
    worker_group.expire_sessions_after()
    name, crashing_handler = worker_group.topic(2), CrashingHandler(worker_group.record_table)
    stored = [place for n in range(2) for place in worker_group.produce(name, ["ok", "fail 1", "ok"], partition=n)]
    retry = Retry(attempts=3, wait_initial=WAIT, jitter=0)
    first = start(worker_group, name, retry, crashing_handler=crashing_handler, kafka=protocol)
    first.seen.wait_for(events.RetryScheduled, count=2)
    failed = max(e.at for e in first.seen.all(events.RetryScheduled))
    second = start(worker_group, name, retry, crashing_handler=crashing_handler, kafka=protocol)
    retry_event = second.seen.wait_for(events.RetryScheduled)
    assert retry_event.wait < WAIT
    assert time.monotonic() < failed + WAIT, "the rebalance took too long to show anything"
    worker_group.wait_until_caught_up(name, stored)
    tried = [e for run in (first, second) for e in run.seen.all(events.SingleRecordAttempt)]
    first.stop()
    second.stop()
    assert [e.attempt for e in tried] == [2, 2]
    assert all(failed + WAIT - 0.5 < e.at < failed + WAIT + LATE for e in tried)
    worker_group.record_table.assert_holds(name, stored)


def test_a_stop_does_not_wait_for_a_retry(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(["ok", "fail", "ok"])
    run = start(worker_group, name, Retry(wait_initial=60))
    run.seen.wait_for(events.RetryScheduled)
    began = time.monotonic()
    run.stop()
    assert time.monotonic() - began < 30
    worker_group.record_table.assert_holds(name, stored[:1])


@pytest.mark.long
def test_records_after_a_delayed_one_are_read_once_and_bounded(worker_group: WorkerGroup, protocol: Protocol) -> None:
    name, many = worker_group.topic(2), 4000
    stored = worker_group.produce(name, ["fail 1"] + ["ok"] * (many - 1))
    retry, limits = Retry(attempts=3, wait_initial=WAIT, jitter=0), Limits(batch_records=1000)
    run = start(worker_group, name, retry, kafka=protocol, limits=limits)
    run.seen.wait_for(events.RetryScheduled)
    stored += worker_group.produce(name, 100, partition=1)
    run.reached(name, 100, 1)
    assert sum(e.records for e in run.seen.all(events.ChunkRead)) <= 100 + 1000 + 1000
    run.finish(name, many)
    assert sum(e.records for e in run.seen.all(events.ChunkRead)) == many + 100
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
@pytest.mark.repeats("delay")
@pytest.mark.parametrize("delay", [None, 1])
def test_many_partitions_that_fail_at_once_each_keep_their_own_schedule(
    worker_group: WorkerGroup, delay: int | None
) -> None:
    name = worker_group.topic(6)
    values = ["fail 2" if n % 10 == 3 else "ok" for n in range(30)]
    stored = [place for n in range(6) for place in worker_group.produce(name, values, partition=n)]
    later = None if delay is None else timedelta(seconds=delay)
    run = start(worker_group, name, Retry(attempts=4, wait_initial=0.2, wait_max=0.3), delay=later)
    worker_group.finish(run, name, stored)
    worker_group.record_table.assert_holds(name, stored)
    for partition in {Partition(name, n) for n in range(6)}:
        numbers = [(e.offset, e.attempt) for e in run.seen.all(events.SingleRecordAttempt) if e.partition == partition]
        assert numbers == sorted(numbers)
        assert all(a[0] < b[0] or a[1] + 1 == b[1] for a, b in pairwise(numbers))
    assert not worker_group.dead_letters("state", "cause", "attempts")
