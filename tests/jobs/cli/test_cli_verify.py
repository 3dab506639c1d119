"""``seekpoint verify``: what differs, for people and for programs; and nothing live is touched."""

from __future__ import annotations

import json
import signal

import pytest

from support.before_cutover import settled
from support.cli_jobs import FIRST, Terminal, wait_for_lock
from support.reload_orders import Shop, doubled, of


def test_tables_that_are_what_the_log_says(terminal: Terminal, shop: Shop) -> None:
    result = terminal.job("verify", name="old")
    (header, counts, at) = (line.split() for line in result.stdout.splitlines() if line.strip())
    assert header == ["table", "equal", "missing", "extra", "different"]
    assert counts == [f"{shop.schema}.orders", "39", "0", "0", "0"]
    assert at[:2] == ["compared", "at"]
    assert f"{shop.group} {shop.topic}/0 at 121" in result.stdout
    assert "staging: 121 records" in result.stderr
    assert shop.schemas() == []
    (run,) = terminal.look("reload", "status")
    assert (run["state"], run["error"]) == ("verified", None)
    listed = terminal.run("reload", "status", *terminal.ledger).stdout
    assert " verified " in listed
    assert max(map(len, listed.splitlines())) <= 100
    assert "aborted" not in listed
    shown = terminal.run("reload", "status", run["id"], *terminal.ledger).stdout
    assert shown.startswith(f"verify {run['id']}: verified\n")
    assert "error" not in shown


def test_what_differs_is_shown_and_fails(terminal: Terminal, shop: Shop) -> None:
    shop.execute("DELETE FROM {schema}.orders WHERE id IN (5, 6)")
    shop.execute("UPDATE {schema}.orders SET amount = 1 WHERE id = 8")
    shop.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (1000, 1, 1)")
    before = shop.rows()
    said = terminal.job("verify", name="old", exits=1).stdout
    assert [f"{shop.schema}.orders", "36", "2", "1", "1"] in [line.split() for line in said.splitlines()]
    name = f"{shop.schema}.orders"
    assert f"{name} different: id=8\n  live    amount=1\n  rebuilt amount=88\n" in said
    assert f"{name} extra: id=1000\n  live    id=1000, amount=1, at=1\n" in said
    assert f"{name} missing: id=5\n  rebuilt id=5, amount=85, at=85\n" in said
    assert shop.rows() == before, "nothing is mended"


def test_a_new_version_is_compared_before_it_is_reloaded(terminal: Terminal, shop: Shop) -> None:
    """For programs: the report, and nothing else."""
    settled(shop, [of(1, 2_000)], on_poison="dead_letter", sink={"order_by": "at"})
    result = terminal.job("verify", "--json", name="lenient", exits=1)
    report = json.loads(result.stdout)
    (table,) = report["tables"]
    assert (report["is_empty"], report["dead_letters"]) == (False, 2), "one is too much, a tombstone has no time"
    assert (table["table"], table["different"] + table["equal"]) == (f"{shop.schema}.orders", 38 + 1)
    assert report["offsets"][f"{shop.group} {shop.topic}/0"] == 122
    assert len(table["samples"]) > 3
    assert result.stderr == ""
    said = terminal.job("verify", name="lenient", exits=1).stdout
    assert "2 records cannot be applied by this code" in said
    assert f"different: {table['different'] - 5} more (--json has up to 20 of them)" in said


def test_where_a_row_comes_from_is_shown_where_the_table_has_it(terminal: Terminal) -> None:
    shop = terminal.shop
    settled(shop, FIRST[:-1], kind="append")
    shop.execute("UPDATE {schema}.entries SET amount = 7 WHERE topic_offset = 11")
    said = terminal.job("verify", name="entries", exits=1).stdout
    assert f"{shop.schema}.entries different: topic_offset=11\n  live    amount=7\n  rebuilt amount=11\n" in said


def test_a_worker_brings_its_servers(terminal: Terminal, shop: Shop) -> None:
    assert "amount=" in terminal.run("verify", f"{terminal.module}:worker", exits=1).stdout


def test_a_verify_that_is_refused(terminal: Terminal) -> None:
    refused = terminal.job("verify", "--json", exits=1)
    assert "error: refused:" in refused.stderr
    assert "start a worker once, then reload" in refused.stderr
    assert refused.stdout == ""


def test_a_table_without_a_key_has_nothing_to_be_compared_by(terminal: Terminal) -> None:
    """The error of verify proposes no strategy; that of a swap does not propose merge, which needs a key as well."""
    shop = terminal.shop
    settled(shop, FIRST[:-1], kind="append")
    shop.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey")
    verify = terminal.job("verify", name="entries", exits=1).stderr
    assert "has no unique key" in verify
    assert "swap" not in verify
    assert "or --strategy swap (open(strategy='swap'))" in terminal.job("reload", "run", name="entries", exits=1).stderr
    shop.execute("CREATE MATERIALIZED VIEW {schema}.large AS SELECT * FROM {schema}.entries")
    swap = terminal.job("reload", "run", "--strategy", "swap", name="entries", exits=1).stderr
    assert "drop that, or give the table a unique key and use strategy 'merge'" in swap


@pytest.mark.long
def test_a_verify_that_is_stopped_leaves_nothing(terminal: Terminal, shop: Shop) -> None:
    """Another session locks the table, so the verification waits for the lock."""
    with shop.holding("LOCK TABLE {schema}.orders IN ACCESS EXCLUSIVE MODE"):
        process = terminal.process("verify")
        wait_for_lock(shop, "application_name", f"%job {process.pid}")
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "aborted" in said
    assert shop.schemas() == []
    assert shop.rows() == doubled(FIRST, by=1)
    assert [run["state"] for run in terminal.look("reload", "status") if run["is_open"]] == []


def test_a_verify_that_was_broken_off_is_listed_as_one(terminal: Terminal, shop: Shop) -> None:
    def stop(what: str, _done: int, _of: int) -> None:
        if what == "comparing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shop.reload(progress=stop).verify()
    (run,) = terminal.look("reload", "status")
    assert run["state"] == "aborted"
    assert run["error"] == "verify: broken off before the tables were compared"
    assert " aborted " in terminal.run("reload", "status", *terminal.ledger).stdout
