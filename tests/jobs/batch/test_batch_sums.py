"""Batches of sums: what is new is added once; a range that was applied is never added again."""

from __future__ import annotations

from typing import Any

import pytest

from seekpoint.admin import Admin, ResetTo
from seekpoint.errors import BatchRefused, ConfigError
from seekpoint.jobs.batch import BatchDone
from support.batch_process import batch
from support.order_sums import assert_sums, totals
from support.reload_orders import OrdersGroup, gone, of

FIRST = [of(n % 40, n, n + 1) for n in range(200)] + [gone(3)]
LATER = [of(n, 7, n) for n in range(100, 130)]


def added(orders_group: OrdersGroup, **options: Any) -> BatchDone:
    return batch(orders_group, totals(orders_group), range_records=40, **options).run()


def test_batches_and_workers_add_each_record_once(orders_group: OrdersGroup) -> None:
    """I1: sums and positions, in one step."""
    orders_group.put(FIRST)
    orders_group.put(LATER, partition=1)
    done = added(orders_group)
    assert done.rows == {f"{orders_group.schema}.totals": len(FIRST) + len(LATER)}
    assert_sums(orders_group, [*FIRST, *LATER])
    assert added(orders_group).is_empty
    worker = orders_group.run_worker(totals(orders_group))
    worker.finish(orders_group.topic, orders_group.put([of(1, 2, 3)]))
    assert_sums(orders_group, [*FIRST, *LATER, of(1, 2, 3)])
    orders_group.put([gone(1), of(2, 1)])
    added(orders_group)
    assert_sums(orders_group, [*FIRST, *LATER, of(1, 2, 3), gone(1), of(2, 1)])


def test_a_batch_without_a_row_for_the_sums_passes_its_records(orders_group: OrdersGroup) -> None:
    pipeline = totals(orders_group)
    pipeline.sinks[0].row_of = lambda _: None  # type: ignore[attr-defined]
    orders_group.put([of(1)])
    assert batch(orders_group, pipeline).run().records == 1
    assert orders_group.rows("totals", "bucket, orders, amount") == []


def test_a_range_is_not_added_again(orders_group: OrdersGroup) -> None:
    """Also where repeats are accepted; and a group that only batches have read knows what a reset would do."""
    orders_group.put(FIRST)
    added(orders_group)
    for accepted in (False, True):
        job = batch(orders_group, totals(orders_group))
        with pytest.raises(BatchRefused, match=r"totals \(Accumulate\) would count these records twice"):
            job.reprocess((orders_group.topic, 0), 0, 10, reason="a test", accept_repeats=accepted)
    admin = Admin(orders_group.engine, {"bootstrap.servers": orders_group.brokers}, schema=orders_group.schema)
    plan = admin.plan_reset(orders_group.group, ResetTo.earliest())
    assert plan.counts_twice == (f"{orders_group.schema}.totals",)
    with pytest.raises(ConfigError, match="would count records twice"):
        admin.apply(plan, reason="a test")
    assert_sums(orders_group, FIRST)


def test_a_sum_that_its_column_cannot_hold_writes_nothing(orders_group: OrdersGroup) -> None:
    pipeline = totals(orders_group)
    orders_group.execute("ALTER TABLE {schema}.totals DROP COLUMN mean, ALTER amount TYPE smallint")
    orders_group.put([of(1, 30_000, 1), of(1, 30_000, 1)])
    with pytest.raises(Exception, match="smallint out of range"):
        batch(orders_group, pipeline).run()
    assert orders_group.rows("totals", "bucket, orders, amount") == []
