"""A batch: new rows become visible together with the positions, and workers continue after it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from seekpoint import Json, Pipeline, StartAt, Upsert
from seekpoint.errors import BatchRefused, ConfigError, SchemaMismatch, StandbyRequired
from seekpoint.jobs.batch import BatchJob
from seekpoint.jobs.reload import LocalStager, Run, Task
from support.batch_process import batch, offsets, paused
from support.before_cutover import started
from support.reload_orders import Shop, doubled, gone, of
from support.reload_orders import pipeline as make_pipeline

FIRST = [of(n % 40, n, n) for n in range(100)] + [gone(3)]
LATER = [of(n % 50, n, n) for n in range(200, 230)]


def test_all_new_records_are_applied_and_the_positions_are_after_them(shop: Shop) -> None:
    """I1: rows and offsets, in one step."""
    shop.produce(shop.topic, FIRST, partition=0)
    shop.produce(shop.topic, [of(100 + n) for n in range(7)], partition=1)
    done = batch(shop, range_records=30).run(reason="the nightly one")
    assert shop.rows() == sorted([*doubled(FIRST, by=1), *((100 + n, 1, 0) for n in range(7))])
    assert done.records == len(FIRST) + 7
    assert done.rows == {f"{shop.schema}.orders": len(FIRST) + 7}
    assert done.dead_letters == 0
    assert not done.is_empty
    assert done.offsets == offsets(shop) == {f"{shop.topic}/0": len(FIRST), f"{shop.topic}/1": 7}
    run = batch(shop).runs.get(done.run)  # type: ignore[arg-type]
    assert (run.strategy, run.state, run.reason, run.swept) == ("batch", "cut_over", "the nightly one", True)
    assert shop.schemas() == []
    assert paused(shop) is None


def test_a_function_that_makes_the_pipeline_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Pipeline] = []

    def make() -> Pipeline:
        made.append(Pipeline("g", topics="t", value=Json(dict), sinks=[Upsert("t", key=["id"])]))
        return made[-1]

    monkeypatch.setattr("support.reload_orders.make", make, raising=False)
    one = BatchJob("support.reload_orders:make", "postgresql://u@h/db", {})
    assert made == [one.pipeline]
    assert one.source.pipeline is one.pipeline
    assert one.source.name == "support.reload_orders:make"


def test_nothing_new_touches_nothing(shop: Shop) -> None:
    shop.produce(shop.topic, FIRST, partition=0)
    batch(shop).run()
    before = shop.ledger().read()
    done = batch(shop).run()
    assert done.is_empty
    assert (done.run, done.records, done.rows, done.dead_letters) == (None, 0, {}, 0)
    assert done.offsets == offsets(shop)
    assert done.as_dict()["is_empty"] is True
    assert shop.ledger().read() == before, "no claim was drawn"
    assert len(batch(shop).runs.list()) == 1


def test_a_worker_and_batches_run_one_after_the_other(shop: Shop) -> None:
    shop.produce(shop.topic, FIRST, partition=0)
    shop.work(len(FIRST))
    shop.produce(shop.topic, LATER, partition=0)
    done = batch(shop).run()
    assert done.records == len(LATER)
    worker = shop.worker()
    shop.produce(shop.topic, [of(1, 77, 7)], partition=0)
    worker.finish(shop.topic, len(FIRST) + len(LATER) + 1)
    assert shop.rows() == doubled([*FIRST, *LATER, of(1, 77, 7)], by=1)


def test_a_live_worker_is_not_disturbed_without_being_asked(shop: Shop) -> None:
    shop.produce(shop.topic, FIRST, partition=0)
    worker = shop.worker()
    worker.reached(shop.topic, len(FIRST))
    worker.placed(2)
    shop.ledger().pause(reason="to have something new")
    shop.produce(shop.topic, LATER, partition=0)
    shop.ledger().resume()
    try:
        batch(shop).run()
    except BatchRefused as refused:
        assert "workers own partitions" in refused.reasons[0]  # noqa: PT017 -- or the worker was faster
        assert "pause=True" in refused.reasons[0]  # noqa: PT017
    worker.finish(shop.topic, len(FIRST) + len(LATER))
    assert shop.rows() == doubled(FIRST + LATER, by=1)


def test_with_pause_live_workers_wait_and_resume_at_the_new_offsets(shop: Shop) -> None:
    """I5: to them it is a move."""
    shop.produce(shop.topic, FIRST, partition=0)
    worker = shop.worker()
    worker.reached(shop.topic, len(FIRST))
    gate: list[str | None] = []

    def look(what: str, done: int, total: int) -> None:
        gate.append(paused(shop))

    shop.produce(shop.topic, LATER, partition=0)
    batch(shop, progress=look).run(pause=True)
    shop.produce(shop.topic, [of(2, 5, 5)], partition=0)
    worker.finish(shop.topic, len(FIRST) + len(LATER) + 1)
    assert shop.rows() == doubled([*FIRST, *LATER, of(2, 5, 5)], by=1)
    assert all(by is not None and by.startswith("batch ") for by in gate)
    assert paused(shop) is None


def test_a_group_that_an_operator_paused_stays_paused(shop: Shop) -> None:
    shop.produce(shop.topic, FIRST[:10], partition=0)
    batch(shop).run()
    shop.ledger().pause(reason="for the night", actor="ops")
    shop.produce(shop.topic, FIRST[10:], partition=0)
    assert batch(shop).run().records == len(FIRST) - 10
    assert paused(shop) == "ops"
    assert shop.execute("SELECT count(owner) FROM {schema}.partition_offset") == [(0,)], "nobody is left as an owner"
    assert shop.rows() == doubled(FIRST, by=1)


def test_where_a_new_topic_begins_is_resolved_once(shop: Shop) -> None:
    """As a worker would: at the end of the log, and from there on nothing is left out."""
    shop.produce(shop.topic, FIRST, partition=0)
    late: dict[str, Any] = {"start": StartAt.latest()}
    assert batch(shop, pipeline=late).run().is_empty
    assert offsets(shop) == {f"{shop.topic}/0": len(FIRST), f"{shop.topic}/1": 0}
    assert paused(shop) is None
    shop.produce(shop.topic, LATER, partition=0)
    assert batch(shop, pipeline=late).run().records == len(LATER)
    assert shop.rows() == doubled(LATER, by=1)


def test_a_newer_version_is_raised_and_an_older_one_refused(shop: Shop) -> None:
    shop.produce(shop.topic, FIRST[:10], partition=0)
    batch(shop).run()
    shop.produce(shop.topic, FIRST[10:20], partition=0)
    batch(shop, pipeline={"version": 2}).run()
    shop.produce(shop.topic, FIRST[20:], partition=0)
    with pytest.raises(Exception, match="version 2, this process runs version 1"):
        batch(shop).run()
    assert paused(shop) is None
    assert offsets(shop)[f"{shop.topic}/0"] == 20


def test_a_version_that_a_reload_is_opened_for_waits_for_it(shop: Shop) -> None:
    shop.produce(shop.topic, FIRST[:10], partition=0)
    batch(shop).run()
    shop.produce(shop.topic, FIRST[10:], partition=0)
    reload, driver = started(shop.reload())
    with pytest.raises(StandbyRequired, match=str(driver.run.id)):
        batch(shop, pipeline={"version": 2}).run()
    assert paused(shop) is None
    assert batch(shop).run().records == len(FIRST) - 10, "the old version goes on"
    reload.run(driver)
    assert shop.rows() == doubled(FIRST)
    shop.produce(shop.topic, LATER, partition=0)
    assert batch(shop, pipeline={"version": 2}).run().records == len(LATER)
    assert shop.rows() == doubled(FIRST + LATER)


def test_a_batch_is_taken_with_its_own_code_alone(shop: Shop, topic: Any) -> None:
    """Another version, other topics, other tables: refused, and the run has not changed hands."""
    shop.produce(shop.topic, FIRST, partition=0)
    local = LocalStager(shop.engine, shop.schema, {"bootstrap.servers": shop.brokers}, [batch(shop).source])

    def away(run: Run, tasks: Sequence[Task]) -> Any:
        yield from local.stage(run, tasks[:1])
        raise OSError("the machine is gone")

    with pytest.raises(OSError, match="is gone"):
        batch(shop, stager=SimpleNamespace(stage=away)).run()
    (run,) = batch(shop).runs.list()
    elsewhere = make_pipeline(shop.group, topic(1), shop.schema)
    for other, why in (
        (shop.pipeline(version=2), "is of group .* with handler version 1, and the code of this process is version 2"),
        (shop.pipeline(kind="append"), "writes .*orders, and these sinks write .*entries"),
        (elsewhere, f"reads {shop.topic}, and this pipeline does not"),
    ):
        with pytest.raises(ConfigError, match=why):
            batch(shop, other).take_over(run.id)
    assert batch(shop).runs.get(run.id).driver_epoch == run.driver_epoch == 1
    assert shop.execute("SELECT version FROM {schema}.consumer_group") == [(1,)]
    assert batch(shop).take_over(run.id).records == len(FIRST)
    assert shop.rows() == doubled(FIRST, by=1)


def test_a_ledger_that_is_not_there_is_said(shop: Shop) -> None:
    with pytest.raises(SchemaMismatch, match="seekpoint db upgrade"):
        BatchJob(shop.pipeline(), shop.engine, {"bootstrap.servers": shop.brokers}, schema="nowhere_at_all").run()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"handle": lambda tx, batch: None}, "handlers run in workers"),
        ({"delay": timedelta(hours=1)}, "delay"),
    ],
)
def test_what_only_workers_do_is_refused(shop: Shop, options: dict[str, Any], why: str) -> None:
    made = shop.pipeline(**options)
    assert isinstance(made, Pipeline)
    with pytest.raises(ConfigError, match=why):
        batch(shop, pipelines=made)
