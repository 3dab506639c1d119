"""A stopped partition is seen from outside: its stop is stored with the choices, and its lag is reported."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from seekpoint import Limits, Pipeline, events
from seekpoint.errors import OffsetLost, TopicRecreated
from seekpoint.records import Partition
from support.command import seekpoint
from support.events import Run
from support.waiting import SECONDS
from support.worker_group import WorkerGroup

LOOKS = Limits(idle_check=0.1, lag_check=0.1)


def refusing(worker_group: WorkerGroup, name: str) -> Pipeline:
    """A pipeline whose record at offset 3 can never be applied."""
    return worker_group.pipeline(name, handle=worker_group.record_table.refusing(lambda r: r.offset == 3))


def status(worker_group: WorkerGroup, *options: str, exits: int = 0) -> str:
    """What the command prints."""
    return seekpoint("status", worker_group.group, *worker_group.server_options, *options, exits=exits).stdout


def stored(worker_group: WorkerGroup, run: Run, name: str) -> Any:
    """The stop in the ledger, once it is there; the worker stores it by its next step."""
    partition = Partition(name, 0)
    worker_group.wait(
        lambda: any(row.partition == partition and row.stop is not None for row in worker_group.ledger.read())
    )
    return next(row.stop for row in worker_group.ledger.read() if row.partition == partition)


def test_a_poison_record_stops_with_its_lag_and_its_choices(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    run = worker_group.worker(refusing(worker_group, name), limits=LOOKS)
    stop = run.seen.wait_for(events.PartitionStopped).error
    places = stored(worker_group, run, name)
    assert (places.kind, places.offset, places.choices) == ("PoisonStop", 3, stop.choices)
    assert "broken" in places.message
    run.seen.wait_for(events.LagSampled, lambda e: e.lag == {Partition(name, 0): 7}, since=run.seen.mark())
    assert run.health().lag == {Partition(name, 0): 7}
    run.stop()

    shown = status(worker_group, exits=1)
    assert f"{name}/0 stopped at offset 3 on " in shown
    assert "(PoisonStop, SP1204): " in shown
    for choice in stop.choices:
        assert f"  - {choice}" in shown
    [line] = json.loads(status(worker_group, "--json", exits=1))
    assert (line["lag"], line["stop"]["kind"], line["stop"]["choices"]) == (7, "PoisonStop", list(stop.choices))

    worker_group.ledger.reset_offset(name, 0, 4, log=(0, 10), expected=3, reason="not an order", lost="poison")
    assert [row.stop for row in worker_group.ledger.read()] == [None]
    again = worker_group.worker(refusing(worker_group, name), limits=LOOKS)
    again.finish(name, 10)
    status(worker_group)


def test_a_stop_whose_row_is_locked_by_another_session_holds_up_no_other_partition(worker_group: WorkerGroup) -> None:
    """Storing it is tried again until the lock is gone; the others do not wait for that."""
    name = worker_group.topic(2)
    worker_group.produce(name, 10)
    limits = Limits(idle_check=0.1, claim_wait=SECONDS)
    with worker_group.engine.connect() as other:

        def lock(event: events.Event) -> None:
            if isinstance(event, events.PartitionStopped):
                row = f'SELECT FROM "{worker_group.schema}".partition_offset WHERE partition = 0 FOR UPDATE'
                other.exec_driver_sql(row)

        run = worker_group.worker(
            refusing(worker_group, name), observe=[lock], limits=limits, partitions=[(name, 0), (name, 1)]
        )
        run.seen.wait_for(events.PartitionStopped)
        since = run.seen.mark()
        for n in range(3):  # records 0, 1 and 2: the handler refuses offset 3 of any partition
            worker_group.produce(name, [f"other {n}"], partition=1)
            run.reached(name, n + 1, 1)
        assert len(run.seen.all(events.Committed, since)) == 3
        assert [row.stop for row in worker_group.ledger.read()] == [None, None]
    assert stored(worker_group, run, name).offset == 3
    run.stop()


def test_a_position_past_the_log_is_no_lag_of_zero(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    partition = Partition(name, 0)
    worker_group.produce(name, 10)
    run = worker_group.worker(name, limits=LOOKS)
    run.reached(name, 10)
    worker_group.ledger.reset_offset(name, 0, 1000, log=None, reason="a slip of the hand", actor="ada")
    stop = run.seen.wait_for(events.PartitionStopped).error
    assert isinstance(stop, OffsetLost)
    places = stored(worker_group, run, name)
    assert (places.kind, places.offset, places.message) == ("OffsetLost", 1000, stop.message)
    run.seen.wait_for(
        events.LagSampled, lambda e: e.unknown == {partition} and partition not in e.lag, since=run.seen.mark()
    )
    health = run.health()
    assert dict(health.lag) == {}
    assert health.lag_unknown == frozenset({partition})
    shown = status(worker_group, exits=1)
    assert "past the end of the log (10)" in shown
    assert "ada reset it to 1000" in shown
    worker_group.ledger.reset_offset(name, 0, 10, log=(0, 10), reason="corrected")
    run.seen.wait_for(events.Activated, lambda e: e.offset == 10, since=run.seen.mark() - 1)
    run.stop()
    status(worker_group)


def test_a_claim_that_is_refused_leaves_its_stop(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(5)
    run = worker_group.worker(name)
    run.finish(name, 5)
    worker_group.ledger.reset_offset(name, 0, 5, topic_id=uuid4(), log=None, reason="a test")
    run = worker_group.worker(name, limits=LOOKS)
    stop = run.seen.wait_for(events.PartitionStopped).error
    assert isinstance(stop, TopicRecreated)
    assert stored(worker_group, run, name).choices == stop.choices
    run.seen.wait_for(events.LagSampled, lambda e: e.unknown == {Partition(name, 0)})
    run.stop()
