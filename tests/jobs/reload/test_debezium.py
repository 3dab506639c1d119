"""Reload and verify of a table that Debezium's changes make: the same rows as a worker's, in any ranges."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from seekpoint import Pipeline, Upsert
from seekpoint.codecs import Debezium
from seekpoint.errors import ConfigError, ReloadRefused
from seekpoint.jobs.reload import Report
from support.batch_process import batch
from support.before_cutover import reloaded
from support.debezium import event, field, key_of
from support.reload_orders import OrdersGroup

LOST = "__debezium_unavailable_value"
TRUNCATED_KEY = key_of(id=0).decode()  # Debezium writes none; a truncate does not look at it
FIELDS = [field("id", "int32"), field("amount", "int64"), field("at", "int64"), field("note")]


def replica(orders_group: OrdersGroup, **options: Any) -> Pipeline:
    columns = ["id", "amount", "at", "note"]
    sink = Upsert((orders_group.schema, "orders"), key=["id"], columns=columns, changes=True, **options)
    return Pipeline(
        orders_group.group,
        topics=orders_group.topic,
        value=Debezium(),
        key=Debezium(),
        sinks=[sink],
    )


def change(op: str, id: int, amount: int = 1, note: str = "", **source: Any) -> tuple[str, str | None]:  # noqa: A002
    row: dict[str, Any] = {"id": id, "amount": amount, "at": 0, "note": note}
    before, after = (row, None) if op == "d" else (None, row)
    return key_of(id=id).decode(), event(FIELDS, op, before, after, **source).decode()


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


def drawn(rng: Random, count: int, *, stored: dict[int, str]) -> list[tuple[str, str | None]]:
    """A log of changes, some without the note that they leave as it is; ``stored`` has the rows' notes after it."""
    log: list[tuple[str, str | None]] = []
    for n in range(count):
        id_, draw = rng.randrange(6), rng.random()
        if draw < 0.03:
            log.append((TRUNCATED_KEY, event(FIELDS, "t", None, None).decode()))
            stored.clear()
        elif draw < 0.15:
            log += [change("d", id_), *([(key_of(id=id_).decode(), None)] if rng.random() < 0.5 else [])]
            stored.pop(id_, None)
        elif id_ in stored and draw < 0.7:
            log.append(change("u", id_, n, LOST))
        else:
            log.append(change("u" if id_ in stored else "c", id_, n, f"note {n}"))
            stored[id_] = f"note {n}"
    return log


@pytest.fixture
def one_partition(orders_group: OrdersGroup, topic: Callable[..., str]) -> OrdersGroup:
    """The group, reading a topic of one partition; its table has a column for the offset."""
    orders_group.execute("ALTER TABLE {schema}.orders ADD kafka_offset bigint, ALTER note SET NOT NULL")
    return replace(orders_group, topic=topic(1))


def test_changes_in_part_and_truncates_are_rebuilt(one_partition: OrdersGroup) -> None:
    """Ranges are staged separately: a range may have only a part of a row, and a truncate empties those before it."""
    seed = random.randrange(10**6)
    print("seed", seed)
    stored = dict[int, str]()
    log = drawn(Random(seed), 60, stored=stored)
    pipeline = replica(one_partition, truncate="delete", offset_column="kafka_offset")
    one_partition.apply(pipeline, one_partition.put(log))
    assert {row[0]: row[1] for row in one_partition.rows(columns="id, note, amount")} == stored
    assert one_partition.reload([pipeline], range_records=5).verify().is_empty
    one_partition.execute("UPDATE {schema}.orders SET note = 'changed'; DELETE FROM {schema}.orders WHERE id = 1")
    reloaded(one_partition.reload([pipeline], range_records=5))
    assert {row[0]: row[1] for row in one_partition.rows(columns="id, note, amount")} == stored


def test_a_batch_applies_changes_as_a_worker_does(one_partition: OrdersGroup) -> None:
    """Values that the batch's range does not have are those of the stored row."""
    seed = random.randrange(10**6)
    print("seed", seed)
    pipeline = replica(one_partition, truncate="delete", offset_column="kafka_offset")
    rng, stored = Random(seed), dict[int, str]()
    for count in (20, 5, 20):
        one_partition.put(drawn(rng, count, stored=stored))
        batch(one_partition, pipeline, range_records=5).run()
        assert {row[0]: row[1] for row in one_partition.rows(columns="id, note, amount")} == stored
    assert one_partition.reload([pipeline]).verify().is_empty


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            [change("c", 1), change("d", 1), change("u", 1, 2, LOST)],
            "offset 2 has no values for columns that it did not",
        ),
        ([change("u", 8, 2, LOST)], "the newest record of id = 8 has no values for columns that it did not change"),
    ],
    ids=["deleted", "unknown"],
)
def test_a_row_in_part_without_a_row_before_is_refused(
    orders_group: OrdersGroup, log: list[tuple[str, str | None]], message: str
) -> None:
    """A worker would dead-letter it; a batch, whose rows are merged at once, writes nothing."""
    orders_group.put(log)
    with pytest.raises(ReloadRefused, match=message):
        batch(orders_group, replica(orders_group), range_records=1).run()
    assert orders_group.rows() == []


def test_a_truncate_after_the_comparison_ends_the_run(one_partition: OrdersGroup) -> None:
    pipeline = replica(one_partition, truncate="delete", offset_column="kafka_offset")
    one_partition.apply(pipeline, one_partition.put([change("c", 1), change("c", 2)]))
    one_partition.execute("UPDATE {schema}.orders SET note = 'changed'")

    def truncate(_: Report) -> None:
        one_partition.apply(pipeline, one_partition.put([(TRUNCATED_KEY, event(FIELDS, "t", None, None).decode())]))

    with pytest.raises(ReloadRefused, match=r"offset 2 truncates .*\.orders, after its rows were compared"):
        reloaded(one_partition.reload([pipeline], compared=truncate))
    assert one_partition.rows() == []


def test_a_truncate_of_a_topic_with_several_partitions_is_refused_at_the_start(orders_group: OrdersGroup) -> None:
    orders_group.execute("ALTER TABLE {schema}.orders ADD kafka_offset bigint")
    pipeline = replica(orders_group, truncate="delete", offset_column="kafka_offset")
    with pytest.raises(ConfigError, match="has 2 partitions: records of several partitions have no common order"):
        orders_group.run_worker(pipeline)


@pytest.mark.parametrize("by", ["worker", "batch"])
def test_positions_order_the_changes_of_several_partitions(orders_group: OrdersGroup, by: str) -> None:
    """Partition 0 has the newer change of rows 1 and 3, and partition 1 that of row 2."""
    orders_group.execute("ALTER TABLE {schema}.orders ADD o bigint, ADD p int, ADD lsn numeric")
    options = {"offset_column": "o", "order_by": "lsn", "provenance": {"partition": "p"}}
    pipeline = replica(orders_group, **options)

    def change_at(op: str, id_: int, lsn: int) -> tuple[str, str | None]:
        return change(op, id_, lsn, connector="postgresql", lsn=lsn)

    key = key_of(id=3).decode()
    first = [
        change_at("c", 1, 100),
        change_at("c", 2, 101),
        change_at("c", 3, 102),
        change_at("c", 5, 103),
        change_at("d", 5, 104),
        (key_of(id=5).decode(), None),
    ]
    orders_group.put(
        [change_at("c", 1, 90), change_at("u", 2, 110), change_at("d", 3, 99), (key, None), change_at("c", 4, 115)],
        partition=1,
    )
    if by == "worker":
        end = orders_group.put(first)
        worker = orders_group.run_worker(pipeline)
        worker.reached(orders_group.topic, 5, partition=1)
        worker.finish(orders_group.topic, end)
    else:
        orders_group.put(first)
        batch(orders_group, pipeline, range_records=2).run()
    assert [row[:2] for row in orders_group.rows()] == [(1, 100), (2, 110), (3, 102), (4, 115)]
    assert orders_group.reload([pipeline], range_records=2).verify().is_empty
    orders_group.put([change_at("u", 1, 99)])
    with pytest.raises(
        ReloadRefused, match="the source's position goes back: 99 after 100, which column 'lsn' has: let"
    ):
        batch(orders_group, pipeline).run()
