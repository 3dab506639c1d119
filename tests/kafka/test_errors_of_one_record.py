"""Errors of the database that look like the program's, or transient, and are one record's: a trigger raises them.

They are a record's only where another one was applied; its partition alone waits or stops.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from seekpoint import Limits, Partition, Pipeline, Retry, events
from seekpoint.errors import PoisonStop
from seekpoint.records import Cause
from support.worker_group import QUICK, WorkerGroup
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.pins("batch")  # A mistake is one record's only where others of its batch are applied.

SOON = Retry(attempts=3, wait_initial=0.05, jitter=0)


def refuse(worker_group: WorkerGroup, sqlstate: str, value: str = "bad") -> None:
    """From now on a trigger raises this at each row with this value."""
    raised = f"RAISE EXCEPTION 'not this one' USING ERRCODE = '{sqlstate}'"
    if sqlstate == "42883":
        raised = "PERFORM no_such_function(1)"
    worker_group.sql(
        f'CREATE FUNCTION "{worker_group.schema}".refuse() RETURNS trigger LANGUAGE plpgsql AS '
        f"$$ BEGIN IF NEW.value = '{value}' THEN {raised}; END IF; RETURN NEW; END $$",
        f'CREATE TRIGGER refuse BEFORE INSERT ON "{worker_group.schema}".book FOR EACH ROW '
        f'EXECUTE FUNCTION "{worker_group.schema}".refuse()',
    )


def raise_always(worker_group: WorkerGroup, sqlstate: str | None) -> None:
    """From now on the trigger of ``refuse`` raises this at each row; None: it raises nothing."""
    raised = "" if sqlstate is None else f"RAISE EXCEPTION 'not now' USING ERRCODE = '{sqlstate}';"
    worker_group.sql(
        f'CREATE OR REPLACE FUNCTION "{worker_group.schema}".refuse() RETURNS trigger LANGUAGE plpgsql AS '
        f"$$ BEGIN {raised} RETURN NEW; END $$"
    )


def accept(worker_group: WorkerGroup) -> None:
    """The trigger is gone."""
    worker_group.sql(f'DROP FUNCTION "{worker_group.schema}".refuse CASCADE')


def pipeline_of(worker_group: WorkerGroup, name: str, strategy: str, **options: Any) -> Pipeline:
    arguments = {"on_poison": "dead_letter", "retry": SOON, **options}
    return worker_group.pipeline(
        name, **arguments, **({"handle": worker_group.record_table.enter} if strategy == "handler" else {})
    )


def fixed(name: str, partitions: int, **options: Any) -> dict[str, Any]:
    return {"partitions": [(name, n) for n in range(partitions)], "kafka": QUICK, **options}


@pytest.mark.parametrize("strategy", ["sink", "handler"])
@pytest.mark.parametrize("sqlstate", ["OV404", "42883", "42501"])
def test_one_record_of_many_is_a_dead_letter(worker_group: WorkerGroup, sqlstate: str, strategy: str) -> None:
    refuse(worker_group, sqlstate)
    name, stored = worker_group.log([*map(str, range(150)), "bad", *map(str, range(149))])
    run = worker_group.worker(pipeline_of(worker_group, name, strategy), **fixed(name, 1))
    run.finish(name, 300)
    assert worker_group.dead_letters("sqlstate") == [(0, 150, sqlstate)]
    worker_group.record_table.assert_holds(name, [place for place in stored if place != (0, 150)])


@pytest.mark.parametrize("strategy", ["sink", "handler"])
def test_a_mistake_that_every_record_meets_ends_the_worker_and_moves_nothing(
    worker_group: WorkerGroup, strategy: str
) -> None:
    refuse(worker_group, "42883")
    name, _ = worker_group.log(["bad"] * 300)
    run = worker_group.worker(pipeline_of(worker_group, name, strategy), **fixed(name, 1))
    run.ends_with(Exception, "no_such_function")
    assert (
        worker_group.dead_letters("sqlstate"),
        worker_group.record_table.written(name),
        worker_group.positions(),
    ) == (
        [],
        [],
        {Partition(name, 0): 0},
    )


@pytest.mark.parametrize("strategy", ["sink", "handler"])
def test_many_bad_records_before_a_good_one_are_each_classified(worker_group: WorkerGroup, strategy: str) -> None:
    """None has been applied when the first one fails: others of the batch are tried, and undone."""
    refuse(worker_group, "42883")
    name, stored = worker_group.log(["bad"] * 20 + ["good"] * 20)
    run = worker_group.worker(pipeline_of(worker_group, name, strategy), **fixed(name, 1))
    run.finish(name, 40)
    assert worker_group.dead_letters("sqlstate") == [(0, n, "42883") for n in range(20)]
    worker_group.record_table.assert_holds(name, stored[20:])


@pytest.mark.parametrize("strategy", ["sink", "handler"])
def test_a_batch_of_one_proves_nothing_and_stops_its_partition_alone(worker_group: WorkerGroup, strategy: str) -> None:
    refuse(worker_group, "42883")
    name = worker_group.topic(2)
    worker_group.produce(name, ["bad"])
    run = worker_group.worker(pipeline_of(worker_group, name, strategy), **fixed(name, 2))
    stop = run.seen.wait_for(events.PartitionStopped).error
    assert isinstance(stop, PoisonStop)
    assert (stop.partition, stop.offset, stop.failure.cause) == (Partition(name, 0), 0, Cause.PROGRAM)
    assert any("start the worker again" in choice for choice in stop.choices)
    assert not any("dead_letter" in choice for choice in stop.choices)
    others = worker_group.produce(name, 5, partition=1)
    run.reached(name, 5, 1)
    assert run.health().live
    run.stop()
    assert worker_group.dead_letters("sqlstate") == []

    stored = worker_group.produce(name, 3)  # together with these, it is shown to be the record
    again = worker_group.worker(pipeline_of(worker_group, name, strategy), **fixed(name, 2))
    again.finish(name, 4)
    assert worker_group.dead_letters("sqlstate") == [(0, 0, "42883")]
    worker_group.record_table.assert_holds(name, [*others, *stored])


@pytest.mark.long
@pytest.mark.repeats("value")
@pytest.mark.parametrize("value", ["bad", "fail 1"])
def test_kills_of_a_worker_that_has_stopped_in_front_of_a_record_are_not_its_records(
    worker_group: WorkerGroup, value: str
) -> None:
    """I4: the error of the program has ended the attempt. With other records it is classified by that error."""
    refuse(worker_group, "42883", value)
    name = worker_group.topic()
    worker_group.produce(name, [value])  # "fail 1": the handler fails once, so a single-record attempt follows
    retry = {"crashes": 2, "attempts": 99, "wait_initial": 0.05}

    def start() -> WorkerProcess:
        return worker_group.worker_process(
            name, partitions=[(name, 0)], handle="crashing", on_poison="dead_letter", retry=retry
        )

    for _ in range(3):
        process = start()
        process.wait_for("PartitionStopped")
        process.kill()
        row = worker_group.ledger.read()[0]
        assert (row.attempt_running, row.attempt_crashes, worker_group.dead_letters("sqlstate")) == (False, 0, [])
    last = start()  # suspected by now: a single-record attempt
    assert "an error in the program" in last.wait_for("PartitionStopped")["error"]
    last.signal(signal.SIGTERM)
    assert last.ended() == 0
    assert worker_group.dead_letters("sqlstate") == []

    stored = worker_group.produce(name, ["ok"] * 3)
    again = worker_group.worker(pipeline_of(worker_group, name, "handler"), **fixed(name, 1))
    again.finish(name, 4)
    assert worker_group.dead_letters("sqlstate") == [(0, 0, "42883")]
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.repeats("sqlstate")
@pytest.mark.parametrize("strategy", ["sink", "handler"])
@pytest.mark.parametrize("sqlstate", ["40001", "57014", "55P03"])
def test_a_transient_error_of_one_record_is_an_attempt_and_then_stops(
    worker_group: WorkerGroup, sqlstate: str, strategy: str
) -> None:
    refuse(worker_group, sqlstate)
    name = worker_group.topic(2)
    stored = worker_group.produce(name, [*map(str, range(30)), "bad", *map(str, range(10))])
    others = worker_group.produce(name, 50, partition=1)
    run = worker_group.worker(pipeline_of(worker_group, name, strategy), **fixed(name, 2, limits=Limits(batch_age=60)))
    stop = run.seen.wait_for(events.PartitionStopped).error
    assert isinstance(stop, PoisonStop)
    assert (stop.offset, stop.failure.cause, stop.failure.attempts) == (30, Cause.TRANSIENT, 3)
    waits = run.seen.all(events.RetryScheduled)
    assert [(e.offset, e.attempt, e.then) for e in waits] == [(30, 1, "stop"), (30, 2, "stop")]
    run.reached(name, 50, 1)
    others += worker_group.produce(name, 5, partition=1)
    run.finish(name, 55, 1)
    assert worker_group.dead_letters("sqlstate") == []
    worker_group.record_table.assert_holds(name, [*stored[:30], *others])

    accept(worker_group)
    again = worker_group.worker(pipeline_of(worker_group, name, strategy), **fixed(name, 2))
    again.finish(name, 41)
    worker_group.record_table.assert_holds(name, [*stored, *others])


@pytest.mark.long
@pytest.mark.repeats("outage")
@pytest.mark.parametrize("outage", ["53100", "58030", "F0000", "25006"])
def test_an_outage_of_the_server_is_no_single_record_attempt(worker_group: WorkerGroup, outage: str) -> None:
    """Its partition is quiet, so nothing else shows that all records would be refused: it waits, and does not stop."""
    refuse(worker_group, "40001")
    name, stored = worker_group.log(["good", "bad"])
    slow = Retry(attempts=3, wait_initial=0.5, jitter=0)
    run = worker_group.worker(pipeline_of(worker_group, name, "handler", retry=slow), **fixed(name, 1))
    run.seen.wait_for(events.RetryScheduled)
    since = run.seen.mark()
    raise_always(worker_group, outage)
    run.seen.wait_for(events.SingleRecordAttempt, since=since, count=slow.attempts + 1)
    raise_always(worker_group, None)
    run.finish(name, 2)
    assert run.seen.all(events.PartitionStopped) == []
    assert {e.attempt for e in run.seen.all(events.SingleRecordAttempt)} == {2}
    worker_group.record_table.assert_holds(name, stored)


def test_a_transient_error_of_one_record_waits_over_a_restart(worker_group: WorkerGroup) -> None:
    """The attempts are on record, and each is of one record: nothing else shows any more that the error is its own."""
    refuse(worker_group, "40001")
    name, _ = worker_group.log(["good", "bad"])
    slow, quick = (Retry(attempts=3, wait_initial=wait, wait_max=wait, multiplier=1, jitter=0) for wait in (600, 0.5))
    run = worker_group.worker(pipeline_of(worker_group, name, "handler", retry=slow), **fixed(name, 1))
    run.seen.wait_for(events.RetryScheduled)
    run.stop()
    again = worker_group.worker(
        pipeline_of(worker_group, name, "handler", retry=quick), **fixed(name, 1)
    )  # waits 0.5 s of the 600 s
    stop = again.seen.wait_for(events.PartitionStopped).error
    assert isinstance(stop, PoisonStop)
    assert (stop.offset, stop.failure.attempts) == (1, 3)
    assert [e.then for e in again.seen.all(events.RetryScheduled)] == ["stop", "stop"]
    again.stop()
    assert worker_group.dead_letters("sqlstate") == []


def test_a_wait_for_one_rows_lock_is_its_records_alone_and_makes_no_part_smaller(worker_group: WorkerGroup) -> None:
    """Another session holds the row for a while: its partition waits, the other one continues."""
    name, size = worker_group.topic(2), 64
    worker_group.sql(
        f'CREATE TABLE "{worker_group.schema}".account (id text PRIMARY KEY, n int)',
        f'INSERT INTO "{worker_group.schema}".account SELECT generate_series(0, {size}), 0',
    )
    sizes: Counter[int] = Counter()

    def handle(tx: Any, batch: Any) -> None:
        worker_group.record_table.enter(tx, batch)
        tx.execute(text(f'UPDATE "{worker_group.schema}".account SET n = n + 1 WHERE id = ANY(:ids)'),
                   {"ids": [r.value for r in batch]})  # fmt: skip
        sizes[len(batch)] += 1

    stored = worker_group.produce(name, size) + worker_group.produce(name, ["none"] * 5, partition=1)
    engine = create_engine(worker_group.dsn, connect_args={"options": "-c statement_timeout=150"})
    patient = Retry(attempts=99, wait_initial=0.2, multiplier=1)
    holds, seen_waiting = worker_group.engine.connect(), threading.Event()
    try:
        holds.exec_driver_sql(f"SELECT 1 FROM \"{worker_group.schema}\".account WHERE id = '40' FOR UPDATE")
        run = worker_group.worker(pipeline_of(worker_group, name, "x", handle=handle, retry=patient), engine=engine,
                           observe=[lambda e: seen_waiting.set() if isinstance(e, events.RetryScheduled) else None],
                           **fixed(name, 2, limits=Limits(batch_age=60)))  # fmt: skip
        assert seen_waiting.wait(60)
        stored += worker_group.produce(name, ["none"] * 5, partition=1)
        run.reached(name, 10, 1)
    finally:
        holds.close()
    run.reached(name, size)
    sizes.clear()
    stored += worker_group.produce(name, ["none"] * size, partition=1)
    run.finish(name, 10 + size, 1)
    engine.dispose()
    assert sum(sizes.values()) <= 16, f"no part is as small as one record: {sizes}"
    worker_group.record_table.assert_holds(name, stored)
    assert worker_group.dead_letters("sqlstate") == []
