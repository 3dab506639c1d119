"""A batch: new rows become visible together with the positions, and workers continue after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from seekpoint import Append, Json, Pipeline, StartAt, Upsert
from seekpoint.errors import BatchRefused, ConfigError, SchemaMismatch, StandbyRequired
from seekpoint.jobs.batch import BatchJob
from seekpoint.jobs.reload import LocalStager, Run, Task
from support.batch_process import batch, offsets, paused
from support.before_cutover import started
from support.reload_orders import Order, OrdersGroup, doubled, gone, of
from support.reload_orders import pipeline as make_pipeline

FIRST = [of(n % 40, n, n) for n in range(100)] + [gone(3)]
LATER = [of(n % 50, n, n) for n in range(200, 230)]


def test_all_new_records_are_applied_and_the_positions_are_after_them(orders_group: OrdersGroup) -> None:
    """I1: rows and offsets, in one step."""
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    orders_group.produce(orders_group.topic, [of(100 + n) for n in range(7)], partition=1)
    done = batch(orders_group, range_records=30).run(reason="the nightly one")
    assert orders_group.rows() == sorted([*doubled(FIRST, by=1), *((100 + n, 1, 0) for n in range(7))])
    assert done.records == len(FIRST) + 7
    assert done.rows == {f"{orders_group.schema}.orders": len(FIRST) + 7}
    assert done.dead_letters == 0
    assert not done.is_empty
    assert (
        done.offsets == offsets(orders_group) == {f"{orders_group.topic}/0": len(FIRST), f"{orders_group.topic}/1": 7}
    )
    assert None not in [row.leader_epoch for row in orders_group.ledger().read()]
    run = batch(orders_group).runs.get(done.run)  # type: ignore[arg-type]
    assert (run.strategy, run.state, run.reason, run.swept) == ("batch", "cut_over", "the nightly one", True)
    assert orders_group.schemas() == []
    assert paused(orders_group) is None


def test_a_function_that_makes_the_pipeline_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines: list[Pipeline] = []

    def make() -> Pipeline:
        pipelines.append(Pipeline("g", topics="t", value=Json(dict), sinks=[Upsert("t", key=["id"])]))
        return pipelines[-1]

    monkeypatch.setattr("support.reload_orders.make", make, raising=False)
    job = BatchJob("support.reload_orders:make", "postgresql://u@h/db", {})
    assert pipelines == [job.pipeline]
    assert job.source.pipeline is job.pipeline
    assert job.source.name == "support.reload_orders:make"


def test_nothing_new_touches_nothing(orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    batch(orders_group).run()
    before = orders_group.ledger().read()
    done = batch(orders_group).run()
    assert done.is_empty
    assert (done.run, done.records, done.rows, done.dead_letters) == (None, 0, {}, 0)
    assert done.offsets == offsets(orders_group)
    assert done.as_dict()["is_empty"] is True
    assert orders_group.ledger().read() == before, "no claim was drawn"
    assert len(batch(orders_group).runs.list()) == 1


def test_an_upsert_of_another_topic_gets_no_rows(orders_group: OrdersGroup, topic: Callable[..., str]) -> None:
    other, into = topic(), (orders_group.schema, "entries")
    columns = ["id", "amount", "at", "topic_offset"]
    entries = Append(
        into, topics=[orders_group.topic], columns=columns, row=lambda r: (*msgspec.structs.astuple(r.value), r.offset)
    )
    orders = Upsert((orders_group.schema, "orders"), key=["id"], topics=[other])
    both = Pipeline(orders_group.group, topics=[orders_group.topic, other], value=Json(Order), sinks=[entries, orders])
    orders_group.produce(orders_group.topic, [of(1, 5, 3)], partition=0)
    assert batch(orders_group, both).run().rows == {
        f"{orders_group.schema}.entries": 1,
        f"{orders_group.schema}.orders": 0,
    }
    orders_group.produce(other, [of(2, 6, 4)], partition=0)
    assert batch(orders_group, both).run().rows == {
        f"{orders_group.schema}.entries": 0,
        f"{orders_group.schema}.orders": 1,
    }
    assert (orders_group.rows("entries"), orders_group.rows()) == ([(1, 5, 3)], [(2, 6, 4)])


def test_a_worker_and_batches_run_one_after_the_other(orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    orders_group.work(len(FIRST))
    orders_group.produce(orders_group.topic, LATER, partition=0)
    done = batch(orders_group).run()
    assert done.records == len(LATER)
    worker = orders_group.worker()
    orders_group.produce(orders_group.topic, [of(1, 77, 7)], partition=0)
    worker.finish(orders_group.topic, len(FIRST) + len(LATER) + 1)
    assert orders_group.rows() == doubled([*FIRST, *LATER, of(1, 77, 7)], by=1)


def test_a_live_worker_is_not_disturbed_without_being_asked(orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    worker = orders_group.worker()
    worker.reached(orders_group.topic, len(FIRST))
    worker.placed(2)
    orders_group.ledger().pause(reason="to have something new")
    orders_group.produce(orders_group.topic, LATER, partition=0)
    orders_group.ledger().resume()
    try:
        batch(orders_group).run()
    except BatchRefused as refused:
        assert "workers own partitions" in refused.reasons[0]  # noqa: PT017 -- or the worker was faster
        assert "pause=True" in refused.reasons[0]  # noqa: PT017
    worker.finish(orders_group.topic, len(FIRST) + len(LATER))
    assert orders_group.rows() == doubled(FIRST + LATER, by=1)


def test_with_pause_live_workers_wait_and_resume_at_the_new_offsets(orders_group: OrdersGroup) -> None:
    """I5: to them it is a move."""
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    worker = orders_group.worker()
    worker.reached(orders_group.topic, len(FIRST))
    gate: list[str | None] = []

    def look(what: str, done: int, total: int) -> None:
        gate.append(paused(orders_group))

    orders_group.produce(orders_group.topic, LATER, partition=0)
    batch(orders_group, progress=look).run(pause=True)
    orders_group.produce(orders_group.topic, [of(2, 5, 5)], partition=0)
    worker.finish(orders_group.topic, len(FIRST) + len(LATER) + 1)
    assert orders_group.rows() == doubled([*FIRST, *LATER, of(2, 5, 5)], by=1)
    assert all(by is not None and by.startswith("batch ") for by in gate)
    assert paused(orders_group) is None


def test_a_group_that_an_operator_paused_stays_paused(orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, FIRST[:10], partition=0)
    batch(orders_group).run()
    orders_group.ledger().pause(reason="for the night", actor="ops")
    orders_group.produce(orders_group.topic, FIRST[10:], partition=0)
    assert batch(orders_group).run().records == len(FIRST) - 10
    assert paused(orders_group) == "ops"
    assert orders_group.execute("SELECT count(owner) FROM {schema}.partition_offset") == [(0,)], "no owner is left"
    assert orders_group.rows() == doubled(FIRST, by=1)


def test_where_a_new_topic_begins_is_resolved_once(orders_group: OrdersGroup) -> None:
    """As a worker would: at the end of the log, and from there on nothing is left out."""
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    late: dict[str, Any] = {"start": StartAt.latest()}
    assert batch(orders_group, pipeline=late).run().is_empty
    assert offsets(orders_group) == {f"{orders_group.topic}/0": len(FIRST), f"{orders_group.topic}/1": 0}
    assert paused(orders_group) is None
    orders_group.produce(orders_group.topic, LATER, partition=0)
    assert batch(orders_group, pipeline=late).run().records == len(LATER)
    assert orders_group.rows() == doubled(LATER, by=1)


def test_a_newer_version_is_raised_and_an_older_one_refused(orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, FIRST[:10], partition=0)
    batch(orders_group).run()
    orders_group.produce(orders_group.topic, FIRST[10:20], partition=0)
    batch(orders_group, pipeline={"version": 2}).run()
    orders_group.produce(orders_group.topic, FIRST[20:], partition=0)
    with pytest.raises(Exception, match="version 2, but this process runs version 1"):
        batch(orders_group).run()
    assert paused(orders_group) is None
    assert offsets(orders_group)[f"{orders_group.topic}/0"] == 20


def test_a_version_that_a_reload_is_opened_for_waits_for_it(orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, FIRST[:10], partition=0)
    batch(orders_group).run()
    orders_group.produce(orders_group.topic, FIRST[10:], partition=0)
    reload, driver = started(orders_group.reload())
    with pytest.raises(StandbyRequired, match=str(driver.run.id)):
        batch(orders_group, pipeline={"version": 2}).run()
    assert paused(orders_group) is None
    assert batch(orders_group).run().records == len(FIRST) - 10, "the old version is still in use"
    reload.run(driver)
    assert orders_group.rows() == doubled(FIRST)
    orders_group.produce(orders_group.topic, LATER, partition=0)
    assert batch(orders_group, pipeline={"version": 2}).run().records == len(LATER)
    assert orders_group.rows() == doubled(FIRST + LATER)


def test_a_batch_is_taken_with_its_own_code_alone(orders_group: OrdersGroup, topic: Any) -> None:
    """Another version, other topics, other tables: refused, and the run has not changed hands."""
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    local = LocalStager(
        orders_group.engine,
        orders_group.schema,
        {"bootstrap.servers": orders_group.brokers},
        [batch(orders_group).source],
    )

    def away(run: Run, tasks: Sequence[Task]) -> Any:
        yield from local.stage(run, tasks[:1])
        raise OSError("the machine is gone")

    with pytest.raises(OSError, match="is gone"):
        batch(orders_group, stager=SimpleNamespace(stage=away)).run()
    (run,) = batch(orders_group).runs.list()
    other_pipeline = make_pipeline(orders_group.group, topic(1), orders_group.schema)
    for other, why in (
        (
            orders_group.pipeline(version=2),
            "is of group .* with handler version 1, and the code of this process is version 2",
        ),
        (orders_group.pipeline(kind="append"), "writes .*orders, and these sinks write .*entries"),
        (other_pipeline, f"reads {orders_group.topic}, and this pipeline does not"),
    ):
        with pytest.raises(ConfigError, match=why):
            batch(orders_group, other).take_over(run.id)
    assert batch(orders_group).runs.get(run.id).driver_epoch == run.driver_epoch == 1
    assert orders_group.execute("SELECT version FROM {schema}.consumer_group") == [(1,)]
    assert batch(orders_group).take_over(run.id).records == len(FIRST)
    assert orders_group.rows() == doubled(FIRST, by=1)


def test_a_ledger_that_is_not_there_is_said(orders_group: OrdersGroup) -> None:
    with pytest.raises(SchemaMismatch, match="seekpoint db upgrade"):
        BatchJob(
            orders_group.pipeline(),
            orders_group.engine,
            {"bootstrap.servers": orders_group.brokers},
            schema="nowhere_at_all",
        ).run()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"handle": lambda tx, batch: None}, "let workers run the handler"),
        ({"delay": timedelta(hours=1)}, "delay"),
    ],
)
def test_what_only_workers_do_is_refused(orders_group: OrdersGroup, options: dict[str, Any], why: str) -> None:
    pipeline = orders_group.pipeline(**options)
    assert isinstance(pipeline, Pipeline)
    with pytest.raises(ConfigError, match=why):
        batch(orders_group, pipelines=pipeline)
