"""Dead letters that were edited and replayed: whatever reads the log again applies the edited value, too (I4)."""

from __future__ import annotations

from typing import Any

import pytest

from seekpoint import Text
from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.group_snapshot import read_snapshot
from seekpoint.jobs.spark.read_plan import applied_parts
from seekpoint.kafka.ranges import Range
from support.batch_process import batch
from support.before_cutover import diffed, reloaded, settled
from support.reload_orders import OrdersGroup, of

APPEND: dict[str, Any] = {"on_poison": "dead_letter", "kind": "append", "key": Text()}
REFUSED = ('{"id": 2}', '{"id": 2, "amount": "many"}')
COLUMNS = "id, amount, topic_offset"


def edited(orders_group: OrdersGroup, offset: int, amount: int, *, is_replayed: bool = True, **options: Any) -> None:
    """Give the dead letter at this offset an order of this amount, and replay it."""
    replay = orders_group.new_replay(**options)
    (dead_letter,) = [dead_letter for dead_letter in replay.list() if dead_letter.offset == offset]
    value = f'{{"id": {offset + 1}, "amount": {amount}}}'.encode()
    assert replay.edit(dead_letter.id, value, reason="a typo").refusal is None
    if is_replayed:
        assert replay.replay(dead_letter.id).is_applied


@pytest.fixture
def edited_group(orders_group: OrdersGroup) -> OrdersGroup:
    """Three orders, of which the second was dead-lettered, edited and replayed."""
    settled(orders_group, [of(1, 1), REFUSED, of(3, 3)], **APPEND)
    edited(orders_group, 1, 2, **APPEND)
    assert orders_group.rows("entries", COLUMNS) == [(1, 1, 0), (2, 2, 1), (3, 3, 2)]
    return orders_group


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_a_reload_applies_the_edited_value(edited_group: OrdersGroup, strategy: str) -> None:
    reloaded(edited_group.reload(pipeline=APPEND), strategy=strategy)
    assert edited_group.rows("entries", COLUMNS) == [(1, 2, 0), (2, 4, 1), (3, 6, 2)]
    assert edited_group.execute("SELECT state FROM {schema}.dead_letter") == [("replayed",)]


def test_verify_compares_with_the_edited_value(edited_group: OrdersGroup) -> None:
    assert edited_group.reload(version=1, pipeline=APPEND).verify().is_empty
    edited_group.execute("UPDATE {schema}.entries SET amount = 9 WHERE id = 2")
    (table,) = edited_group.reload(version=1, pipeline=APPEND).verify().tables
    assert (table.different, table.missing, table.extra) == (1, 0, 0)


def test_an_edit_that_was_not_replayed_is_not_applied(orders_group: OrdersGroup) -> None:
    settled(orders_group, [of(1, 1), REFUSED], **APPEND)
    edited(orders_group, 1, 2, is_replayed=False, **APPEND)
    reloaded(orders_group.reload(pipeline=APPEND))
    assert orders_group.rows("entries", COLUMNS) == [(1, 2, 0)]
    columns = "state, convert_from(value, 'UTF8'), convert_from(edited_value, 'UTF8')"
    assert orders_group.execute(f"SELECT {columns} FROM {{schema}}.dead_letter") == [
        ("dead_lettered", REFUSED[1], '{"id": 2, "amount": 2}')
    ]


def test_what_is_edited_and_replayed_in_mid_run_is_in(orders_group: OrdersGroup) -> None:
    """One before the run's first positions, and one after them."""
    settled(orders_group, [of(1, 1), REFUSED], **APPEND)
    with diffed(orders_group.reload(pipeline=APPEND)) as (reload, driver, rounds):
        settled(orders_group, [of(3, 3), REFUSED, of(5, 5)], **APPEND)
        edited(orders_group, 1, 2, **APPEND)
        edited(orders_group, 3, 4, **APPEND)
        reload.cut_over(driver, rounds)
    assert orders_group.rows("entries", COLUMNS) == [(1, 2, 0), (2, 4, 1), (3, 6, 2), (4, 8, 3), (5, 10, 4)]


def test_records_of_a_key_stay_in_order(orders_group: OrdersGroup) -> None:
    """The edited one comes before the record of its key that it had blocked."""
    options: dict[str, Any] = {"on_poison": "dead_letter"}
    settled(orders_group, [of(1, 1), REFUSED, of(2, 7)], **options)
    edited(orders_group, 1, 2, **options)
    assert orders_group.rows() == [(1, 1, 0), (2, 7, 0)]
    reloaded(orders_group.reload(pipeline=options))
    assert orders_group.rows() == [(1, 2, 0), (2, 14, 0)]


def test_one_that_the_new_code_refuses_is_open_again_with_both_values(orders_group: OrdersGroup) -> None:
    settled(orders_group, [of(1, 1), REFUSED], **APPEND)
    edited(orders_group, 1, 1500, **APPEND)
    reloaded(orders_group.reload(pipeline=APPEND))
    assert orders_group.rows("entries", COLUMNS) == [(1, 2, 0)]
    columns = "state, convert_from(value, 'UTF8'), convert_from(edited_value, 'UTF8'), edited_reason"
    assert orders_group.execute(f"SELECT {columns} FROM {{schema}}.dead_letter") == [
        ("dead_lettered", REFUSED[1], '{"id": 2, "amount": 1500}', "a typo")
    ]
    edited(orders_group, 1, 15, **APPEND, version=2)
    assert orders_group.rows("entries", COLUMNS) == [(1, 2, 0), (2, 30, 1)]


def test_a_batch_over_a_stated_range_applies_the_edited_value(edited_group: OrdersGroup) -> None:
    edited_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey")
    job = batch(edited_group, pipeline=APPEND)
    job.reprocess((edited_group.topic, 0), 0, 3, reason="a test", accept_repeats=True)
    assert edited_group.rows("entries", COLUMNS) == [(n, n, n - 1) for n in (1, 1, 2, 2, 3, 3)]


def test_spark_does_not_read_the_logs_value_for_the_applied_one(edited_group: OrdersGroup) -> None:
    snapshot = read_snapshot(edited_group.ledger())
    ((partition, position), *_) = sorted(snapshot.positions.items())
    whole = Range(partition, position.topic_id, 0, 3)
    with pytest.raises(ConfigError, match=r"/0 offset 1 was applied with an edited value .*\(deadLetters=include\)"):
        applied_parts(snapshot, [whole], "exclude")
    assert applied_parts(snapshot, [whole], "include")
    assert applied_parts(snapshot, [Range(partition, position.topic_id, 2, 3)], "exclude")
