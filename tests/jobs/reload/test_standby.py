"""The new version, deployed while its reload runs: a standby outside the group, which takes over when the run ends."""

from __future__ import annotations

import json
from time import monotonic
from typing import Any

import pytest
from typer.testing import CliRunner

from seekpoint import Limits, events
from seekpoint.cli.app import app
from seekpoint.errors import HandlerOutdated
from seekpoint.jobs.reload import Driver
from seekpoint.ledger import GroupLedger
from seekpoint.testing.servers.postgres import PostgresServer
from support.before_cutover import applied_by, settled, working
from support.events import Run
from support.producer_thread import OrderProducer, applied
from support.recorded_rows import RecordTable
from support.reload_orders import OrdersGroup, doubled, of, orders_group_on
from support.worker_process import WorkerProcess

QUICK = Limits(batch_records=50, idle_check=0.1)


def undisturbed(worker: Run) -> bool:
    """Whether Kafka never revoked anything from it, nor assigned anything after the first assignment."""
    return not worker.seen.all(events.Revoked) and len(worker.seen.all(events.Assigned)) == 1


def opened(orders_group: OrdersGroup, **options: Any) -> Driver:
    return orders_group.reload().open(**options)


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_the_new_version_waits_for_its_run_and_takes_over(orders_group: OrdersGroup, strategy: str) -> None:
    with OrderProducer(orders_group) as order_producer:
        older = orders_group.worker(QUICK)
        older.seen.wait_for(events.Committed, count=5)
        driver = opened(orders_group, strategy=strategy)
        newer = orders_group.worker(QUICK, version=2)
        standby = newer.seen.wait_for(events.OnStandby)
        assert (standby.run, standby.state) == (driver.run.id, "opened")
        health = newer.health()
        assert (health.live, health.ready, health.stale, health.trouble) == (True, False, False, None)
        assert health.standby == f"reload {driver.run.id}, opened"

        older.seen.wait_for(events.Committed, since=older.seen.mark(), count=10)
        assert undisturbed(older)
        assert orders_group.version() == 1
        assert not newer.seen.all(events.Started)

        reload = orders_group.reload()
        reload.stage(driver)
        newer.seen.wait_for(events.OnStandby, lambda e: e.state == "indexed")
        assert undisturbed(older)
        reload.run(driver)
        over = newer.seen.wait_for(events.StandbyEnded)
        assert (over.run, over.state, over.error) == (driver.run.id, "cut_over", None)
        older.ends_with(HandlerOutdated)
        newer.seen.wait_for(events.Committed, count=5)
        assert newer.health().standby is None
        assert newer.health().ready
    applied(orders_group, order_producer)
    newer.stop()
    assert orders_group.rows() == doubled(order_producer.all)
    assert orders_group.version() == 2


@pytest.mark.long
@pytest.mark.repeats("state")
@pytest.mark.parametrize("state", ["aborted", "failed"])
def test_a_run_that_comes_to_nothing_lets_the_new_version_take_over_as_without_one(
    orders_group: OrdersGroup, state: str
) -> None:
    with OrderProducer(orders_group) as order_producer:
        older = orders_group.worker(QUICK)
        older.seen.wait_for(events.Committed, count=5)
        driver = opened(orders_group)
        newer = orders_group.worker(QUICK, version=2)
        newer.seen.wait_for(events.OnStandby)
        if state == "aborted":
            orders_group.reload().runs.abort(driver.run.id, "not today")
        else:
            driver.fail(ValueError("not today"))
        over = newer.seen.wait_for(events.StandbyEnded)
        assert over.state == state
        assert "not today" in str(over.error)
        newer.seen.wait_for(events.Committed, count=3)
        older.ends_with(HandlerOutdated)
    applied(orders_group, order_producer)
    newer.stop()
    amounts = {row[1] for row in orders_group.rows()}
    assert amounts == {1, 2}  # old rows of old code, new ones of the new: no row was rebuilt
    assert len(orders_group.rows()) == len(order_producer.all)


def test_another_run_after_the_first_is_waited_for_too(orders_group: OrdersGroup) -> None:
    older = working(orders_group, [of(1)], limits=QUICK)
    runs = [opened(orders_group)]

    def another(event: events.Event) -> None:
        """Between two looks, however long it takes."""
        if isinstance(event, events.OnStandby) and len(runs) == 1:
            orders_group.reload().runs.abort(event.run, "again")
            runs.append(opened(orders_group))

    newer = orders_group.run_worker(orders_group.pipeline(version=2), observe=[another], limits=QUICK)
    stood = newer.seen.wait_for(events.OnStandby, lambda e: e.run != runs[0].run.id)
    second = runs[1]
    assert stood.run == second.run.id
    assert not newer.seen.all(events.StandbyEnded)
    orders_group.reload().run(second)
    newer.seen.wait_for(events.Activated)
    assert orders_group.rows() == [(1, 2, 0)]
    older.ends_with(HandlerOutdated)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["verify", "batch"])
def test_no_worker_is_a_standby_for_a_run_that_publishes_nothing(orders_group: OrdersGroup, strategy: str) -> None:
    older = working(orders_group, [of(1)], limits=QUICK)
    driver = opened(orders_group)
    orders_group.execute("UPDATE {schema}.reload_run SET strategy = :strategy", strategy=strategy)
    assert orders_group.reload().runs.get(driver.run.id).is_open
    newer = orders_group.worker(QUICK, version=2)
    newer.seen.wait_for(events.Activated)
    assert not newer.seen.all(events.OnStandby)
    older.ends_with(HandlerOutdated)


@pytest.mark.parametrize("version", [1, 3])
def test_only_the_version_that_is_built_is_a_standby(orders_group: OrdersGroup, version: int) -> None:
    """The old one may be restarted at any time. A third one takes over, and the run's cut-over reports it."""
    settled(orders_group, [of(1)])
    opened(orders_group)
    other = orders_group.worker(QUICK, version=version)
    other.seen.wait_for(events.Activated)
    assert not other.seen.all(events.OnStandby)
    assert orders_group.version() == version


def test_status_shows_it(orders_group: OrdersGroup) -> None:
    working(orders_group, [of(1)], limits=QUICK)
    command = ["status", orders_group.group, *orders_group.database_options]

    def refusal(*more: str) -> str:
        result = CliRunner().invoke(app, [*command, *more])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "stands by" not in refusal()
    assert [line["reload"] for line in json.loads(refusal("--json"))] == [None, None]
    run = opened(orders_group).run
    last = refusal().splitlines()[-1]
    assert last.startswith(
        f"handler version 2 of group {orders_group.group!r} waits as a standby for reload {run.id}, which is opened"
    )
    expected = {"run": str(run.id), "state": "opened", "version": 2, "driver": run.driver}
    assert [line["reload"] for line in json.loads(refusal("--json"))] == [expected, expected]
    orders_group.reload().runs.abort(run.id, "not today")
    assert "stands by" not in refusal()


def test_a_group_of_others_is_not_held_back(orders_group: OrdersGroup) -> None:
    working(orders_group, [of(1)], limits=QUICK)
    opened(orders_group)
    assert GroupLedger(orders_group.engine, "another group", schema=orders_group.schema, version=2).standby() is None
    assert (
        GroupLedger(orders_group.engine, orders_group.group, schema=orders_group.schema, version=2).standby()
        is not None
    )


def test_stop_is_prompt_on_standby(orders_group: OrdersGroup) -> None:
    older = working(orders_group, [of(1)], limits=QUICK)
    opened(orders_group)
    newer = orders_group.worker(Limits(idle_check=60.0), version=2)
    newer.seen.wait_for(events.OnStandby)
    began = monotonic()
    newer.stop()
    assert monotonic() - began < 30
    kinds = [type(e) for e in newer.seen.events]
    assert kinds == [events.Starting, events.OnStandby, events.Draining, events.WorkerStopped]
    health = newer.health()
    assert (health.live, health.standby, health.error) == (False, None, None)
    assert undisturbed(older)
    assert orders_group.version() == 1


def test_a_standby_ends_at_the_first_signal_and_may_be_killed(orders_group: OrdersGroup) -> None:
    older = working(orders_group, [of(1)], limits=QUICK)
    opened(orders_group)
    RecordTable(orders_group.engine, orders_group.schema).create()  # what the member writes
    what = {
        "dsn": orders_group.engine.url.render_as_string(hide_password=False),
        "schema": orders_group.schema,
        "group": orders_group.group,
        "topic": orders_group.topic,
        "kafka": {"bootstrap.servers": orders_group.brokers},
        "version": 2,
    }
    for kill in (True, False):
        member = WorkerProcess(**what)
        try:
            member.wait_for("OnStandby")
            if kill:
                member.kill()
            else:
                member.signal(2)  # the first SIGINT drains, though the worker never joined
                assert (member.ended(), member.errors) == (0, "")
        finally:
            member.close()
    assert undisturbed(older)
    assert orders_group.version() == 1


@pytest.mark.long
def test_postgres_goes_away_and_comes_back_during_standby(
    request: pytest.FixtureRequest, own_postgres: PostgresServer
) -> None:
    orders_group = orders_group_on(request, own_postgres)
    older = working(orders_group, [of(1)], limits=QUICK)
    driver = opened(orders_group)
    newer = orders_group.worker(QUICK, version=2)
    newer.seen.wait_for(events.OnStandby)

    own_postgres.kill()
    newer.seen.wait_for(events.DatabaseTrouble)
    health = newer.health()
    assert health.trouble is not None
    assert health.standby is not None
    mark = older.seen.mark()
    own_postgres.start()
    newer.seen.wait_for(events.Recovered)
    health = newer.health()
    assert (health.ready, health.trouble) == (False, None)
    assert health.standby is not None

    older.seen.wait_for(events.Recovered, since=mark)
    orders_group.produce(orders_group.topic, [of(2)], partition=0)
    orders_group.reload().run(orders_group.reload().take_over(driver.run.id))
    newer.seen.wait_for(events.Activated, count=2)
    older.ends_with(HandlerOutdated)
    applied_by(newer, orders_group, [of(3)])
    newer.stop()
    assert orders_group.rows() == [(1, 2, 0), (2, 2, 0), (3, 2, 0)]
    orders_group.engine.dispose()


@pytest.mark.long
def test_a_worker_that_looked_too_early_leaves_the_group_and_becomes_a_standby(orders_group: OrdersGroup) -> None:
    """Opened between its look and its claim: Kafka has given it partitions, and gets them back."""
    with OrderProducer(orders_group) as order_producer:
        older = orders_group.worker(QUICK)
        older.seen.wait_for(events.Committed, count=3)
        runs: list[Driver] = []

        def open_it(event: events.Event) -> None:
            if isinstance(event, events.Started) and not runs:
                runs.append(opened(orders_group))

        newer = orders_group.run_worker(orders_group.pipeline(version=2), observe=[open_it], limits=QUICK)
        stood = newer.seen.wait_for(events.OnStandby)
        assert stood.run == runs[0].run.id
        assert not newer.seen.all(events.Activated)
        assert orders_group.version() == 1
        older.seen.wait_for(events.Committed, since=older.seen.mark(), count=5)
        orders_group.reload().run(runs[0])
        newer.seen.wait_for(events.StandbyEnded)
        older.ends_with(HandlerOutdated)
        newer.seen.wait_for(events.Committed, count=5)
    applied(orders_group, order_producer)
    newer.stop()
    assert orders_group.rows() == doubled(order_producer.all)
