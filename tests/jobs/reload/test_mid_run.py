"""What happens to topics and brokers while a run is open: what ends it, and what it gets over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from seekpoint.admin import Admin, ResetTo
from seekpoint.errors import HandlerOutdated, RangeLost, ReloadRefused, TopicRecreated
from seekpoint.jobs.reload import Driver, Reload, cutover
from seekpoint.jobs.reload import reload as job
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.kafka.ranges import IDLE
from seekpoint.testing.servers.kafka import KafkaServer
from support.before_cutover import FIRST, applied_by, diffed, settled, staged, started, widen
from support.log_changes import delete, trim
from support.reload_orders import OrdersGroup, doubled, of

LATER = [of(n, 7, n) for n in range(300, 320)]


def admin_of(orders_group: OrdersGroup) -> AdminClient:
    return AdminClient({"bootstrap.servers": orders_group.brokers, "log_level": 0})


def failed(reload: Reload, driver: Driver) -> str:
    run = reload.runs.get(driver.run.id)
    assert run.state == "failed"
    return run.error or ""


def test_retention_that_passes_the_staged_position_ends_the_run(applied_group: OrdersGroup) -> None:
    reload, driver = started(applied_group.reload(range_records=50))
    trim(admin_of(applied_group), applied_group.topic, 60)
    with pytest.raises(RangeLost, match="retention has passed it: the first offset left is 60") as lost:
        reload.stage(driver)
    assert (lost.value.partition.topic, lost.value.offset) == (applied_group.topic, 0)
    assert "retention has passed it" in failed(reload, driver)
    assert applied_group.rows() == doubled(FIRST, by=1)


def test_retention_that_passes_only_what_is_staged_does_no_harm(applied_group: OrdersGroup) -> None:
    reload, driver = staged(applied_group.reload())
    trim(admin_of(applied_group), applied_group.topic, len(FIRST))
    settled(applied_group, LATER)
    reload.run(driver)
    assert applied_group.rows() == doubled(FIRST + LATER)


def test_retention_that_overtakes_catching_up_ends_the_run(applied_group: OrdersGroup) -> None:
    with diffed(applied_group.reload()) as (reload, driver, rounds):
        settled(applied_group, LATER)
        trim(admin_of(applied_group), applied_group.topic, len(FIRST) + 5)
        with pytest.raises(RangeLost, match=f"the first offset left is {len(FIRST) + 5}"):
            reload.cut_over(driver, rounds)
    assert "retention has passed it" in failed(reload, driver)
    assert applied_group.rows() == doubled(FIRST + LATER, by=1)


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", ["opened", "staged", "compared"])
def test_a_recreated_topic_ends_the_run(applied_group: OrdersGroup, topic: Callable[..., str], step: str) -> None:
    """Under the same name, with other records at the same offsets."""
    reload, driver = started(applied_group.reload())
    if step == "staged":
        reload.stage(driver)

    def anew() -> None:
        delete({"bootstrap.servers": applied_group.brokers}, admin_of(applied_group), applied_group.topic)
        topic(2, name=applied_group.topic)
        applied_group.produce(applied_group.topic, [of(n, 9) for n in range(200)], partition=0)

    if step == "compared":
        with diffed(reload, driver=driver) as (_, _, rounds):
            settled(applied_group, LATER)
            anew()
            with pytest.raises(TopicRecreated, match="was deleted and created again"):
                reload.cut_over(driver, rounds)
    else:
        if step == "staged":
            settled(applied_group, LATER)
        anew()
        with pytest.raises(TopicRecreated, match="was deleted and created again"):
            reload.run(driver)
    assert "was deleted and created again" in failed(reload, driver)
    assert {row[1] for row in applied_group.rows() if row[0] < 40} <= set(range(120)), "nothing of it is in the table"


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_a_recreated_topic_ends_the_run_where_nothing_is_left_to_read(
    applied_group: OrdersGroup, topic: Callable[..., str], strategy: str
) -> None:
    """After the last pass, and by an empty topic: no offset of it is asked for."""
    with diffed(applied_group.reload(), strategy=strategy) as (reload, driver, rounds):
        delete({"bootstrap.servers": applied_group.brokers}, admin_of(applied_group), applied_group.topic)
        topic(2, name=applied_group.topic)
        with pytest.raises(ReloadRefused, match="was deleted or created again: the run has ended"):
            reload.cut_over(driver, rounds)
    assert "was deleted or created again" in failed(reload, driver)
    assert applied_group.rows() == doubled(FIRST, by=1)


def test_a_partition_that_is_added_and_moved_in_mid_run_ends_it(applied_group: OrdersGroup) -> None:
    """What was given up there has no rows, and the run does not know of it."""
    reload, driver = started(applied_group.reload())
    widen(applied_group, 3)
    settled(applied_group, [of(n) for n in range(800, 840)], partition=2)
    applied_group.ledger().reset_offset(
        applied_group.topic, 2, 45, log=None, reason="a test", lost="a test gave them up"
    )
    with pytest.raises(ReloadRefused, match="since the run was opened, and an operator has already reset its position"):
        reload.run(driver)
    assert "already reset its position" in failed(reload, driver)


def test_partitions_that_are_added_in_mid_run_are_in(applied_group: OrdersGroup) -> None:
    with diffed(applied_group.reload()) as (reload, driver, rounds):
        widen(applied_group, 4)
        settled(applied_group, LATER, partition=3)
        reload.cut_over(driver, rounds)
    assert applied_group.rows() == doubled(FIRST + LATER)
    assert [position.partition.number for position in reload.runs.positions(driver.run.id)] == [0, 1, 2, 3]


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", ["opened", "staged", "compared"])
def test_a_reset_in_mid_run_ends_it(applied_group: OrdersGroup, step: str) -> None:
    """What was applied twice, or passed, is not what the log says up to the position."""
    reload, driver = started(applied_group.reload())
    with ExitStack() as stack:
        if step == "staged":
            reload.stage(driver)
        rounds = stack.enter_context(diffed(reload, driver=driver))[2] if step == "compared" else None
        applied_group.ledger().reset_offset(applied_group.topic, 0, 50, log=None, reason="again")
        applied_group.work(len(FIRST))
        with pytest.raises(ReloadRefused, match=r"was reset since the run was opened, .*\n.*abort this run and open"):
            reload.cut_over(driver, rounds) if rounds else reload.run(driver)
    assert "was reset since the run was opened" in failed(reload, driver)
    assert applied_group.version() == 1
    assert applied_group.rows() == doubled(FIRST, by=1)
    reload.run(reload.open())
    assert applied_group.rows() == doubled(FIRST)


def test_catch_up_passes_that_do_not_shrink_end_the_run(
    applied_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = applied_group.worker()
    end = len(FIRST)

    def faster(what: str, done: int, total: int) -> None:
        nonlocal end
        if what == "catching_up" and done == total:
            end += len(LATER)
            applied_by(worker, applied_group, LATER)

    monkeypatch.setattr(job, "SMALL", 5)
    reload, driver = staged(applied_group.reload(progress=faster))
    faster("catching_up", 0, 0)
    began = end
    with CatchUp(driver, reload.sources, reload.kafka) as rounds, pytest.raises(ReloadRefused) as refused:
        reload.catch_up(driver, rounds)
    worker.stop()
    assert "10 passes in a row did not shrink, and the last one read 20 records" in str(refused.value)
    assert (end - began) == 11 * len(LATER)
    assert "faster than the rebuild catches up" in failed(reload, driver)
    assert applied_group.rows() == doubled(FIRST + LATER, by=1)


@pytest.mark.long
def test_brokers_that_are_away_under_the_lock_are_waited_for_briefly(
    orders_group: OrdersGroup,
    own_kafka: KafkaServer,
    *,
    topic: Callable[..., str],
    run_worker: Callable[..., Any],
    produce: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are frozen as soon as the locks are there: it is rolled back, workers continue, and it is tried again."""
    brokers = own_kafka.bootstrap
    kafka = {"bootstrap.servers": brokers}
    there = replace(
        orders_group,
        brokers=brokers,
        topic=topic(2, bootstrap=brokers),
        run_worker=partial(run_worker, kafka=kafka),
        produce=partial(produce, bootstrap=brokers),
    )
    settled(there)
    worker = there.worker()
    reload, driver = started(there.reload())
    held: list[float] = []
    thaw = threading.Timer(2 * IDLE, own_kafka.thaw)  # should the test fail
    apply = CatchUp.apply

    def away(self: CatchUp, tx: Any, offsets: Any, *, idle: float = 30.0, **options: Any) -> int:
        if idle != cutover.IDLE or held:
            return apply(self, tx, offsets, idle=idle, **options)
        self.close()  # nothing was read ahead
        own_kafka.freeze()
        thaw.start()
        began = monotonic()
        try:
            return apply(self, tx, offsets, idle=idle)
        finally:
            held.append(monotonic() - began)
            own_kafka.thaw()

    catch_up = reload.catch_up

    def behind(driver: Driver, rounds: CatchUp) -> int:
        """After the last catch-up pass, before the locks: something is left to be read under them."""
        read = catch_up(driver, rounds)
        if not held:
            applied_by(worker, there, LATER)
        return read

    monkeypatch.setattr(CatchUp, "apply", away)
    with diffed(reload, driver=driver) as (_, _, rounds):
        monkeypatch.setattr(reload, "catch_up", behind)
        outcome = reload.cut_over(driver, rounds)
    thaw.cancel()
    assert outcome.tries == 2
    assert len(held) == 1
    assert held[0] < IDLE, "not as long as a round may wait for them"
    assert there.rows() == doubled(FIRST + LATER)
    settled(there, LATER, partition=1, version=2)
    worker.ends_with(HandlerOutdated)  # one that keeps a partition without records asks while it is idle


def test_a_plan_of_a_reset_names_the_run_that_it_ends(applied_group: OrdersGroup) -> None:
    """The operator knows before: the reset ends the open reload, which leaves the live tables as they are."""
    reload, driver = started(applied_group.reload())
    reload.stage(driver)
    operator = Admin(applied_group.engine, schema=applied_group.schema)
    plan = operator.plan_reset(applied_group.group, ResetTo.offset(50), {applied_group.topic: [0]})
    named = [consequence for consequence in plan.consequences if consequence.endswith("is open: the reset ends it")]
    assert len(named) == 1
    assert f"run {driver.run.id} (" in named[0]
    before = applied_group.rows()
    operator.apply(plan, reason="again")
    with pytest.raises(ReloadRefused, match="was reset since the run was opened"):
        reload.run(driver)
    assert "was reset since the run was opened" in failed(reload, driver)
    assert applied_group.rows() == before
    after = operator.plan_reset(applied_group.group, ResetTo.offset(20), {applied_group.topic: [0]})
    assert not [consequence for consequence in after.consequences if "the reset ends it" in consequence], (
        "it is not open any more"
    )


def test_the_server_ends_a_cut_over_whose_driver_is_frozen(
    applied_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers wait for its locks; they are not their claims' to end, because a waiting worker claims nothing."""
    seen: list[str] = []
    take_over = cutover.take_over_dead_letters

    def shown(tx: Any, staging: Any) -> None:
        seen.append(tx.connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one())
        take_over(tx, staging)

    monkeypatch.setattr(cutover, "take_over_dead_letters", shown)
    reload, driver = staged(applied_group.reload())
    reload.run(driver)
    assert seen == ["5min"]
    assert applied_group.rows() == doubled(FIRST)
