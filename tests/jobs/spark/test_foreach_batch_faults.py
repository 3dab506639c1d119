"""A query's ``foreachBatch`` under faults: drivers killed at every step, a lost answer, changed tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame

from jobs.spark.frames import doubled, entries, produced
from jobs.spark.orders import DATABASE
from jobs.spark.test_foreach_batch import Query, query  # noqa: F401 -- a fixture
from jobs.spark.test_frames_faults import PLACES, open_runs
from support.batch_process import offsets
from support.frames_process import FramesProcess
from support.log_changes import delete
from support.postgres_proxy import PostgresProxy, When
from support.reload_orders import OrdersGroup
from support.waiting import until

pytestmark = pytest.mark.usefixtures("frames_group")


@pytest.mark.long
def test_each_record_is_applied_once_whichever_step_the_driver_is_killed_at(
    query: Query,  # noqa: F811 -- the fixture
    orders_group: OrdersGroup,
    frames_pipeline: Callable[..., str],
    modules: Path,
) -> None:
    """I1, I3: from before the claim to after the COMMIT, which Spark's checkpoint does not know of then.

    Four of the seven steps a run: each driver starts a Java and five Pythons, which take a minute of a busy machine.
    """
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    places = random.Random(seed).sample(["called", *PLACES], 4)
    name, count, before = frames_pipeline(), 0, 0
    for place in places:
        produced(orders_group, 5, first=count)
        count += 5
        what = {"step": place, "checkpoint": str(query.checkpoint), "topic": orders_group.topic}
        FramesProcess(orders_group, name, modules, **what).kill_where_it_waits()
        passed, *others = sorted(offsets(orders_group).values()) or [0]
        assert set(others) <= {passed}, f"killed at {place}, seed {seed}"
        assert (passed > before) is (place == "applied"), f"killed at {place}, seed {seed}"
        assert orders_group.rows("entries") == entries(passed), f"killed at {place}, seed {seed}"
        before = passed
    query.run(name)
    assert (orders_group.rows("entries"), orders_group.rows("orders")) == (entries(count), doubled(count)), (
        f"seed {seed}"
    )
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)


@pytest.mark.long("a query is stopped between two of its micro-batches, and started again")
def test_available_now_that_is_stopped_half_way_is_continued(
    query: Query,  # noqa: F811
    orders_group: OrdersGroup,
    frames_pipeline: Callable[..., str],
) -> None:
    name = frames_pipeline()
    produced(orders_group, 40)
    running = query.start(name, query.stream(maxOffsetsPerTrigger=10))
    until(lambda: orders_group.rows("entries"), "rows of the first micro-batch", 120)
    running.stop()
    applied = len(orders_group.rows("entries"))
    assert sum(offsets(orders_group).values()) == applied
    query.run(name, query.stream(maxOffsetsPerTrigger=30))
    assert (orders_group.rows("entries"), orders_group.rows("orders")) == (entries(40), doubled(40))


@pytest.mark.parametrize("begun", [True, False], ids=["the group has begun", "a new group"])
@pytest.mark.long("a topic is deleted and created again within a micro-batch")
def test_a_topic_that_is_created_again_after_the_plan_is_not_applied(
    query: Query,  # noqa: F811
    orders_group: OrdersGroup,
    frames_pipeline: Callable[..., str],
    *,
    begun: bool,
) -> None:
    """What was planned are offsets of the topic before, and the new one has as many."""
    name = frames_pipeline()
    if begun:
        produced(orders_group, 10)
        query.run(name)
    before = offsets(orders_group)
    produced(orders_group, 5, first=10)
    kafka: dict[str, Any] = {"bootstrap.servers": orders_group.brokers}
    admin = AdminClient(kafka)
    apply_as_is = query.apply

    def apply(function: Any, frame: DataFrame, number: int) -> None:
        delete(kafka, admin, orders_group.topic)
        admin.create_topics([NewTopic(orders_group.topic, 2, 1)], operation_timeout=20)[orders_group.topic].result(30)
        produced(orders_group, 50, first=1000)
        apply_as_is(function, frame, number)

    query.apply = apply  # type: ignore[method-assign]
    assert "was deleted and created again" in query.refused(name)
    assert orders_group.rows("entries") == entries(10 if begun else 0)
    assert sum(offsets(orders_group).values()) == sum(before.values())


@pytest.mark.long("a query runs on while its table is altered, until it is refused")
def test_a_table_that_is_altered_between_micro_batches_ends_the_query_and_nothing_is_lost(
    query: Query,  # noqa: F811
    orders_group: OrdersGroup,
    frames_pipeline: Callable[..., str],
) -> None:
    name = frames_pipeline()
    produced(orders_group, 5)
    running = query.start(name, now=False)
    until(lambda: orders_group.rows("entries") == entries(5), "the first rows", 120)
    orders_group.execute("ALTER TABLE {schema}.orders ALTER amount TYPE real")
    produced(orders_group, 5, first=5)
    until(lambda: not running.isActive, "the query ends", 120)
    assert "'amount'" in str(running.exception())
    assert (orders_group.rows("entries"), orders_group.rows("orders")) == (entries(5), doubled(5))
    assert sorted(offsets(orders_group).values()) == [5, 5]
    orders_group.execute("ALTER TABLE {schema}.orders ALTER amount TYPE bigint, ADD remark text DEFAULT 'new'")
    query.run(name)
    assert (orders_group.rows("entries"), orders_group.rows("orders")) == (entries(10), doubled(10))


@pytest.mark.long("the surroundings of a lost connection")
@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_a_commit_without_an_answer_is_looked_up(
    query: Query,  # noqa: F811
    orders_group: OrdersGroup,
    frames_pipeline: Callable[..., str],
    proxy: PostgresProxy,
    monkeypatch: pytest.MonkeyPatch,
    *,
    when: When,
) -> None:
    """I1: whether it has taken effect is in the row of the run."""
    name = frames_pipeline()
    produced(orders_group, 10)
    monkeypatch.setenv(DATABASE.name, proxy.dsn)  # of the driver: tasks inherited the variable from Spark's Java
    proxy.arm(when, f'INSERT INTO "{orders_group.schema}"."entries"', skip=1)  # the first one only checks the table
    query.run(name)
    assert proxy.fired.is_set()
    assert (orders_group.rows("entries"), orders_group.rows("orders")) == (entries(10), doubled(10))
    assert sorted(offsets(orders_group).values()) == [10, 10]
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)
