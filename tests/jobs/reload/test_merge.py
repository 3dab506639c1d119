"""What a merge does before its locks: it prepares the pages that it is going to change, and blocks no session."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from seekpoint import Limits
from seekpoint.jobs.reload import merge
from support.before_cutover import diffed, reloaded, settled, started
from support.reload_orders import OrdersGroup, doubled, of

MANY, CHANGED = 2_000, 300
RECORDS = [of(n, 1 if n < CHANGED else 0) for n in range(MANY)]  # twice nothing is the same


def locked_once(orders_group: OrdersGroup) -> set[int]:
    """The rows that a transaction has locked or tried to change since they were written."""
    return {row[0] for row in orders_group.execute("SELECT id FROM {schema}.orders WHERE xmax::text <> '0'")}


def test_rows_that_differ_are_locked_once_and_let_go(
    orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some pages of keys at a time; rows that another session has changed or locked are not waited for."""
    monkeypatch.setattr(merge, "WARM", 1)
    settled(orders_group, RECORDS)
    steps: list[tuple[int, int]] = []
    progress: list[tuple[str, int, int]] = []
    with diffed(orders_group.reload(progress=lambda *step: progress.append(step))) as (reload, driver, rounds):
        before = locked_once(orders_group)
        with orders_group.holding("UPDATE {schema}.orders SET note = 'mine' WHERE id = 7") as other:
            other.execute(text(f"SELECT FROM {orders_group.schema}.orders WHERE id = 8 FOR UPDATE"))
            merge.warm(driver, rounds.targets, lambda *step: steps.append(step))
        assert locked_once(orders_group) - before == set(range(CHANGED)) - before
        free = orders_group.execute("SELECT id FROM {schema}.orders WHERE id < :most FOR UPDATE NOWAIT", most=CHANGED)
        assert len(free) == CHANGED
        assert len(steps) > 4, "some pages at a time"
        assert steps == sorted(steps)
        assert (steps[0], steps[-1]) == ((0, CHANGED), (CHANGED, CHANGED))
        reload.cut_over(driver, rounds)
    assert [step for step in progress if step[0] == "warming up"] == [("warming up", *step) for step in steps]
    assert orders_group.rows() == doubled(RECORDS)


def test_a_large_difference_is_not_gone_through_before_the_lock(orders_group: OrdersGroup) -> None:
    settled(orders_group, RECORDS[: 2 * CHANGED])
    with diffed(orders_group.reload()) as (_, driver, rounds):
        before = locked_once(orders_group)
        merge.warm(driver, rounds.targets, lambda *_: pytest.fail("there is nothing to do"))
        assert locked_once(orders_group) == before


@pytest.mark.long
def test_a_table_that_another_session_has_locked_is_left_to_the_cut_over(orders_group: OrdersGroup) -> None:
    """Which tries again and again; making it short must not end it."""
    settled(orders_group, RECORDS)
    with diffed(orders_group.reload(limits=Limits(transaction_age=1.0))) as (reload, driver, rounds):
        before = locked_once(orders_group)
        with orders_group.holding("LOCK TABLE {schema}.orders IN EXCLUSIVE MODE"):
            merge.warm(driver, rounds.targets, lambda *_: None)
        assert locked_once(orders_group) == before
        reload.cut_over(driver, rounds)
    assert orders_group.rows() == doubled(RECORDS)


# -- rows that refer to each other --------------------------------------------------------------------------------

PARTED = """
DROP TABLE {schema}.orders;
CREATE TABLE {schema}.orders (id bigint PRIMARY KEY, amount bigint NOT NULL, at bigint NOT NULL, note text)
    PARTITION BY RANGE (id);
CREATE TABLE {schema}.orders_low PARTITION OF {schema}.orders FOR VALUES FROM (MINVALUE) TO (20);
CREATE TABLE {schema}.orders_high PARTITION OF {schema}.orders FOR VALUES FROM (20) TO (MAXVALUE);
"""


@pytest.mark.repeats("child", "parent")
@pytest.mark.parametrize(("child", "parent"), [("orders", "orders"), ("orders_low", "orders_high")])
def test_a_row_that_referred_to_a_deleted_one_of_its_table_stays(
    orders_group: OrdersGroup, child: str, parent: str
) -> None:
    """It is changed before that one is deleted, or the key's ON DELETE CASCADE would delete it, too."""
    if child != "orders":
        orders_group.execute(PARTED)
    records = [of(n, 1, 25) for n in range(1, 30)]
    settled(orders_group, records)
    orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (100, 1, 25)")
    orders_group.execute("UPDATE {schema}.orders SET at = 100 WHERE id = 2")
    orders_group.execute(
        f"ALTER TABLE {{schema}}.{child} ADD FOREIGN KEY (at) REFERENCES {{schema}}.{parent} ON DELETE CASCADE"
    )
    reloaded(orders_group.reload(allow_cascades=True))
    assert orders_group.rows() == doubled(records)


# -- a row that comes hides none that is gone --------------------------------------------------------------------


@pytest.mark.repeats("amount")
@pytest.mark.parametrize("amount", [0, 1])  # twice nothing is the same: then 7 is not in the difference
def test_a_key_that_becomes_null_does_not_hide_the_row_that_is_gone(orders_group: OrdersGroup, amount: int) -> None:
    orders_group.execute("ALTER TABLE {schema}.orders DROP CONSTRAINT orders_pkey, ALTER id DROP NOT NULL")
    orders_group.execute("CREATE UNIQUE INDEX ON {schema}.orders (id) NULLS NOT DISTINCT")
    records = [of(n, amount) for n in range(40)]
    settled(orders_group, records)
    with diffed(orders_group.reload()) as (reload, driver, rounds):
        orders_group.execute("UPDATE {schema}.orders SET id = NULL WHERE id = 7")
        reload.cut_over(driver, rounds)
    assert [row for row in orders_group.rows() if row[0] is not None] == doubled(records)


def test_a_row_that_was_extra_does_not_hide_one_that_is_gone(orders_group: OrdersGroup) -> None:
    records = [of(n, 0) for n in range(40)]
    settled(orders_group, records)
    orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (100, 1, 0)")
    with diffed(orders_group.reload()) as (reload, driver, rounds):
        orders_group.execute("DELETE FROM {schema}.orders WHERE id = 7")
        reload.cut_over(driver, rounds)
    assert orders_group.rows() == doubled(records)


@pytest.mark.repeats("amount")
@pytest.mark.parametrize("amount", [0, 1])
def test_a_row_inserted_after_the_check_does_not_hide_a_deleted_one(
    orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch, amount: int
) -> None:
    records = [of(n, amount) for n in range(40)]
    settled(orders_group, records)
    reload, driver = started(orders_group.reload())
    add_deleted = merge._add_deleted

    def late(*args: Any) -> None:
        orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (9999, 9, 9)")
        add_deleted(*args)

    with diffed(reload, driver=driver) as (_, _, rounds):
        orders_group.execute("DELETE FROM {schema}.orders WHERE id = 7")
        monkeypatch.setattr(merge, "_add_deleted", late)
        reload.cut_over(driver, rounds)
    assert [row for row in orders_group.rows() if row[0] != 9999] == doubled(records)
