"""Records that are handled later: no earlier than their time plus the delay, in order, read from the client once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import psutil
import pytest
from sqlalchemy import Connection

from seekpoint import Batch, Limits, Partition, Pipeline, events
from seekpoint.worker.assignment.backlog import Moment
from support.events import Run
from support.worker_group import PROTOCOLS, WorkerGroup

Protocol = Mapping[str, Any]
SLACK = 5.0  # seconds later than due, on a machine that does other things too
FAR = 4_102_444_800.0  # 2100-01-01


HOUR = 3600.0


class Clock:
    """What workers of this process take for the time: the real one, and ``ahead`` seconds more."""

    ahead = 0.0

    def now(self) -> Moment:
        return Moment(time.monotonic() + self.ahead, time.time() + self.ahead)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A delay of an hour ends when the test sets this clock: the test does not wait for it."""
    clock = Clock()
    monkeypatch.setattr(Moment, "now", clock.now)
    return clock


class RecordingHandler:
    """A handler that writes the table, and notes when each record was handled."""

    def __init__(self, worker_group: WorkerGroup) -> None:
        self._worker_group = worker_group
        self.handled: dict[tuple[int, int], float] = {}

    def __call__(self, tx: Connection, batch: Batch[str, Any]) -> None:
        now = Moment.now().wall
        self.handled.update({(r.partition, r.offset): now for r in batch})
        self._worker_group.record_table.enter(tx, batch)


def delayed(worker_group: WorkerGroup, name: str, seconds: float, **options: Any) -> Pipeline:
    return worker_group.pipeline(name, delay=timedelta(seconds=seconds), **options)


def produce(
    worker_group: WorkerGroup, name: str, time: float, count: int = 1, partition: int = 0
) -> list[tuple[int, int]]:
    """So many records with this timestamp, in seconds since the epoch."""
    return worker_group.produce(name, ["x"] * count, partition=partition, timestamp=round(time * 1000))


def pulled(run: Run) -> int:
    """How many records the client has given."""
    return sum(event.records for event in run.seen.all(events.ChunkRead))


def test_a_record_is_handled_when_it_is_old_enough_and_in_order(worker_group: WorkerGroup, clock: Clock) -> None:
    name = worker_group.topic()
    handler = RecordingHandler(worker_group)
    run = worker_group.worker(delayed(worker_group, name, HOUR, handle=handler))
    run.placed()
    now = time.time()
    times = [now - 2 * HOUR, now - HOUR / 2, now - 2 * HOUR, now, now - 2 * HOUR]  # old ones after new ones
    stored = [place for time in times for place in produce(worker_group, name, time)]
    run.reached(name, 1)  # it was old enough when it was read
    for ahead, done in ((HOUR / 2 - 1, 1), (HOUR / 2, 3), (HOUR - 1, 3), (HOUR, 5)):
        clock.ahead = ahead
        run.reached(name, done)
    run.stop()
    worker_group.record_table.assert_holds(name, stored)
    for offset, due in ((1, HOUR / 2), (2, HOUR / 2), (3, HOUR), (4, HOUR)):
        assert now + due <= handler.handled[0, offset] + 0.001


def test_one_partitions_wait_does_not_hold_anothers_records(worker_group: WorkerGroup) -> None:
    name, now = worker_group.topic(2), time.time()
    produce(worker_group, name, now, 20, partition=0)
    old = produce(worker_group, name, now - 7200, 20, partition=1)
    run = worker_group.worker(delayed(worker_group, name, 3600), limits=Limits(lag_check=0.2))
    run.reached(name, 20, 1)
    run.seen.wait_for(
        events.LagSampled, lambda e: e.not_due == {Partition(name, 0)} and e.lag[Partition(name, 0)] == 20
    )
    health = run.health()
    assert health.delayed == {Partition(name, 0)}
    assert health.ready
    began = time.monotonic()
    run.stop()
    assert time.monotonic() - began < 30, "no step waits for a record that is not due"
    worker_group.record_table.assert_holds(name, old)


@pytest.mark.long
def test_what_waits_costs_no_processor_time_and_survives_a_restart(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    handler = RecordingHandler(worker_group)
    process = worker_group.worker_process(name, delay=6, kafka=PROTOCOLS["cooperative"])
    process.wait_for("Activated")
    now = time.time()
    stored = produce(worker_group, name, now, 300)
    process.wait_for("ChunkRead")
    seen = psutil.Process(process.pid)
    spent = sum(seen.cpu_times()[:2])
    worker_group.wait(lambda: time.time() > now + 3)
    assert sum(seen.cpu_times()[:2]) - spent < 0.5, "it spins"
    process.kill()
    run = worker_group.worker(delayed(worker_group, name, 6, handle=handler), kafka=PROTOCOLS["cooperative"])
    run.finish(name, 300)
    worker_group.record_table.assert_holds(name, stored)
    assert now + 6 <= min(handler.handled.values()) + 0.001


@pytest.mark.long
def test_a_timestamp_in_the_future_waits_no_longer_than_the_delay_though_the_worker_is_restarted(
    worker_group: WorkerGroup,
) -> None:
    name = worker_group.topic(config={"message.timestamp.after.max.ms": str(2**62)})
    stored = produce(worker_group, name, FAR, 20)
    first = worker_group.worker(delayed(worker_group, name, 8))
    seen = first.seen.wait_for(events.ChunkRead).at
    worker_group.wait(lambda: worker_group.ledger.read()[0].attempt_policy == "delay")
    worker_group.wait(lambda: time.monotonic() > seen + 6)
    first.stop()
    assert not first.seen.all(events.Committed)
    second = worker_group.worker(delayed(worker_group, name, 8))
    done = second.seen.wait_for(events.Committed).at
    second.finish(name, 20)
    assert seen + 7.9 <= done < seen + 8 + SLACK, "else it began anew"
    worker_group.record_table.assert_holds(name, stored)
    assert not second.seen.all(events.SingleRecordAttempt)


def test_a_rebalance_neither_loses_nor_hastens_what_waits(
    worker_group: WorkerGroup, protocol: Protocol, clock: Clock
) -> None:
    name, handler = worker_group.topic(4), RecordingHandler(worker_group)
    worker_group.expire_sessions_after()
    first = worker_group.worker(delayed(worker_group, name, HOUR, handle=handler), kafka=protocol)
    first.placed(4)
    now, stored = time.time(), []
    for partition in range(4):
        stored += produce(worker_group, name, now, 50, partition=partition)
    first.seen.wait_for(events.ChunkRead)
    second = worker_group.worker(delayed(worker_group, name, HOUR, handle=handler), kafka=protocol)
    second.placed()
    second.seen.wait_for(events.ChunkRead)
    clock.ahead = HOUR
    worker_group.finish(first, name, stored)
    second.stop()
    worker_group.record_table.assert_holds(name, stored)
    assert now + HOUR <= min(handler.handled.values()) + 0.001
    assert second.seen.all(events.Committed), "the second one has taken some over"


@pytest.mark.long
@pytest.mark.pins("batch")
@pytest.mark.parametrize("bound", ["records", "bytes"])
def test_a_full_backlog_is_bounded_and_read_once(
    worker_group: WorkerGroup, protocol: Protocol, bound: str, clock: Clock
) -> None:
    name = worker_group.topic(2)
    size, many = (1, 5000) if bound == "records" else (10_000, 600)
    limits = Limits(batch_records=1000) if bound == "records" else Limits(batch_bytes=1024 * 1024)
    patient = {**protocol, "max.poll.interval.ms": 3500}
    run = worker_group.worker(delayed(worker_group, name, HOUR), kafka=patient, limits=limits)
    run.placed(2)
    began = time.time()
    stored = worker_group.produce(name, ["x" * size] * many)
    most = 1500 if bound == "records" else 700
    run.seen.wait_for(events.ChunkRead)
    worker_group.wait(lambda: time.time() > began + 4)  # longer than the group waits for a poll
    assert 0 < pulled(run) <= most, "the backlog is bounded"
    assert not run.seen.all(events.Committed)
    clock.ahead = HOUR
    run.finish(name, many)
    assert pulled(run) == many, "nothing is read twice"
    assert not run.seen.all(events.Revoked)[:-1], "it was a member all the time"
    worker_group.record_table.assert_holds(name, stored)


def test_a_move_while_records_wait_is_obeyed(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    produce(worker_group, name, time.time(), 20)
    old = produce(worker_group, name, time.time() - 7200, 5)
    run = worker_group.worker(delayed(worker_group, name, 3600))
    run.seen.wait_for(events.ChunkRead)
    worker_group.ledger.reset_offset(name, 0, 20, log=None, reason="not these", lost="not wanted")
    run.finish(name, 25)
    worker_group.record_table.assert_holds(name, old)


@pytest.mark.pins("batch")
@pytest.mark.long
def test_a_full_backlog_stays_paused_through_other_activations(
    worker_group: WorkerGroup, protocol: Protocol, clock: Clock
) -> None:
    """Under the eager protocol that assigns everything again, and what was paused must stay so."""
    name, many = worker_group.topic(2), 4000
    run = worker_group.worker(delayed(worker_group, name, HOUR), kafka=protocol, limits=Limits(batch_records=1000))
    run.placed(2)
    stored = worker_group.produce(name, many)
    other = produce(worker_group, name, time.time() - 2 * HOUR, 10, partition=1)
    run.reached(name, 10, 1)
    run.seen.wait_for(events.ChunkRead)
    for offset in (5, 0):
        mark = run.seen.mark()
        worker_group.ledger.reset_offset(name, 1, offset, log=None, reason="again")
        run.seen.wait_for(events.Committed, since=mark)
    until = time.time() + 1  # a client that is not paused has given the rest by then
    worker_group.wait(lambda: time.time() > until)
    assert pulled(run) <= 10 + 5 + 10 + 1500
    clock.ahead = HOUR
    run.finish(name, many)
    assert pulled(run) == many + 10 + 5 + 10, "nothing of it is read twice"
    assert worker_group.record_table.written(name)[:25] == [*other, *other[5:], *other]
    assert worker_group.record_table.written(name)[25:] == stored


@pytest.mark.long
def test_a_suspended_worker_forgets_what_waits_and_reads_it_again(worker_group: WorkerGroup, clock: Clock) -> None:
    name = worker_group.topic()
    stored = produce(worker_group, name, time.time(), 20)
    run = worker_group.worker(delayed(worker_group, name, HOUR))
    run.seen.wait_for(events.ChunkRead)
    worker_group.ledger.pause(reason="a test")
    run.seen.wait_for(events.Paused)
    worker_group.ledger.resume()
    run.seen.wait_for(events.ChunkRead, count=2)
    clock.ahead = HOUR
    run.finish(name, 20)
    worker_group.record_table.assert_holds(name, stored)
