"""Verify: the live table compared with the log at the same offsets; nothing is changed, and workers continue."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from seekpoint.admin import Admin, TableDifferences
from seekpoint.errors import ReloadRefused
from support.before_cutover import applied_by, working
from support.reload_orders import Shop, doubled, gone, of

FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3)]


def test_a_table_that_is_what_the_log_says(shop: Shop) -> None:
    worker = working(shop, FIRST)
    report = shop.reload(version=1).verify()
    assert report.is_empty
    (table,) = report.tables
    assert (table.table, table.equal, table.samples) == (f"{shop.schema}.orders", 39, ())
    assert report.offsets == {f"{shop.group} {shop.topic}/0": 121, f"{shop.group} {shop.topic}/1": 0}
    more = [of(1, 2)]
    applied_by(worker, shop, more)
    assert shop.rows() == doubled(FIRST + more, by=1)
    assert shop.schemas() == []


def test_what_differs_is_named(shop: Shop) -> None:
    working(shop, FIRST)
    shop.execute("DELETE FROM {schema}.orders WHERE id IN (5, 6)")
    shop.execute("UPDATE {schema}.orders SET amount = 1 WHERE id = 8")
    shop.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (1000, 1, 1)")
    shop.execute("UPDATE {schema}.orders SET note = 'not ours' WHERE id = 9")
    report = shop.reload(version=1).verify()
    (table,) = report.tables
    assert (table.equal, table.missing, table.extra, table.different) == (36, 2, 1, 1)
    assert not report.is_empty
    samples: list[Any] = [(s.kind, s.key, s.live and s.live["amount"], s.rebuilt and s.rebuilt["amount"])
                          for s in table.samples]  # fmt: skip
    assert samples == [
        ("different", {"id": 8}, "1", "88"),
        ("extra", {"id": 1000}, "1", None),
        ("missing", {"id": 5}, None, "85"),
        ("missing", {"id": 6}, None, "86"),
    ]
    assert json.loads(json.dumps(report.as_dict()))["tables"][0]["missing"] == 2
    assert shop.execute("SELECT count(*) FROM {schema}.orders WHERE id = 1000") == [(1,)], "nothing is changed"
    (run,) = shop.reload().runs.list()
    assert (run.state, run.error) == ("verified", None)
    (shown,) = Admin(shop.engine, schema=shop.schema).reloads()
    assert shown.differences == (TableDifferences(table.table, equal=36, missing=2, extra=1, different=1),)


def test_long_values_are_shown_by_their_beginning(shop: Shop) -> None:
    """Twenty rows of each kind with values of megabytes would be a report of a hundred."""
    shop.execute("ALTER TABLE {schema}.orders ALTER amount TYPE numeric")
    working(shop, FIRST)
    shop.execute("UPDATE {schema}.orders SET amount = -repeat('9', 5000)::numeric WHERE id = 8")
    (sample,) = shop.reload(version=1).verify().tables[0].samples
    assert sample.live is not None
    assert sample.rebuilt is not None
    digest = hashlib.md5(b"-" + b"9" * 5000, usedforsecurity=False).hexdigest()
    assert sample.live["amount"] == f"-{'9' * 999}… (5001 characters, MD5 {digest})"
    assert (sample.rebuilt["amount"], sample.live["at"]) == ("88", "88")


def test_rows_of_types_without_equality_are_compared(shop: Shop) -> None:
    """json has no equality: what was stored is compared as it is written."""
    shop.execute("ALTER TABLE {schema}.entries ADD told json")
    working(shop, [of(n, n) for n in range(10)], kind="append")
    assert shop.reload(version=1, pipeline={"kind": "append"}).verify().is_empty


def test_verify_is_refused_like_a_reload(shop: Shop) -> None:
    with pytest.raises(ReloadRefused, match="has no offsets in the ledger"):
        shop.reload().verify()
    assert shop.reload().runs.list() == []
