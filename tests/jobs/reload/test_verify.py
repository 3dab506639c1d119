"""Verify: the live table compared with the log at the same offsets; nothing is changed, and workers continue."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from seekpoint import Append, Json, Pipeline
from seekpoint.admin import Admin, TableDifferences
from seekpoint.errors import ReloadRefused
from support.before_cutover import applied_by, reloaded, working
from support.reload_orders import Order, OrderKey, OrdersGroup, doubled, gone, of

FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3)]


def test_a_table_that_is_what_the_log_says(orders_group: OrdersGroup) -> None:
    worker = working(orders_group, FIRST)
    report = orders_group.reload(version=1).verify()
    assert report.is_empty
    (table,) = report.tables
    assert (table.table, table.equal, table.samples) == (f"{orders_group.schema}.orders", 39, ())
    assert report.offsets == {
        f"{orders_group.group} {orders_group.topic}/0": 121,
        f"{orders_group.group} {orders_group.topic}/1": 0,
    }
    more = [of(1, 2)]
    applied_by(worker, orders_group, more)
    assert orders_group.rows() == doubled(FIRST + more, by=1)
    assert orders_group.schemas() == []


def test_first_rows_that_stay_are_rebuilt(orders_group: OrdersGroup) -> None:
    """Staged, caught up with and merged, the first record of each key counts; so it does in one range."""
    sink: dict[str, Any] = {"sink": {"on_conflict": "keep"}}
    worker = working(orders_group, [of(n % 40, n, n) for n in range(120)], **sink)
    report = orders_group.reload(version=1, pipeline=sink).verify()
    assert (report.is_empty, report.tables[0].equal) == (True, 40)
    applied_by(worker, orders_group, [of(1, 999)])
    assert orders_group.rows() == doubled([of(n, n, n) for n in range(40)], by=1)
    worker.stop()
    reloaded(orders_group.reload(pipeline=sink))
    assert orders_group.rows() == doubled([of(n, n, n) for n in range(40)])


def test_what_differs_is_named(orders_group: OrdersGroup) -> None:
    working(orders_group, FIRST)
    orders_group.execute("DELETE FROM {schema}.orders WHERE id IN (5, 6)")
    orders_group.execute("UPDATE {schema}.orders SET amount = 1 WHERE id = 8")
    orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (1000, 1, 1)")
    orders_group.execute("UPDATE {schema}.orders SET note = 'not ours' WHERE id = 9")
    report = orders_group.reload(version=1).verify()
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
    assert orders_group.execute("SELECT count(*) FROM {schema}.orders WHERE id = 1000") == [(1,)], "nothing is changed"
    (run,) = orders_group.reload().runs.list()
    assert (run.state, run.error) == ("verified", None)
    (shown,) = Admin(orders_group.engine, schema=orders_group.schema).reloads()
    assert shown.differences == (TableDifferences(table.table, equal=36, missing=2, extra=1, different=1),)


def test_long_values_are_shown_by_their_beginning(orders_group: OrdersGroup) -> None:
    """Twenty rows of each kind with values of megabytes would be a report of a hundred."""
    orders_group.execute("ALTER TABLE {schema}.orders ALTER amount TYPE numeric")
    working(orders_group, FIRST)
    orders_group.execute("UPDATE {schema}.orders SET amount = -repeat('9', 5000)::numeric WHERE id = 8")
    (sample,) = orders_group.reload(version=1).verify().tables[0].samples
    assert sample.live is not None
    assert sample.rebuilt is not None
    digest = hashlib.md5(b"-" + b"9" * 5000, usedforsecurity=False).hexdigest()
    assert sample.live["amount"] == f"-{'9' * 999}… (5001 characters, MD5 {digest})"
    assert (sample.rebuilt["amount"], sample.live["at"]) == ("88", "88")


def test_what_a_sink_may_round_and_convert_is_no_difference(orders_group: OrdersGroup) -> None:
    """Tasks write values as the worker does."""
    orders_group.execute("CREATE TABLE {schema}.rounded (id bigint PRIMARY KEY, v numeric(6, 1), at timestamp)")
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    sink = Append(
        (orders_group.schema, "rounded"),
        columns=["id", "v", "at"],
        row=lambda r: (r.value.id, Decimal("1.25"), noon),
        round=True,
        timezone="UTC",
    )
    pipeline = Pipeline(
        orders_group.group, topics=orders_group.topic, value=Json(Order), key=Json(OrderKey), sinks=[sink]
    )
    orders_group.apply(pipeline, orders_group.put([of(n, n) for n in range(10)]))
    assert orders_group.rows("rounded", "v, at, 0")[0] == (Decimal("1.3"), noon.replace(tzinfo=None), 0)
    assert orders_group.reload([pipeline]).verify().is_empty


def test_rows_of_types_without_equality_are_compared(orders_group: OrdersGroup) -> None:
    """json has no equality: what was stored is compared as it is written."""
    orders_group.execute("ALTER TABLE {schema}.entries ADD told json")
    working(orders_group, [of(n, n) for n in range(10)], kind="append")
    assert orders_group.reload(version=1, pipeline={"kind": "append"}).verify().is_empty


def test_verify_is_refused_like_a_reload(orders_group: OrdersGroup) -> None:
    with pytest.raises(ReloadRefused, match="has no offsets in the ledger"):
        orders_group.reload().verify()
    assert orders_group.reload().runs.list() == []
