"""Partitioned tables are verified and merged; a swap is refused at the opening."""

from __future__ import annotations

import pytest

from seekpoint.errors import ReloadRefused
from support.before_cutover import reloaded, settled
from support.reload_orders import OrdersGroup, doubled, gone, of

RECORDS = [of(n % 40, n, n) for n in range(120)] + [gone(3)]
PARTITIONED = """
DROP TABLE {schema}.orders, {schema}.entries;
CREATE TABLE {schema}.orders (id bigint, amount bigint NOT NULL CHECK (amount < 5000), at bigint NOT NULL,
    note text DEFAULT 'none', PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE {schema}.orders_low PARTITION OF {schema}.orders FOR VALUES FROM (MINVALUE) TO (20);
CREATE TABLE {schema}.orders_high PARTITION OF {schema}.orders FOR VALUES FROM (20) TO (MAXVALUE);
CREATE TABLE {schema}.entries (number bigint GENERATED ALWAYS AS IDENTITY, id bigint NOT NULL, amount bigint NOT NULL,
    at bigint NOT NULL, topic_offset bigint PRIMARY KEY) PARTITION BY HASH (topic_offset);
CREATE TABLE {schema}.entries_0 PARTITION OF {schema}.entries FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE {schema}.entries_1 PARTITION OF {schema}.entries FOR VALUES WITH (MODULUS 2, REMAINDER 1);
"""


@pytest.fixture
def partitioned_group(orders_group: OrdersGroup) -> OrdersGroup:
    orders_group.execute(PARTITIONED)
    return orders_group


def test_a_partitioned_table_is_verified_and_merged(partitioned_group: OrdersGroup) -> None:
    settled(partitioned_group, RECORDS)
    assert partitioned_group.reload(version=1).verify().is_empty
    partitioned_group.execute("DELETE FROM {schema}.orders WHERE id IN (5, 25)")
    partitioned_group.execute("INSERT INTO {schema}.orders VALUES (-1, 1, 1), (1000, 1, 1)")
    (table,) = partitioned_group.reload(version=1).verify().tables
    assert (table.equal, table.missing, table.extra, table.different) == (37, 2, 2, 0)
    reload = partitioned_group.reload()
    reload.run(reload.open())
    assert partitioned_group.rows() == doubled(RECORDS)
    assert partitioned_group.rows("orders_low") == [row for row in doubled(RECORDS) if row[0] < 20]
    assert partitioned_group.reload().verify().is_empty
    assert partitioned_group.schemas() == []


def test_a_partitioned_table_of_every_record(partitioned_group: OrdersGroup) -> None:
    settled(partitioned_group, [of(n, n) for n in range(30)], kind="append")
    reloaded(partitioned_group.reload(pipeline={"kind": "append"}))
    assert partitioned_group.rows("entries", "id, amount, at") == [(n, 2 * n, 0) for n in range(30)]


def test_a_swap_of_a_partitioned_table_is_refused_at_the_opening(partitioned_group: OrdersGroup) -> None:
    settled(partitioned_group, RECORDS)
    with pytest.raises(ReloadRefused, match="has partitions: use strategy 'merge'"):
        partitioned_group.reload().open(strategy="swap")
