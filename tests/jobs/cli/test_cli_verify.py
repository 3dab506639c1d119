"""``seekpoint verify``: what differs, for people and for programs; and nothing live is touched."""

from __future__ import annotations

import json
import signal

import pytest

from support.before_cutover import settled
from support.cli_jobs import FIRST, Terminal, wait_for_lock
from support.reload_orders import OrdersGroup, doubled, of


def test_tables_that_are_what_the_log_says(terminal: Terminal, orders_group: OrdersGroup) -> None:
    result = terminal.job("verify", name="old")
    (header, counts, where) = (line.split() for line in result.stdout.splitlines() if line.strip())
    assert header == ["table", "equal", "missing", "extra", "different"]
    assert counts == [f"{orders_group.schema}.orders", "39", "0", "0", "0"]
    assert where[:2] == ["compared", "at"]
    assert f"{orders_group.group} {orders_group.topic}/0 at 121" in result.stdout
    assert "staging: 121 records" in result.stderr
    assert orders_group.schemas() == []
    (run,) = terminal.look("reload", "status")
    assert (run["state"], run["error"]) == ("verified", None)
    listed = terminal.run("reload", "status", *orders_group.database_options).stdout
    assert " verified " in listed
    assert max(map(len, listed.splitlines())) <= 100
    assert "aborted" not in listed
    shown = terminal.run("reload", "status", run["id"], *orders_group.database_options).stdout
    assert shown.startswith(f"verify {run['id']}: verified\n")
    assert "error" not in shown


def test_what_differs_is_shown_and_fails(terminal: Terminal, orders_group: OrdersGroup) -> None:
    orders_group.execute("DELETE FROM {schema}.orders WHERE id IN (5, 6)")
    orders_group.execute("UPDATE {schema}.orders SET amount = 1 WHERE id = 8")
    orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (1000, 1, 1)")
    before = orders_group.rows()
    output = terminal.job("verify", name="old", exits=1).stdout
    assert [f"{orders_group.schema}.orders", "36", "2", "1", "1"] in [line.split() for line in output.splitlines()]
    name = f"{orders_group.schema}.orders"
    assert f"{name} different: id=8\n  live    amount=1\n  rebuilt amount=88\n" in output
    assert f"{name} extra: id=1000\n  live    id=1000, amount=1, at=1\n" in output
    assert f"{name} missing: id=5\n  rebuilt id=5, amount=85, at=85\n" in output
    assert orders_group.rows() == before, "nothing is corrected"


def test_a_new_version_is_compared_before_it_is_reloaded(terminal: Terminal, orders_group: OrdersGroup) -> None:
    """For programs: the report, and nothing else."""
    settled(orders_group, [of(1, 2_000)], on_poison="dead_letter", sink={"order_by": "at"})
    result = terminal.job("verify", "--json", name="lenient", exits=1)
    report = json.loads(result.stdout)
    (table,) = report["tables"]
    assert (report["is_empty"], report["dead_letters"]) == (False, 2), "one is too much, a tombstone has no time"
    assert (table["table"], table["different"] + table["equal"]) == (f"{orders_group.schema}.orders", 38 + 1)
    assert report["offsets"][f"{orders_group.group} {orders_group.topic}/0"] == 122
    assert len(table["samples"]) > 3
    assert result.stderr == ""
    output = terminal.job("verify", name="lenient", exits=1).stdout
    assert "this code cannot apply 2 records" in output
    assert f"different: {table['different'] - 5} more (--json has up to 20 of them)" in output


def test_where_a_row_comes_from_is_shown_where_the_table_has_it(terminal: Terminal) -> None:
    orders_group = terminal.orders_group
    settled(orders_group, FIRST[:-1], kind="append")
    orders_group.execute("UPDATE {schema}.entries SET amount = 7 WHERE topic_offset = 11")
    output = terminal.job("verify", name="entries", exits=1).stdout
    assert (
        f"{orders_group.schema}.entries different: topic_offset=11\n  live    amount=7\n  rebuilt amount=11\n" in output
    )


def test_a_worker_brings_its_servers(terminal: Terminal, orders_group: OrdersGroup) -> None:
    assert "amount=" in terminal.run("verify", f"{terminal.module}:worker", exits=1).stdout


def test_a_verify_that_is_refused(terminal: Terminal) -> None:
    refused = terminal.job("verify", "--json", exits=1)
    assert "error: refused:" in refused.stderr
    assert "start a worker once, then reload" in refused.stderr
    assert refused.stdout == ""


def test_a_table_without_a_key_has_nothing_to_be_compared_by(terminal: Terminal) -> None:
    """The error of verify proposes no strategy; that of a swap does not propose merge, which needs a key as well."""
    orders_group = terminal.orders_group
    settled(orders_group, FIRST[:-1], kind="append")
    orders_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey")
    verify = terminal.job("verify", name="entries", exits=1).stderr
    assert "has no unique key" in verify
    assert "swap" not in verify
    assert "or --strategy swap (open(strategy='swap'))" in terminal.job("reload", "run", name="entries", exits=1).stderr
    orders_group.execute("CREATE MATERIALIZED VIEW {schema}.large AS SELECT * FROM {schema}.entries")
    swap = terminal.job("reload", "run", "--strategy", "swap", name="entries", exits=1).stderr
    assert "drop that, or give the table a unique key and use strategy 'merge'" in swap


@pytest.mark.long
def test_a_verify_that_is_stopped_leaves_nothing(terminal: Terminal, orders_group: OrdersGroup) -> None:
    """Another session locks the table, so the verification waits for the lock."""
    with orders_group.holding("LOCK TABLE {schema}.orders IN ACCESS EXCLUSIVE MODE"):
        process = terminal.process("verify")
        wait_for_lock(orders_group, "application_name", f"%job {process.pid}")
        process.send_signal(signal.SIGINT)
        out, stderr = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "aborted" in stderr
    assert orders_group.schemas() == []
    assert orders_group.rows() == doubled(FIRST, by=1)
    assert [run["state"] for run in terminal.look("reload", "status") if run["is_open"]] == []


def test_a_verify_that_was_broken_off_is_listed_as_one(terminal: Terminal, orders_group: OrdersGroup) -> None:
    def stop(what: str, _done: int, _of: int) -> None:
        if what == "comparing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        orders_group.reload(progress=stop).verify()
    (run,) = terminal.look("reload", "status")
    assert run["state"] == "aborted"
    assert run["error"] == "verify: interrupted before the tables were compared"
    assert " aborted " in terminal.run("reload", "status", *orders_group.database_options).stdout
