"""The sink ``seekpoint`` as Spark calls it, without Spark: what is refused, and what the ledger and kills do to it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from jobs.spark.frames import produced
from jobs.spark.test_frames_faults import PLACES, open_runs
from seekpoint.errors import ConfigError, Fenced, FrameFailed, RangeLost
from seekpoint.jobs.batch import steps
from seekpoint.jobs.batch.steps import BatchSteps
from support.batch_process import offsets
from support.before_cutover import widen
from support.every_row import for_each
from support.postgres_proxy import PostgresProxy, When
from support.reload_orders import OrdersGroup
from support.sink_calls import DATABASE, SinkCalls, SinkProcess

pytestmark = pytest.mark.usefixtures("frames_group", "spark_environment")


@pytest.fixture
def calls(orders_group: OrdersGroup) -> Iterator[SinkCalls]:
    produced(orders_group, 30)
    calls = SinkCalls(orders_group.brokers, orders_group.schema, orders_group.group, orders_group.topic)
    yield calls
    calls.source.end()


def written(orders_group: OrdersGroup) -> tuple[list[int], list[int]]:
    """The rows, and the positions."""
    return [row[0] for row in orders_group.rows("entries")], sorted(offsets(orders_group).values())


def test_the_ledger_decides_what_of_a_range_is_new(calls: SinkCalls, orders_group: OrdersGroup) -> None:
    """I1, I3: ranges that were applied, in whole or in part, and one that begins after the position."""
    calls.apply(0, 10)
    assert written(orders_group) == ([*range(10)], [10, 10]), "a partition without a row has moved, too"
    calls.apply(0, 10)
    calls.apply(5, 15)
    assert written(orders_group) == ([*range(15)], [15, 15])
    with pytest.raises(
        RangeLost, match=f"begins at offset 20, and group '{orders_group.group}' is at 15: the 5 offsets"
    ):
        calls.tasks(20, 25)
    assert written(orders_group) == ([*range(15)], [15, 15])
    assert [row.owner for row in orders_group.ledger().read()] == [None, None]
    assert orders_group.schemas() == []


def test_a_partition_that_was_added_since_the_plan_does_not_keep_a_new_group_from_its_start(
    calls: SinkCalls, orders_group: OrdersGroup
) -> None:
    """A checkpoint plans its first micro-batch again, with the partitions that the topic had then."""
    calls.plan(4, 10)
    widen(orders_group, 3)
    calls.commit([calls.pickled().write(calls.rows(4, 10))])
    assert written(orders_group) == ([*range(4, 10)], [0, 10, 10])


def test_positions_have_the_leader_epoch_of_the_log_before_it_was_read(
    calls: SinkCalls, orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: without one, a worker or stream does not notice that the log was truncated and written again."""
    message = calls.tasks(0, 10).write(calls.rows(0, 10))
    monkeypatch.delattr(steps, "end_epochs")  # the log may have been rewritten since it was read
    calls.commit([message])
    assert None not in [row.leader_epoch for row in orders_group.ledger().read()]


def test_a_micro_batch_that_began_before_another_one_is_fenced(calls: SinkCalls, orders_group: OrdersGroup) -> None:
    """I2: both have staged their rows; the one that has claimed last is written, whichever commits first."""
    older = calls.tasks(0, 10)
    staged = older.write(calls.rows(0, 10))
    newer = calls.tasks(0, 10)
    message = newer.write(calls.rows(0, 10))
    with pytest.raises(Fenced):
        calls.commit([staged])
    calls.writer().abort([staged], 0)
    calls.commit([message])
    assert written(orders_group) == ([*range(10)], [10, 10])
    assert orders_group.schemas() == []


def test_what_fails_because_another_has_dropped_the_run_is_fenced(
    calls: SinkCalls, orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a driver that meets the dropped tables first would end with an error of its frames or of the database."""

    def fail(*_: object) -> None:
        calls.tasks(0, 10)  # another one claims, and drops what is staged
        raise RuntimeError("relation does not exist")

    staged = calls.tasks(0, 10).write(calls.rows(0, 10))
    monkeypatch.setattr(BatchSteps, "publish", fail)
    with pytest.raises(Fenced, match="another driver has claimed its group"):
        calls.commit([staged])
    assert written(orders_group) == ([], [0, 0])


COLUMNS: dict[str, tuple[dict[str, DataType | None], str]] = {
    "no offset": ({"offset": None}, "needs the record's topic, partition, offset in its rows, and offset is not"),
    "another offset": ({"offset": LongType()}, "are not those of spark.readStream.format('seekpoint')"),
    "another topic": ({"topic": IntegerType()}, "are not those of spark.readStream.format('seekpoint')"),
    "another partition": ({"partition": StringType()}, "'partition' is string, and the record's is an integer"),
    "a type that the table does not hold": ({"amount": StringType()}, "'amount'"),
    "a column that the table does not have": ({"price": LongType()}, '"price"'),
}


@for_each(COLUMNS)
def test_columns_that_do_not_fit_are_refused_before_anything_is_claimed(
    name: str, calls: SinkCalls, orders_group: OrdersGroup
) -> None:
    changes, reason = COLUMNS[name]
    fields = {field.name: field for field in calls.columns} | {
        column: None if type_ is None else StructField(column, type_) for column, type_ in changes.items()
    }
    calls.plan(0, 10)
    with pytest.raises(ConfigError) as refused:
        calls.pickled(StructType([field for field in fields.values() if field is not None]))
    assert reason in str(refused.value)
    assert written(orders_group) == ([], [])


def test_a_stream_of_some_partitions_is_refused(calls: SinkCalls, orders_group: OrdersGroup) -> None:
    calls.plan(0, 10, whole=False)
    with pytest.raises(ConfigError, match="the stream reads some partitions of a topic, by assign"):
        calls.pickled()
    assert written(orders_group) == ([], [])


@pytest.mark.parametrize("passed", [False, True], ids=["a new range", "a range that the ledger has passed"])
def test_a_row_of_a_record_that_was_not_planned_is_refused(
    calls: SinkCalls, orders_group: OrdersGroup, *, passed: bool
) -> None:
    """It is not taken for a row that was written before: a query with state may have kept it back."""
    calls.apply(0, 5)
    if passed:
        calls.apply(5, 10)
    before = written(orders_group)
    tasks = calls.tasks(5, 10)
    messages = [tasks.write(calls.rows(5, 10)), tasks.write(calls.rows(4, 6))]
    planned = rf"{orders_group.topic}/0 \[5, 10\), {orders_group.topic}/1 \[5, 10\)"
    refused = f"topic {orders_group.topic}, partition 0, offset 4, and the micro-batch .*planned ranges are {planned}"
    with pytest.raises(FrameFailed, match=refused):
        calls.commit(messages)
    assert (written(orders_group), orders_group.schemas()) == (before, [])


def test_a_micro_batch_that_the_source_has_not_planned_is_refused(calls: SinkCalls, orders_group: OrdersGroup) -> None:
    """Spark runs one for the state of a query alone; the file of its stream has the plan before."""
    calls.apply(0, 5)
    with pytest.raises(ConfigError, match="the stream has planned nothing for this micro-batch"):
        calls.pickled()
    assert written(orders_group) == ([*range(5)], [5, 5])


def test_an_aborted_micro_batch_writes_nothing(calls: SinkCalls, orders_group: OrdersGroup) -> None:
    tasks = calls.tasks(0, 10)
    calls.writer().abort([tasks.write(calls.rows(0, 10)), None], 0)
    assert written(orders_group) == ([], [0, 0])
    assert orders_group.schemas() == []
    calls.tasks(0, 10).write(calls.rows(0, 10))
    calls.writer().abort([None, None], 0)  # its run is dropped by the next one
    calls.apply(0, 10)
    assert written(orders_group) == ([*range(10)], [10, 10])
    assert orders_group.schemas() == []


@pytest.mark.long
@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_a_commit_without_an_answer_is_looked_up(
    calls: SinkCalls, orders_group: OrdersGroup, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch, when: When
) -> None:
    """I1: whether it has taken effect is in the row of the run."""
    tasks = calls.tasks(0, 10)
    message = tasks.write(calls.rows(0, 10))
    monkeypatch.setenv(DATABASE, proxy.dsn)
    proxy.arm(when, f'INSERT INTO "{orders_group.schema}"."entries"')
    calls.commit([message])
    assert proxy.fired.is_set()
    assert written(orders_group) == ([*range(10)], [10, 10])
    assert orders_group.schemas() == []


@pytest.mark.long
def test_each_row_is_written_once_whichever_step_its_processes_are_killed_at(
    calls: SinkCalls, orders_group: OrdersGroup
) -> None:
    """I1, I3: from before the claim to after the COMMIT; then a checkpoint plans the range again, or from 0."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    places = ["called", "written", *PLACES]
    chosen.shuffle(places)
    passed, end = 0, 0
    for place in places:
        end += 3
        start, before = chosen.choice([0, passed]), passed
        SinkProcess(orders_group, start, end, place).kill_where_it_waits()
        passed, *others = sorted(offsets(orders_group).values()) or [0]
        assert set(others) <= {passed}, f"killed at {place}, seed {seed}"
        assert passed == (end if place == "applied" else before), f"killed at {place}, seed {seed}"
        assert written(orders_group)[0] == [*range(passed)], f"killed at {place}, seed {seed}"
    calls.apply(0, 30)
    assert written(orders_group) == ([*range(30)], [30, 30]), f"seed {seed}"
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)
