"""What operators are shown after a group's only worker was killed: of the brokers, or with the sample's age."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from seekpoint import Batch, Limits, events
from seekpoint.admin import Admin
from seekpoint.metrics import LedgerGauges, Samples, catalogue
from seekpoint.web import Access, Right, create_app
from support.browser import LOCAL, Browser
from support.command import seekpoint
from support.worker_group import PROTOCOLS, WorkerGroup

AGE = r"2 min( \d+ s)?"  # of the last sample


def admin_of(worker_group: WorkerGroup, *, brokers: bool = True) -> Admin:
    kafka = {"bootstrap.servers": worker_group.broker, "log_level": 0} if brokers else None
    return Admin(worker_group.engine, kafka, schema=worker_group.schema)


def status(worker_group: WorkerGroup, *words: str, exits: int = 0, brokers: bool = True) -> Any:
    servers = worker_group.server_options if brokers else worker_group.database_options
    return seekpoint("status", worker_group.group, *servers, *words, exits=exits)


@pytest.fixture
def killed_worker_topic(worker_group: WorkerGroup) -> str:
    """The topic of a worker that was killed two minutes ago, after which three records have come."""
    name, _ = worker_group.log(10)
    process = worker_group.worker_process(name, kafka=PROTOCOLS["eager"])
    worker_group.wait_for_position(name, 10)
    worker_group.wait(lambda: [row.lag_records for row in worker_group.sql("SELECT * FROM {schema}.lag")] == [0])
    process.kill()
    worker_group.produce(name, 3)
    worker_group.sql(
        "UPDATE {schema}.position_sample SET at = at - interval '2 minutes'",
        "UPDATE {schema}.worker SET seen_at = seen_at - interval '2 minutes'",
    )
    return name


@pytest.mark.long
def test_after_a_kill_each_tool_has_the_same_lag_in_time(worker_group: WorkerGroup, killed_worker_topic: str) -> None:
    """Console, status, its check and the exporter: the view alone says 0, and the records have come since."""
    samples = Samples()
    LedgerGauges(
        worker_group.engine, schema=worker_group.schema, kafka={"bootstrap.servers": worker_group.broker}
    ).add_to(samples)
    exported = samples.of(catalogue.LAG_SECONDS)[(worker_group.group, killed_worker_topic, "0")]
    assert exported == pytest.approx(120, abs=30)
    [line] = json.loads(status(worker_group, "--json").stdout)
    assert (line["lag"], line["headroom"], line["is_sampled"]) == (3, 10, False)
    assert line["lag_seconds"] == pytest.approx(exported, abs=30)
    assert " old, over 30 s" in status(worker_group, "--check", "--max-age", "30s", exits=1).stdout
    browser = Browser(create_app(admin_of(worker_group), access=lambda _: Access("ada", Right.READ)), base_url=LOCAL)
    group = browser.get("/api/group", params={"group": worker_group.group}).json()["data"]["group"]
    assert group["partitions"][0]["lag_seconds"] == pytest.approx(exported, abs=30)
    assert "caught up" not in browser.get("/group", params={"group": worker_group.group}).text


@pytest.mark.long("another state of a group")
def test_without_brokers_a_number_shows_its_age_and_a_check_does_not_trust_it(
    worker_group: WorkerGroup, killed_worker_topic: str
) -> None:
    [group], _ = admin_of(worker_group, brokers=False).status([worker_group.group])
    [partition] = group.partitions
    assert (partition.lag, partition.is_sampled) == (0, True)
    assert partition.age is not None
    assert partition.age > timedelta(minutes=2)
    assert re.search(AGE + r" ago: all partitions$", status(worker_group, brokers=False).stdout, re.MULTILINE)
    output = status(worker_group, "--check", "--max-age", "30s", exits=1, brokers=False).stdout
    assert f"{killed_worker_topic}/0: the age of its next record is not known: its last sample is 2 min" in output
    assert status(worker_group, "--check", "--max-age", "10m", brokers=False).stdout == ""
    browser = Browser(
        create_app(admin_of(worker_group, brokers=False), access=lambda _: Access("a", Right.READ)), base_url=LOCAL
    )
    assert re.search("0, " + AGE + " ago", browser.get("/group", params={"group": worker_group.group}).text)


def test_the_groups_are_shown_with_the_brokers_lag_or_the_samples_age(
    worker_group: WorkerGroup, killed_worker_topic: str
) -> None:
    [asked], doubts = admin_of(worker_group).groups()
    assert (asked.lag, asked.age, doubts) == (3, None, [])
    assert asked.lag_seconds == pytest.approx(120, abs=30)
    [sampled], _ = admin_of(worker_group, brokers=False).groups()
    assert (sampled.lag, sampled.lag_seconds) == (0, 0)
    assert sampled.age is not None
    assert sampled.age > timedelta(minutes=2)
    assert " 2 min " in seekpoint("groups", "list", *worker_group.database_options).stdout
    [line] = json.loads(seekpoint("groups", "list", *worker_group.server_options, "--json").stdout)
    assert (line["lag"], line["age"]) == (3, None)
    app = create_app(admin_of(worker_group), access=lambda _: Access("ada", Right.READ))
    [shown] = Browser(app, base_url=LOCAL).get("/api/").json()["data"]
    assert shown["group"]["lag"] == 3


def test_of_a_topic_that_was_created_again_no_lag_is_known(worker_group: WorkerGroup, killed_worker_topic: str) -> None:
    worker_group.delete_topic(killed_worker_topic)
    worker_group.topic(name=killed_worker_topic)
    worker_group.produce(killed_worker_topic, 5)
    worker_group.wait(lambda: "was created again" in status(worker_group, "--json", exits=1).stderr)
    [line] = json.loads(status(worker_group, "--json", exits=1).stdout)
    assert [line[name] for name in ("end", "lag", "lag_seconds", "headroom")] == [None] * 4
    [group], _ = admin_of(worker_group).groups()
    assert (group.lag, group.lag_seconds) == (None, None)


@pytest.mark.long("another state of a group")
def test_a_killed_worker_is_gone_after_a_minute_and_a_paused_one_is_paused(
    worker_group: WorkerGroup, killed_worker_topic: str
) -> None:
    [group], _ = admin_of(worker_group).status([worker_group.group])
    assert [worker.state for worker in group.workers] == ["gone"]
    admin = admin_of(worker_group)
    admin.apply(admin.plan_pause(worker_group.group), reason="a migration")
    run = worker_group.worker(killed_worker_topic, limits=Limits(lag_check=0.1), kafka=PROTOCOLS["eager"])
    worker_group.wait(lambda: "paused" in {worker.state for worker in admin.status([worker_group.group])[0][0].workers})
    [paused] = [worker for worker in admin.status([worker_group.group])[0][0].workers if worker.state == "paused"]
    assert "a migration" in str(paused.activity)
    admin.apply(admin.plan_resume(worker_group.group), reason="done")
    worker_group.wait_for_position(killed_worker_topic, 13)
    run.stop()


def test_trouble_is_stored_with_its_text(worker_group: WorkerGroup) -> None:
    """A handler raises what passes by itself. During each next attempt the worker is shown as running."""
    name, _ = worker_group.log(3)
    admin = admin_of(worker_group, brokers=False)

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        tx.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'no space yet' USING ERRCODE = '53100'; END $$")

    run = worker_group.worker(worker_group.pipeline(name, handle=handle), limits=Limits(lag_check=0.1))
    run.seen.wait_for(events.DatabaseTrouble, lambda event: event.wait > 0)
    worker_group.wait(lambda: "no space yet" in str(admin.status([worker_group.group])[0][0].workers[0].trouble))
    shown = f"worker {run.seen.wait_for(events.Started).owner[:8]} is in trouble: "
    worker_group.wait(lambda: shown in status(worker_group, brokers=False).stdout)
    run.stop()


def test_a_rebalance_that_waits_for_a_member_is_shown(worker_group: WorkerGroup) -> None:
    """A worker that stands still answers no rebalance: the next one waits until its session has ended."""
    name, _ = worker_group.log(10, 2)
    eager = {**PROTOCOLS["eager"], "session.timeout.ms": 45_000, "max.poll.interval.ms": 60_000}
    process = worker_group.worker_process(name, kafka=eager)
    worker_group.wait_for_position(name, 10)
    process.freeze()
    run = worker_group.worker(name, kafka={**eager, "client.id": "the-next"})
    admin = admin_of(worker_group)
    worker_group.wait(lambda: admin.status([worker_group.group])[0][0].rebalance is not None)
    message = str(admin.status([worker_group.group])[0][0].rebalance)
    assert f"{worker_group.group}: Kafka rebalances the group" in message
    assert message in " ".join(status(worker_group).stdout.split())
    process.thaw()
    run.ready()
    worker_group.wait(lambda: admin.status([worker_group.group])[0][0].rebalance is None)
    run.stop()
