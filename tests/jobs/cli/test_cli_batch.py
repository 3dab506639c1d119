"""``seekpoint batch``: what it applies, what it prints, and how an open one is resumed."""

from __future__ import annotations

import json
import signal
from typing import IO, cast

import pytest
from sqlalchemy import create_engine

from seekpoint.jobs.batch import BatchJob
from support.cli_jobs import FIRST, Terminal, wait_for_lock
from support.postgres_proxy import PostgresProxy
from support.reload_orders import OrdersGroup, doubled, of
from support.waiting import until


@pytest.fixture
def orders_group(terminal: Terminal) -> OrdersGroup:
    """The group, with records that have not been applied."""
    terminal.orders_group.produce(terminal.orders_group.topic, FIRST, partition=0)
    return terminal.orders_group


def test_a_batch_applies_what_is_new(terminal: Terminal, orders_group: OrdersGroup) -> None:
    result = terminal.job("batch", name="old")
    assert f"{orders_group.group}: 121 records applied: " in result.stdout
    assert f"rows for {orders_group.schema}.orders" in result.stdout
    assert f"{orders_group.topic}/0 is at offset 121" in result.stdout
    assert "staging: 121 records" in result.stderr
    assert orders_group.rows() == doubled(FIRST, by=1)
    again = terminal.job("batch", name="old")
    assert f"{orders_group.group}: no new records" in again.stdout
    later = [of(7, 8)]
    orders_group.produce(orders_group.topic, later, partition=0)
    summary = json.loads(terminal.job("batch", "--json", "--reason", "nightly", name="old").stdout)
    assert (summary["records"], summary["dead_letters"], summary["offsets"][f"{orders_group.topic}/0"]) == (1, 0, 122)
    assert orders_group.rows() == doubled(FIRST + later, by=1)
    newest, *_ = terminal.look("reload", "status")
    assert (newest["strategy"], newest["state"], newest["reason"]) == ("batch", "cut_over", "nightly")
    assert newest["id"] == summary["run"]


def test_a_batch_of_some_records_is_continued_by_the_next_one(terminal: Terminal, orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, [of(1007, 8), of(1008, 8)], partition=1)
    first = json.loads(terminal.job("batch", "--json", "--max-records", "100", name="old").stdout)
    assert (first["records"], first["offsets"]) == (100, {f"{orders_group.topic}/0": 98, f"{orders_group.topic}/1": 2})
    rest = terminal.job("batch", "--json", "--max-records", "100", "--range-records", "9", name="old").stdout
    assert json.loads(rest)["records"] == 23
    staged = "SELECT max(records) FROM {schema}.reload_staged GROUP BY run ORDER BY 1"
    assert [row[0] for row in orders_group.execute(staged)] == [9, 98]
    assert "no new records" in terminal.job("batch", "--max-records", "100", name="old").stdout
    assert orders_group.rows() == doubled([*FIRST, of(1007, 8), of(1008, 8)], by=1)
    refused = terminal.job("batch", "--copy-sessions", "2", name="old", exits=2)
    assert "--copy-sessions limits Spark's tasks: give --spark, too" in refused.stderr


def test_a_worker_brings_its_servers(terminal: Terminal, orders_group: OrdersGroup) -> None:
    terminal.run("batch", f"{terminal.module}:worker")
    assert orders_group.rows() == doubled(FIRST)


def test_a_group_with_workers_is_refused_unless_they_are_paused(terminal: Terminal, orders_group: OrdersGroup) -> None:
    worker = orders_group.worker()
    worker.reached(orders_group.topic, len(FIRST))
    later = [of(7, 8)]
    # the worker cannot pass this record before the batch looks
    with orders_group.holding("SELECT 1 FROM {schema}.orders WHERE id = 7 FOR UPDATE") as holder:
        orders_group.produce(orders_group.topic, later, partition=0)
        refused = terminal.job("batch", name="old", exits=1)
        assert "the batch cannot be run" in refused.stderr
        holder.rollback()
    worker.finish(orders_group.topic, len(FIRST) + 1)
    assert orders_group.rows() == doubled(FIRST + later, by=1)


@pytest.mark.long
def test_ctrl_c_leaves_a_batch_open_and_says_how_to_resume_it(terminal: Terminal, orders_group: OrdersGroup) -> None:
    """Another session locks the table: the batch's last transaction waits for the lock."""
    with orders_group.holding("LOCK TABLE {schema}.orders IN SHARE MODE"):
        process = terminal.process("batch", name="old")
        wait_for_lock(orders_group, "query", f'LOCK TABLE "{orders_group.schema}"."orders"%')
        process.send_signal(signal.SIGINT)
        out, stderr = process.communicate(timeout=60)
    (run,) = terminal.look("reload", "status")
    assert (process.returncode, out) == (130, "")
    assert f"aborted: {run['id']} is left open" in stderr
    assert f"seekpoint batch {terminal.module}:old --resume {run['id']}" in stderr
    assert f"group {orders_group.group!r} is paused for it meanwhile" in stderr
    status = terminal.look("reload", "status", run["id"])
    assert any(f"seekpoint batch {terminal.module}:old --resume {run['id']}" in line for line in status["next"])
    wrong = terminal.job("reload", "run", "--resume", run["id"], name="old", exits=2)
    assert f"{run['id']} is a batch, not a reload: resume it with `seekpoint batch" in wrong.stderr
    terminal.job("batch", "--resume", run["id"], name="old")
    assert orders_group.rows() == doubled(FIRST, by=1)


@pytest.mark.long
def test_ctrl_c_is_an_abort_where_the_server_cannot_be_asked_to_cancel(
    terminal: Terminal, orders_group: OrdersGroup, seekpoint_dsn: str
) -> None:
    """The statement still waits in the server, with the run's row locked: nothing may wait for that row."""
    with (
        PostgresProxy.in_front_of(seekpoint_dsn) as proxy,
        orders_group.holding("LOCK TABLE {schema}.orders IN SHARE MODE"),
    ):
        process = terminal.process("batch", "--database-url", proxy.dsn, name="old")
        wait_for_lock(orders_group, "query", f'LOCK TABLE "{orders_group.schema}"."orders"%')
        proxy.refuse()  # to cancel takes a connection
        process.send_signal(signal.SIGINT)
        stderr = cast("IO[str]", process.stderr)
        until(lambda: "query cancellation failed" in stderr.readline(), "the driver cannot cancel", 60)
        proxy.accept()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    (run,) = terminal.look("reload", "status")
    assert run["state"] == "staged"
    assert f"aborted: batch {run['id']} is still open" in errors
    assert f"seekpoint batch {terminal.module}:old --resume {run['id']}" in errors
    terminal.job("batch", "--resume", run["id"], name="old")
    assert orders_group.rows() == doubled(FIRST, by=1)


def test_ctrl_c_with_the_database_away_is_an_abort(
    terminal: Terminal, orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run cannot be read then: the message says which command lists it."""

    def stopped(job: BatchJob, **_options: object) -> None:
        job.runs.engine = create_engine("postgresql+psycopg://u@127.0.0.1:1/d")
        raise KeyboardInterrupt

    monkeypatch.setattr(BatchJob, "run", stopped)
    stderr = terminal.job("batch", name="old", exits=130).stderr
    assert stderr.startswith("aborted: the database does not answer; if a batch was opened, it is still open")
    assert "`seekpoint reload status` lists the batch" in stderr


def test_workers_without_lag_leave_nothing_to_refuse(terminal: Terminal, orders_group: OrdersGroup) -> None:
    worker = orders_group.worker()
    worker.reached(orders_group.topic, len(FIRST))
    assert f"{orders_group.group}: no new records" in terminal.job("batch", name="old").stdout
    worker.stop()


@pytest.mark.long
def test_workers_continue_after_a_batch_is_aborted(terminal: Terminal, orders_group: OrdersGroup) -> None:
    with orders_group.holding("LOCK TABLE {schema}.orders IN SHARE MODE"):
        process = terminal.process("batch", name="old")
        wait_for_lock(orders_group, "query", f'LOCK TABLE "{orders_group.schema}"."orders"%')
        process.kill()
        process.communicate()
    (run,) = terminal.look("reload", "status")
    terminal.look("reload", "abort", run["id"], "--reason", "workers do it")
    orders_group.work(len(FIRST))
    assert orders_group.rows() == doubled(FIRST, by=1)
