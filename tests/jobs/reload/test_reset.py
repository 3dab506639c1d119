"""A reset whose tables are rebuilt as of its targets: rows and positions go back in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from seekpoint import Accumulate, Append, Json, Pipeline
from seekpoint.admin import Admin, ResetPlan, ResetTo
from seekpoint.admin.attribution import Attribution
from seekpoint.errors import ConfigError, Fenced
from seekpoint.jobs.reload import Reload, cutover
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.reload.rewind import Rewind
from seekpoint.runs.run import Driver
from support.batch_process import offsets
from support.command import seekpoint
from support.order_sums import MODULE, assert_sums, totals
from support.reload_orders import Order, OrderKey, OrdersGroup, gone, of

FIRST = [of(n % 40, n, n + 1) for n in range(200)] + [gone(3)]


def admin(orders_group: OrdersGroup) -> Admin:
    return Admin(orders_group.engine, {"bootstrap.servers": orders_group.brokers}, schema=orders_group.schema)


def plan(orders_group: OrdersGroup, offset: int, partition: int = 0) -> ResetPlan:
    return admin(orders_group).plan_reset(orders_group.group, ResetTo.offset(offset), {orders_group.topic: [partition]})


def counting(orders_group: OrdersGroup, *tables: str, version: int = 1, **options: Any) -> Pipeline:
    """Counts the group's orders in each of these tables."""
    sinks = [
        Accumulate((orders_group.schema, table), key=["bucket"], add=["n"], row=lambda r: (r.value.id % 5, 1))
        for table in tables
    ]
    its: dict[str, Any] = {"value": Json(Order), "key": Json(OrderKey)} | options
    return Pipeline(orders_group.group, topics=orders_group.topic, sinks=sinks, version=version, **its)


@pytest.fixture
def summed_group(orders_group: OrdersGroup) -> OrdersGroup:
    """Both partitions are summed up."""
    pipeline = totals(orders_group)
    orders_group.put(FIRST[:50], partition=1)
    orders_group.run_worker(pipeline).finish(orders_group.topic, 50, 1)
    orders_group.apply(pipeline, orders_group.put(FIRST))
    return orders_group


@pytest.mark.parametrize("strategy", ["merge", "swap"])
@pytest.mark.parametrize("target", [0, 120])
def test_sums_and_positions_go_back_together(summed_group: OrdersGroup, strategy: str, target: int) -> None:
    """I1, I5: a running worker adds the rest again, and each record counts once; the other partition stays."""
    orders_group = summed_group
    reset_plan = plan(orders_group, target)
    assert reset_plan.counts_twice == (f"{orders_group.schema}.totals",)
    worker = orders_group.run_worker(totals(orders_group))
    worker.reached(orders_group.topic, orders_group.put([of(7, 7, 7)]))
    done = orders_group.reload([totals(orders_group)]).reset(reset_plan, reason="ticket 7", strategy=strategy)
    [reset] = done.done
    assert (reset.partition.number, reset.from_offset, reset.to_offset) == (0, 202, target)
    worker.finish(orders_group.topic, orders_group.put([of(8, 8, 8)]))
    assert_sums(orders_group, [*FIRST[:50], *FIRST, of(7, 7, 7), of(8, 8, 8)])
    assert [row.action for row in admin(orders_group).history(orders_group.group)][:3] == [
        "take back",
        "reset",
        "cut-over",
    ]
    assert orders_group.reload([totals(orders_group)]).verify().is_empty


def test_without_workers_the_table_is_as_it_was_at_the_targets(summed_group: OrdersGroup) -> None:
    summed_group.reload([totals(summed_group, version=2)]).reset(
        plan(summed_group, 120), reason="other code from there on"
    )
    assert offsets(summed_group) == {f"{summed_group.topic}/0": 120, f"{summed_group.topic}/1": 50}
    assert_sums(summed_group, [*FIRST[:120], *FIRST[:50]], by=2)
    assert summed_group.version() == 2
    assert summed_group.schemas() == []


def test_every_table_of_the_pipeline_goes_back(orders_group: OrdersGroup) -> None:
    """An Append's rows past the target go, too."""
    orders_group.execute("CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, n bigint)")
    log = Append((orders_group.schema, "entries"), columns=["id", "amount", "at", "topic_offset"],
                 row=lambda r: (r.value.id, r.value.amount, r.value.at, r.offset))  # fmt: skip
    counts = Accumulate((orders_group.schema, "totals"), key=["bucket"], add=["n"], row=lambda r: (r.value.id % 5, 1))
    pipeline = Pipeline(
        orders_group.group, topics=orders_group.topic, value=Json(Order), key=Json(OrderKey), sinks=[log, counts]
    )
    orders_group.apply(pipeline, orders_group.put([of(n, n) for n in range(20)]))
    orders_group.reload([pipeline]).reset(plan(orders_group, 12), reason="a test")
    assert len(orders_group.rows("entries")) == 12
    orders_group.apply(pipeline, 20)
    assert sorted(orders_group.rows("entries", "topic_offset, 0, 0")) == [(n, 0, 0) for n in range(20)]
    assert orders_group.rows("totals", "bucket, n, 0") == [(bucket, 4, 0) for bucket in range(5)]


def test_a_pipeline_that_lacks_a_table_of_the_group_is_refused(orders_group: OrdersGroup) -> None:
    """I1: its sums would count the records that are read again twice."""
    orders_group.execute("CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, n bigint)")
    orders_group.execute("CREATE TABLE {schema}.others (bucket int PRIMARY KEY, n bigint)")
    two = counting(orders_group, "totals", "others")
    orders_group.apply(two, orders_group.put([of(n, n) for n in range(20)]))
    with pytest.raises(ConfigError, match=r"writes \S+\.others, and the pipeline given to rebuild does not"):
        orders_group.reload([counting(orders_group, "totals")]).reset(plan(orders_group, 10), reason="a test")
    assert offsets(orders_group)[f"{orders_group.topic}/0"] == 20
    orders_group.reload([two]).reset(plan(orders_group, 10), reason="a test")
    orders_group.apply(two, 20)
    for table in ("totals", "others"):
        assert orders_group.rows(table, "bucket, n, 0") == [(bucket, 4, 0) for bucket in range(5)]


def test_tables_that_the_group_writes_since_the_opening_are_refused(
    orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: asked again under the group's lock."""
    orders_group.execute("CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, n bigint)")
    pipeline = counting(orders_group, "totals")
    orders_group.apply(pipeline, orders_group.put([of(n, n) for n in range(20)]))
    reload = orders_group.reload([pipeline])
    catch_up = reload.catch_up

    def declare_late(driver: Driver, passes: CatchUp) -> int:
        orders_group.execute("UPDATE {schema}.group_topic SET tables = array_append(tables, 'others')")
        return catch_up(driver, passes)

    monkeypatch.setattr(reload, "catch_up", declare_late)
    with pytest.raises(ConfigError, match="writes others, and the pipeline given to rebuild does not"):
        reload.reset(plan(orders_group, 10), reason="a test")
    assert offsets(orders_group)[f"{orders_group.topic}/0"] == 20
    assert orders_group.rows("totals", "bucket, n, 0") == [(bucket, 4, 0) for bucket in range(5)]


@pytest.mark.parametrize("big", [10**12, 2 * 10**9])
def test_sums_of_floats_go_back_to_the_last_digit(orders_group: OrdersGroup, big: int) -> None:
    """I1: what verify takes for the order of additions would count again, each time."""
    orders_group.execute("CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, x double precision)")
    sink = Accumulate((orders_group.schema, "totals"), key=["bucket"], add=["x"], row=lambda r: (1, r.value.amount))
    pipeline = Pipeline(
        orders_group.group, topics=orders_group.topic, sinks=[sink], value=Json(Order), key=Json(OrderKey)
    )
    orders_group.apply(pipeline, orders_group.put([of(0, big), of(1, 1)]))
    orders_group.reload([pipeline]).reset(plan(orders_group, 1), reason="a test")
    assert orders_group.rows("totals", "bucket, x, 0") == [(1, big, 0)]


def test_what_was_taken_back_and_then_skipped_stays_without_rows(orders_group: OrdersGroup) -> None:
    """I1, I4: it was applied once, and its rows were removed."""
    orders_group.execute("CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, n bigint)")
    pipeline = counting(orders_group, "totals")
    orders_group.apply(pipeline, orders_group.put([of(n, n) for n in range(20)]))
    orders_group.reload([pipeline]).reset(plan(orders_group, 10), reason="these records are wrong")
    admin(orders_group).apply(plan(orders_group, 20), reason="skip them")
    assert orders_group.reload([pipeline]).verify().is_empty
    assert orders_group.rows("totals", "bucket, n, 0") == [(bucket, 2, 0) for bucket in range(5)]
    admin(orders_group).apply(plan(orders_group, 10), reason="they are right after all")
    orders_group.apply(pipeline, 20)
    assert orders_group.reload([pipeline]).verify().is_empty
    assert orders_group.rows("totals", "bucket, n, 0") == [(bucket, 4, 0) for bucket in range(5)]


@pytest.fixture
def second_schema(orders_group: OrdersGroup) -> Iterator[str]:
    """A schema for the tables of a second group."""
    name = f"{orders_group.schema}_beside"
    orders_group.execute(f"CREATE SCHEMA {name}")
    yield name
    orders_group.execute(f"DROP SCHEMA {name} CASCADE")


def test_what_a_replaced_group_had_skipped_stays_without_rows(orders_group: OrdersGroup, second_schema: str) -> None:
    """I4: positions, lost ranges and resets go with the tables; the live ones have each record."""
    for schema in (orders_group.schema, second_schema):
        orders_group.execute(f"CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, n bigint)")
    second = replace(orders_group, group=f"{orders_group.group}-2", schema=second_schema)
    old, new = counting(orders_group, "totals"), counting(second, "totals", version=2)
    orders_group.apply(old, orders_group.put([of(n, n) for n in range(10)]))
    orders_group.put([of(n, n) for n in range(10)])
    admin(orders_group).apply(plan(orders_group, 20), reason="skip ten")
    end = orders_group.put([of(n, n) for n in range(5)])
    orders_group.apply(old, end)
    orders_group.apply(new, end)
    admin(orders_group).replace_group(admin(orders_group).plan_replace(old.group, by=new.group), reason="a fix")
    for pipeline in (counting(orders_group, "totals", version=2), new):
        assert orders_group.reload([pipeline]).verify().is_empty
    assert orders_group.rows("totals", "bucket, n, 0") == [(bucket, 5, 0) for bucket in range(5)]
    assert orders_group.execute(f"SELECT bucket, n FROM {second_schema}.totals ORDER BY 1") == [
        (bucket, 3) for bucket in range(5)
    ]


def test_a_run_that_lost_its_driver_leaves_out_what_was_skipped_past_the_target(orders_group: OrdersGroup) -> None:
    """I1: resumed, it is an ordinary reload up to the position; no position is reset."""
    orders_group.execute("CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, n bigint)")
    pipeline = counting(orders_group, "totals")
    orders_group.apply(pipeline, orders_group.put([of(n, n) for n in range(10)]))
    orders_group.put([of(n, n) for n in range(10)])
    admin(orders_group).apply(plan(orders_group, 20), reason="skip ten")
    orders_group.apply(pipeline, orders_group.put([of(n, n) for n in range(5)]))
    rewind = Rewind(plan(orders_group, 5), Attribution.of("ada", "a test"))
    run = orders_group.reload([pipeline])._open("merge", "reset", rewind).run.id
    second = orders_group.reload([pipeline])
    second.run(second.take_over(run))
    assert offsets(orders_group)[f"{orders_group.topic}/0"] == 25
    assert orders_group.rows("totals", "bucket, n, 0") == [(bucket, 3, 0) for bucket in range(5)]


@pytest.mark.parametrize("how", ["reload", "reset", "unchanged"])
def test_a_cut_over_declares_its_sums(orders_group: OrdersGroup, how: str) -> None:
    """I1: no worker of the new code has claimed; a reset that would count twice is refused."""
    orders_group.execute("CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, n bigint)")
    add = text(
        f"INSERT INTO {orders_group.schema}.totals AS t VALUES (:b, 1) ON CONFLICT (bucket) DO UPDATE SET n = t.n + 1"
    )

    def handle(tx: Connection, batch: Any) -> None:
        for record in batch:
            tx.execute(add, {"b": record.value.id % 5})

    its: dict[str, Any] = {"value": Json(Order), "key": Json(OrderKey), "writes": [f"{orders_group.schema}.totals"]}
    orders_group.apply(
        Pipeline(orders_group.group, topics=orders_group.topic, handle=handle, **its),
        orders_group.put([of(n, n) for n in range(20)]),
    )
    reload = orders_group.reload([counting(orders_group, "totals", version=1 if how == "unchanged" else 2)])
    if how == "reset":
        reload.reset(plan(orders_group, 15), reason="to sums")
    else:
        reload.run(reload.open())
    with pytest.raises(ConfigError, match="would count records twice"):
        admin(orders_group).apply(plan(orders_group, 10), reason="a test")


@pytest.mark.long
def test_dead_letters_past_the_target_are_read_again_and_replayed_ones_before_it_count(
    orders_group: OrdersGroup,
) -> None:
    """I4: one of each is replayed before the reset."""
    orders_group.execute("CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, amount bigint CHECK (amount < 1000))")
    sink = Accumulate(
        (orders_group.schema, "totals"), key=["bucket"], add=["amount"], row=lambda r: (1, r.value.amount)
    )
    its: dict[str, Any] = {"value": Json(Order), "key": Json(OrderKey), "on_poison": "dead_letter"}
    pipeline = Pipeline(orders_group.group, topics=orders_group.topic, sinks=[sink], **its)
    amounts = [900, 200, 50, 300, 400, 1]  # 200, 300 and 400 exceed the limit
    for n, amount in enumerate(amounts, 1):
        orders_group.apply(pipeline, orders_group.put([of(n, amount)]))
    orders_group.execute("ALTER TABLE {schema}.totals DROP CONSTRAINT totals_amount_check")
    replay = Admin(orders_group.engine, schema=orders_group.schema).dead_letters(pipeline)
    dead_letters = {dead_letter.offset: dead_letter for dead_letter in replay.list()}
    assert sorted(dead_letters) == [1, 3, 4]
    for offset in (1, 4):
        assert replay.replay(dead_letters[offset].id).is_applied
    orders_group.reload([pipeline]).reset(plan(orders_group, 3), reason="a test")
    assert orders_group.rows("totals", "bucket, amount, 0") == [(1, 900 + 200 + 50, 0)]
    orders_group.apply(pipeline, len(amounts))
    assert orders_group.rows("totals", "bucket, amount, 0") == [(1, sum(amounts), 0)]


def test_a_plan_that_does_not_hold_any_more_changes_nothing(summed_group: OrdersGroup) -> None:
    """I1: neither rows nor positions, and the run is ended."""
    stale = plan(summed_group, 120)
    summed_group.reload([totals(summed_group)]).reset(plan(summed_group, 150), reason="a test")
    before = summed_group.rows("totals", "bucket, orders, amount"), offsets(summed_group)
    with pytest.raises(Fenced, match="was reset since the plan was made"):
        summed_group.reload([totals(summed_group)]).reset(stale, reason="a test")
    assert before == (summed_group.rows("totals", "bucket, orders, amount"), offsets(summed_group))
    assert [run.state for run in summed_group.reload([totals(summed_group)]).runs.list() if run.is_open] == []
    other = Pipeline(
        "another", topics=summed_group.topic, value=Json(Order), sinks=[Append((summed_group.schema, "entries"))]
    )
    with pytest.raises(ConfigError, match="the plan is of group"):
        summed_group.reload([other]).reset(plan(summed_group, 120), reason="a test")


def test_a_cut_over_that_fails_resets_nothing(summed_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: the positions were reset in its transaction, which is rolled back."""
    table, before = summed_group.rows("totals", "bucket, orders, amount"), offsets(summed_group)

    def fail(*_: Any) -> None:
        raise RuntimeError("after the resets")

    monkeypatch.setattr(cutover, "_raise_versions", fail)
    with pytest.raises(RuntimeError, match="after the resets"):
        summed_group.reload([totals(summed_group)]).reset(plan(summed_group, 120), reason="a test")
    assert (summed_group.rows("totals", "bucket, orders, amount"), offsets(summed_group)) == (table, before)


def test_the_command(summed_group: OrdersGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders_group = summed_group
    names = {"group": orders_group.group, "topic": orders_group.topic, "schema": orders_group.schema, "version": 1}
    (tmp_path / "sums_of_the_command.py").write_text(MODULE.format(**names))
    monkeypatch.chdir(tmp_path)
    words = [
        "offsets",
        "reset",
        orders_group.group,
        "--topic",
        f"{orders_group.topic}:0",
        "--to-offset",
        "100",
        *orders_group.server_options,
    ]
    shown = seekpoint(*words).stdout
    assert "would count records twice: refused, unless --rebuild MODULE:NAME" in shown
    refused = seekpoint(*words, "--apply", "--reason", "ticket 7", exits=2).stderr
    assert "would count records twice" in refused
    rebuild = ["--rebuild", "sums_of_the_command:orders"]
    assert "omit --each" in seekpoint(*words, *rebuild, "--each", exits=2).stderr, "also of a plan"
    rebuild += ["--apply", "--reason", "ticket 7"]
    done = seekpoint(*words, *rebuild).stdout
    assert done == f"{orders_group.topic}/0 is reset from 201 to 100\n"
    assert_sums(orders_group, [*FIRST[:100], *FIRST[:50]])


def test_a_reset_takes_a_reload_of_its_own(summed_group: OrdersGroup) -> None:
    """Nothing to do is no run."""
    reset_plan = admin(summed_group).plan_reset(summed_group.group, ResetTo.offset(201), {summed_group.topic: [0]})
    reload: Reload = summed_group.reload([totals(summed_group)])
    assert reload.reset(reset_plan, reason="a test").done == ()
    assert reload.runs.list() == []
