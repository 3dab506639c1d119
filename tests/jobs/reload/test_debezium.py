"""Reload and verify of a table that Debezium's changes make: the same rows as a worker's, in any ranges."""

from __future__ import annotations

from typing import Any

import pytest

from seekpoint import Pipeline, Upsert
from seekpoint.codecs import Debezium
from seekpoint.errors import ReloadRefused
from support.debezium import event, field, key_of
from support.reload_orders import OrdersGroup

FIELDS = [field("id", "int32"), field("amount", "int64"), field("at", "int64"), field("note")]


def replica(orders_group: OrdersGroup) -> Pipeline:
    sink = Upsert((orders_group.schema, "orders"), key=["id"], columns=["id", "amount", "at", "note"], changes=True)
    return Pipeline(orders_group.group, topics=orders_group.topic, value=Debezium(), key=Debezium(), sinks=[sink])


def change(op: str, id: int, amount: int = 1, note: str = "") -> tuple[str, str | None]:  # noqa: A002
    row: dict[str, Any] = {"id": id, "amount": amount, "at": 0, "note": note}
    before, after = (row, None) if op == "d" else (None, row)
    return key_of(id=id).decode(), event(FIELDS, op, before, after).decode()


def moved(before: int, after: int) -> list[tuple[str, str | None]]:
    """A changed key, as Debezium writes it: a delete with its tombstone, and a create."""
    return [change("d", before), (key_of(id=before).decode(), None), change("c", after)]


def test_changes_are_rebuilt(orders_group: OrdersGroup) -> None:
    pipeline = replica(orders_group)
    log = [change("r", n) for n in range(20)] + [change("u", n, 2) for n in range(5)] + moved(3, 33) + moved(4, 3)
    orders_group.apply(pipeline, orders_group.put([*log, (key_of(id=7).decode(), None)]))
    assert [row[0] for row in orders_group.rows()] == [0, 1, 2, 3, *range(5, 7), *range(8, 20), 33]
    assert orders_group.reload([pipeline]).verify().is_empty
    orders_group.execute(
        "UPDATE {schema}.orders SET amount = 9 WHERE id = 0; DELETE FROM {schema}.orders WHERE id = 33"
    )
    assert [(s.kind, s.key) for s in orders_group.reload([pipeline]).verify().tables[0].samples] == [
        ("different", {"id": 0}),
        ("missing", {"id": 33}),
    ]


def test_values_that_the_source_did_not_send_are_refused(orders_group: OrdersGroup) -> None:
    """Each range is staged by itself, and has no row to keep them of."""
    pipeline = replica(orders_group)
    log = [change("c", 1, note="long"), change("u", 1, 2, "__debezium_unavailable_value")]
    orders_group.apply(pipeline, orders_group.put(log))
    assert orders_group.rows(columns="id, amount, note") == [(1, 2, "long")]
    with pytest.raises(ReloadRefused, match="offset 1 has no values for columns that it did not change"):
        orders_group.reload([pipeline]).verify()
