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
from seekpoint.errors import ReloadRefused, StandbyRequired
from seekpoint.jobs.reload import Driver
from seekpoint.ledger import Ledger
from support.before_cutover import settled
from support.cli_jobs import wait_for_lock
from support.reload_orders import Shop, of
from support.round_trips import overheard
from support.waiting import until

QUICK = Limits(idle_check=0.1)


def opened(shop: Shop) -> Driver:
    return shop.reload().open()


@contextmanager
def before(shop: Shop, what: str, act: Callable[[], None]) -> Iterator[list[str]]:
    """Run ``act`` once, right before the first statement that begins so is sent; yields the list of what was acted."""
    done: list[str] = []

    def hook(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not done and " ".join(statement.split()).startswith(what):
            done.append(what)
            act()

    event.listen(shop.engine, "before_cursor_execute", hook)
    try:
        yield done
    finally:
        event.remove(shop.engine, "before_cursor_execute", hook)


@contextmanager
def blocked_at(shop: Shop, what: str, act: Callable[[Shop], Any]) -> Iterator[list[Future[Any]]]:
    """Start ``act`` on another thread right before such a statement, and see it wait for the group's row."""
    started: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as pool:

        def start() -> None:
            started.append(pool.submit(act, shop))
            wait_for_lock(shop, "query", f"%{shop.schema}%.consumer_group%FOR%")
            assert not started[0].done()

        with before(shop, what, start):
            yield started
    assert started


def claim(shop: Shop, version: int = 2) -> Any:
    """What a worker's claim does."""
    ledger = Ledger(shop.engine, shop.group, schema=shop.schema, version=version)
    row = shop.execute("SELECT topic_id, cluster_id FROM {schema}.partition_offset, {schema}.consumer_group")[0]
    wanted = [Partition(shop.topic, 0), Partition(shop.topic, 1)]
    return ledger.claim(wanted, {shop.topic: row[0]}, cluster_id=row[1], start=lambda _: {})


@pytest.fixture
def quiet(shop: Shop) -> Shop:
    """A group at version 1 without workers."""
    settled(shop, [of(1)])
    return shop


def test_a_claim_of_the_version_that_is_built_is_refused_with_the_remedy(quiet: Shop) -> None:
    driver = opened(quiet)
    with pytest.raises(StandbyRequired) as met:
        claim(quiet)
    error = met.value
    assert (error.group, error.version, error.run, error.state) == (quiet.group, 2, driver.run.id, "opened")
    assert f"--resume {driver.run.id}" in str(error)
    assert "abort" in str(error)
    assert quiet.version() == 1
    assert quiet.ledger().read()[0].epoch == 1  # no token was drawn


def test_a_run_that_is_opened_between_look_and_claim_is_found_under_the_groups_lock(quiet: Shop) -> None:
    """The claim has seen that it must prepare, and no run; the run is on record before it has the lock."""
    runs: list[Driver] = []
    assert Ledger(quiet.engine, quiet.group, schema=quiet.schema, version=2).standby() is None
    insert = f'INSERT INTO "{quiet.schema}".consumer_group'
    with before(quiet, insert, lambda: runs.append(opened(quiet))) as done, pytest.raises(StandbyRequired) as met:
        claim(quiet)
    assert done
    assert met.value.run == runs[0].run.id
    assert quiet.version() == 1


def test_a_claim_waits_for_a_run_that_is_being_opened(quiet: Shop) -> None:
    """The run's row is not committed when the claim looks: it must not look before."""
    with blocked_at(quiet, f'INSERT INTO "{quiet.schema}".reload_position', claim) as claims:
        driver = opened(quiet)
    with pytest.raises(StandbyRequired) as met:
        claims[0].result(30)
    assert met.value.run == driver.run.id
    assert quiet.version() == 1


def test_a_run_waits_for_a_claim_that_raises_the_version(quiet: Shop) -> None:
    """It is opened after it then, and knows of the version that was raised."""
    with blocked_at(quiet, f'UPDATE "{quiet.schema}".consumer_group', opened) as drivers:
        claimed = claim(quiet)
    assert len(claimed.granted) == 2
    run = drivers[0].result(30).run
    assert (run.version_from, run.version_to) == ((2,), (2,))


def test_a_run_of_an_older_version_is_refused_where_the_version_was_raised_meanwhile(quiet: Shop) -> None:
    def raise_it() -> None:
        claim(quiet, version=3)

    with (
        before(quiet, "SELECT pg_advisory_xact_lock", raise_it) as done,
        pytest.raises(ReloadRefused, match="is at handler version 3, and this pipeline is version 2"),
    ):
        opened(quiet)
    assert done
    assert quiet.execute("SELECT count(*) FROM {schema}.reload_run") == [(0,)]


def test_accept_poll_raises_for_callers_that_own_the_loop(quiet: Shop) -> None:
    """Nothing is claimed, and the next call after the run has ended claims."""
    driver = opened(quiet)
    config = consumer_config({"bootstrap.servers": quiet.brokers}, group=quiet.group)
    ledger = Ledger(quiet.engine, quiet.group, schema=quiet.schema, version=2)
    with Assignment(Consumer(config), ledger, [quiet.topic], kafka=config) as held:

        def is_active() -> bool:
            held.accept_poll(held.client.read(10, 0.1))
            return len(held.active) == 2

        with pytest.raises(StandbyRequired) as met:
            until(is_active, "both partitions")
        assert met.value.run == driver.run.id
        assert not held.active
        assert ledger.standby() is not None
        quiet.reload().run(driver)
        assert ledger.standby() is None
        until(is_active, "both partitions")


def test_a_claim_that_raises_nothing_asks_nothing_more(quiet: Shop) -> None:
    """A normal claim takes as many statements as ever: the look at runs belongs to a version that is raised."""
    opened(quiet)
    with overheard(quiet.engine) as said:
        claim(quiet, version=1)
    assert said
    assert not [one for one in said if "reload_run" in one]
