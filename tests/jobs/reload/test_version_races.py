"""Raising a version and opening a run, in every order: one of them sees the other, as both hold the group's row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer
from sqlalchemy import event

from seekpoint import Assignment, Limits, Partition, consumer_config
from seekpoint.admin import Admin
from seekpoint.errors import ReloadRefused, StandbyRequired
from seekpoint.jobs.reload import Driver
from seekpoint.jobs.reload.open import open_run
from seekpoint.ledger import GroupLedger, Ledger
from support.before_cutover import settled
from support.cli_jobs import wait_for_lock
from support.reload_orders import OrdersGroup, of
from support.round_trips import overheard
from support.waiting import until

QUICK = Limits(idle_check=0.1)


def opened(orders_group: OrdersGroup) -> Driver:
    return orders_group.reload().open()


@contextmanager
def before(orders_group: OrdersGroup, what: str, act: Callable[[], None]) -> Iterator[list[str]]:
    """Run ``act`` once, right before the first statement that begins so is sent; yields the list of what was acted."""
    done: list[str] = []

    def hook(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not done and " ".join(statement.split()).startswith(what):
            done.append(what)
            act()

    event.listen(orders_group.engine, "before_cursor_execute", hook)
    try:
        yield done
    finally:
        event.remove(orders_group.engine, "before_cursor_execute", hook)


@contextmanager
def blocked_at(orders_group: OrdersGroup, what: str, act: Callable[[OrdersGroup], Any]) -> Iterator[list[Future[Any]]]:
    """Start ``act`` on another thread right before such a statement, and see it wait for the group's row."""
    started: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as pool:

        def start() -> None:
            started.append(pool.submit(act, orders_group))
            wait_for_lock(orders_group, "query", f"%{orders_group.schema}%.consumer_group%FOR%")
            assert not started[0].done()

        with before(orders_group, what, start):
            yield started
    assert started


def claim(orders_group: OrdersGroup, version: int = 2) -> Any:
    """What a worker's claim does."""
    ledger = GroupLedger(orders_group.engine, orders_group.group, schema=orders_group.schema, version=version)
    row = orders_group.execute("SELECT topic_id, cluster_id FROM {schema}.partition_offset, {schema}.consumer_group")[0]
    wanted = [Partition(orders_group.topic, 0), Partition(orders_group.topic, 1)]
    return ledger.claim(wanted, {orders_group.topic: row[0]}, cluster_id=row[1], start=lambda _: {})


@pytest.fixture
def idle_group(orders_group: OrdersGroup) -> OrdersGroup:
    """A group at version 1 without workers."""
    settled(orders_group, [of(1)])
    return orders_group


def test_a_claim_of_the_version_that_is_built_is_refused_with_the_remedy(idle_group: OrdersGroup) -> None:
    driver = opened(idle_group)
    with pytest.raises(StandbyRequired) as met:
        claim(idle_group)
    error = met.value
    assert (error.group, error.version, error.run, error.state) == (idle_group.group, 2, driver.run.id, "opened")
    assert f"--resume {driver.run.id}" in str(error)
    assert "abort" in str(error)
    assert idle_group.version() == 1
    assert idle_group.ledger().read()[0].epoch == 1  # no token was drawn


def test_the_remedy_of_a_reload_on_spark_is_its_own_command(idle_group: OrdersGroup) -> None:
    reload = idle_group.reload()
    driver = open_run(
        reload.runs, reload.kafka, reload.sources, strategy="merge", actor="ops", reason="new", bounds=reload.bounds,
        of_frames=True,
    )  # fmt: skip
    with pytest.raises(StandbyRequired) as met:
        claim(idle_group)
    [status], _ = Admin(idle_group.engine, schema=idle_group.schema).status()
    for error in (met.value, status.reload):
        assert f"`seekpoint spark reload MODULE:NAME --resume {driver.run.id}`" in str(error)


def test_a_run_that_is_opened_between_look_and_claim_is_found_under_the_groups_lock(idle_group: OrdersGroup) -> None:
    """The claim has seen that it must prepare, and no run; the run is on record before it has the lock."""
    runs: list[Driver] = []
    assert GroupLedger(idle_group.engine, idle_group.group, schema=idle_group.schema, version=2).standby() is None
    insert = f'INSERT INTO "{idle_group.schema}".consumer_group'
    with (
        before(idle_group, insert, lambda: runs.append(opened(idle_group))) as done,
        pytest.raises(StandbyRequired) as met,
    ):
        claim(idle_group)
    assert done
    assert met.value.run == runs[0].run.id
    assert idle_group.version() == 1


def test_a_claim_waits_for_a_run_that_is_being_opened(idle_group: OrdersGroup) -> None:
    """The run's row is not committed when the claim looks: it must not look before."""
    with blocked_at(idle_group, f'INSERT INTO "{idle_group.schema}".reload_position', claim) as claims:
        driver = opened(idle_group)
    with pytest.raises(StandbyRequired) as met:
        claims[0].result(30)
    assert met.value.run == driver.run.id
    assert idle_group.version() == 1


def test_a_run_waits_for_a_claim_that_raises_the_version(idle_group: OrdersGroup) -> None:
    """It is opened after it then, and knows of the version that was raised."""
    with blocked_at(idle_group, f'UPDATE "{idle_group.schema}".consumer_group', opened) as drivers:
        claimed = claim(idle_group)
    assert len(claimed.granted) == 2
    run = drivers[0].result(30).run
    assert (run.version_from, run.version_to) == ((2,), (2,))


def test_a_run_of_an_older_version_is_refused_where_the_version_was_raised_meanwhile(idle_group: OrdersGroup) -> None:
    def raise_it() -> None:
        claim(idle_group, version=3)

    with (
        before(idle_group, "SELECT pg_advisory_xact_lock", raise_it) as done,
        pytest.raises(ReloadRefused, match="is at handler version 3, and this pipeline is version 2"),
    ):
        opened(idle_group)
    assert done
    assert idle_group.execute("SELECT count(*) FROM {schema}.reload_run") == [(0,)]


def test_accept_poll_raises_for_callers_that_own_the_loop(idle_group: OrdersGroup) -> None:
    """Nothing is claimed, and the next call after the run has ended claims."""
    driver = opened(idle_group)
    config = consumer_config({"bootstrap.servers": idle_group.brokers}, group=idle_group.group)
    ledger = Ledger(idle_group.engine, idle_group.group, schema=idle_group.schema, version=2)
    with Assignment(Consumer(config), ledger, [idle_group.topic], kafka=config) as held:

        def is_active() -> bool:
            held.accept_poll(held.read(10, 0.1))
            return len(held.active) == 2

        with pytest.raises(StandbyRequired) as met:
            until(is_active, "both partitions")
        assert met.value.run == driver.run.id
        assert not held.active
        assert ledger.standby() is not None
        idle_group.reload().run(driver)
        assert ledger.standby() is None
        until(is_active, "both partitions")


def test_a_claim_that_raises_nothing_asks_nothing_more(idle_group: OrdersGroup) -> None:
    """A normal claim takes as many statements as ever: the look at runs belongs to a version that is raised."""
    opened(idle_group)
    with overheard(idle_group.engine) as statements:
        claim(idle_group, version=1)
    assert statements
    assert not [statement for statement in statements if "reload_run" in statement]
