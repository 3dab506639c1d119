"""A pipeline that sums the group's orders, a row for each bucket of ids, and a plain loop that computes the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from seekpoint import Accumulate, Json, Pipeline
from support.reload_orders import Order, OrderKey, OrdersGroup

BUCKETS = 5
TABLE = """
CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, orders bigint NOT NULL CHECK (orders >= -1),
    amount bigint NOT NULL, euros numeric(12, 2) NOT NULL, weight double precision NOT NULL, first_at bigint,
    last_at bigint, mean numeric GENERATED ALWAYS AS (amount / nullif(orders, 0)) STORED, note text DEFAULT 'none')
"""
COLUMNS = "bucket, orders, amount, euros, weight, first_at, last_at"

Records = Sequence[tuple[str, str | None]]


# The pipeline of the sums, as a module that other processes import by name.
MODULE = """
from support.order_sums import totals_of

orders = totals_of({group!r}, {topic!r}, {schema!r}, version={version})
"""


def totals(orders_group: OrdersGroup, **options: Any) -> Pipeline:
    """The group's pipeline of the sums; version 2 doubles amounts. Creates the table unless it exists."""
    orders_group.execute(TABLE.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
    return totals_of(orders_group.group, orders_group.topic, orders_group.schema, **options)


def totals_of(group: str, topic: str, schema: str, *, version: int = 1, **options: Any) -> Pipeline:
    """The pipeline of a topic's sums."""
    sink = Accumulate(
        (schema, "totals"),
        key=["bucket"],
        add=["orders", "amount", "euros", "weight"],
        least=["first_at"],
        most=["last_at"],
        row=lambda record: _row(record.value, version),
        subtract=lambda record: {"bucket": record.key.id % BUCKETS, "orders": 1} | dict.fromkeys(_AMOUNTS),
    )
    codecs: dict[str, Any] = {"value": Json(Order, tombstones=True), "key": Json(OrderKey)}
    return Pipeline(group, topics=topic, sinks=[sink], version=version, **{**codecs, **options})


_AMOUNTS = ("amount", "euros", "weight")


def _row(order: Order, version: int) -> dict[str, Any]:
    amount = order.amount * version
    return {
        "bucket": order.id % BUCKETS,
        "orders": 1,
        "amount": amount,
        "euros": Decimal(amount) / 100,
        "weight": amount * 0.1,
        "first_at": order.at,
        "last_at": order.at or None,
    }


def expected(records: Records, by: int = 1) -> list[tuple[Any, ...]]:
    """The rows, computed by a plain loop; ``by`` multiplies amounts."""
    table: dict[int, list[Any]] = {}
    for key, value in records:
        row = table.setdefault(json.loads(key)["id"] % BUCKETS, [0, 0, Decimal(0), 0.0, None, None])
        if value is None:
            row[0] -= 1
            continue
        amounts = _row(Order(**json.loads(value)), by)
        for place, name in enumerate(("orders", *_AMOUNTS)):
            row[place] += amounts[name]
        early, late = amounts["first_at"], amounts["last_at"]
        row[4] = early if row[4] is None else min(row[4], early)
        row[5] = late if row[5] is None else max(row[5], late or row[5])
    return [(bucket, *row) for bucket, row in sorted(table.items())]


def assert_sums(orders_group: OrdersGroup, records: Records, by: int = 1) -> None:
    """Assert that the table has a plain loop's rows; floats may differ in their last digits."""
    rows, wanted = orders_group.rows("totals", COLUMNS), expected(records, by)
    assert [row[:4] + row[5:] for row in rows] == [row[:4] + row[5:] for row in wanted]
    for ours, theirs in zip(rows, wanted, strict=True):
        assert abs(ours[4] - theirs[4]) <= 1e-9 * max(abs(ours[4]), abs(theirs[4]))
