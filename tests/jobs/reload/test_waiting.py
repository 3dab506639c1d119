"""Records that wait for their retries: whatever reads the log again leaves them out until they are applied (I4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from seekpoint import Limits, Retry, Text
from seekpoint.jobs.export import Archive, Export
from support.batch_process import batch
from support.before_cutover import applied_by, diffed, reloaded, settled
from support.log_changes import trim
from support.reload_orders import OrdersGroup, of
from support.waiting import until

LATE = Retry(attempts=5, wait_initial=3600, wait_max=3600, jitter=0)
PLAIN: dict[str, Any] = {"on_poison": "dead_letter", "kind": "append", "key": Text()}
OFTEN = Limits(idle_check=0.1, lag_check=0.1)
COLUMNS = "id, amount, topic_offset"
RECORDS = [of(1, 1), of(2, 13), of(2, 5), of(3, 3)]
ORDERS = pytest.mark.parametrize("order", ["key", "none"])
STRATEGIES = pytest.mark.parametrize("strategy", ["merge", "swap"])


def failing(tx: Any, batch: Any) -> None:
    """Raise for orders of 13."""
    if any(record.value.amount == 13 for record in batch):
        raise TimeoutError("no answer")


def waits_in(order: str) -> dict[str, Any]:
    """Options of the pipeline whose records wait."""
    return PLAIN | {"handle": failing, "retry": LATE, "retry_order": order}


def waiting(orders_group: OrdersGroup) -> list[int]:
    """The offsets of the waiting records."""
    query = "SELECT record_offset FROM {schema}.dead_letter WHERE state = 'waiting' ORDER BY 1"
    return [offset for (offset,) in orders_group.execute(query)]


def retried(orders_group: OrdersGroup, **options: Any) -> None:
    """Make the waiting records due, and let a worker without the handler apply them."""
    orders_group.execute("UPDATE {schema}.dead_letter SET retry_at = clock_timestamp() WHERE state = 'waiting'")
    worker = orders_group.worker(limits=OFTEN, **PLAIN, **options)
    until(lambda: not waiting(orders_group), "retries of all waiting records")
    worker.stop()


@ORDERS
@STRATEGIES
def test_a_reload_leaves_them_out_and_the_new_version_retries_them(
    orders_group: OrdersGroup, strategy: str, order: str
) -> None:
    settled(orders_group, RECORDS, **waits_in(order))
    wait = [1, 2] if order == "key" else [1]
    assert waiting(orders_group) == wait
    reloaded(orders_group.reload(pipeline=PLAIN), strategy=strategy)
    rows = [(1, 2, 0), (2, 26, 1), (2, 10, 2), (3, 6, 3)]
    assert orders_group.rows("entries", COLUMNS) == [row for row in rows if row[2] not in wait]
    assert waiting(orders_group) == wait
    retried(orders_group, version=2)
    assert sorted(orders_group.rows("entries", COLUMNS)) == sorted(rows)


@STRATEGIES
def test_what_is_retried_in_mid_run_is_in_and_what_begins_to_wait_then_is_not(
    orders_group: OrdersGroup, strategy: str
) -> None:
    """One is before the run's first positions, one after them."""
    settled(orders_group, RECORDS, **waits_in("none"))
    with diffed(orders_group.reload(pipeline=PLAIN), strategy=strategy) as (reload, driver, rounds):
        retried(orders_group)
        worker = orders_group.worker(**waits_in("none"))
        applied_by(worker, orders_group, [of(4, 4), of(5, 13)])
        worker.stop()
        reload.cut_over(driver, rounds)
    rows = [(1, 2, 0), (2, 26, 1), (2, 10, 2), (3, 6, 3), (4, 8, 4)]
    assert sorted(orders_group.rows("entries", COLUMNS)) == sorted(rows)
    assert waiting(orders_group) == [5]
    retried(orders_group, version=2)
    assert sorted(orders_group.rows("entries", COLUMNS)) == sorted([*rows, (5, 26, 5)])


@ORDERS
def test_verify_finds_no_difference_in_them(orders_group: OrdersGroup, order: str) -> None:
    settled(orders_group, RECORDS, **waits_in(order))
    assert orders_group.reload(version=1, pipeline=PLAIN).verify().is_empty
    orders_group.execute("INSERT INTO {schema}.entries (id, amount, at, topic_offset) VALUES (2, 13, 0, 1)")
    (table,) = orders_group.reload(version=1, pipeline=PLAIN).verify().tables
    assert (table.different, table.missing, table.extra) == (0, 0, 1)
    orders_group.execute("DELETE FROM {schema}.entries WHERE topic_offset = 1")
    retried(orders_group)
    assert orders_group.reload(version=1, pipeline=PLAIN).verify().is_empty


def test_an_archive_has_them_as_the_log_does_and_a_reload_from_it_leaves_them_out(
    orders_group: OrdersGroup, tmp_path: Path
) -> None:
    """Their retries need neither the log nor the archive."""
    settled(orders_group, RECORDS, **waits_in("key"))
    archive = Archive(tmp_path / "archive", orders_group.engine, schema=orders_group.schema)
    kafka = {"bootstrap.servers": orders_group.brokers}
    assert Export(orders_group.engine, kafka, archive, orders_group.group).run().records == 4
    admin = AdminClient({**kafka, "log_level": 0})
    trim(admin, orders_group.topic, 4)
    reloaded(orders_group.reload(pipeline=PLAIN, archive=archive))
    assert orders_group.rows("entries", COLUMNS) == [(1, 2, 0), (3, 6, 3)]
    retried(orders_group, version=2)
    assert sorted(orders_group.rows("entries", COLUMNS)) == [(1, 2, 0), (2, 10, 2), (2, 26, 1), (3, 6, 3)]


def test_a_batch_over_a_stated_range_leaves_them_out(orders_group: OrdersGroup) -> None:
    settled(orders_group, RECORDS, **waits_in("none"))
    orders_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey")
    job = batch(orders_group, pipeline=PLAIN)
    job.reprocess((orders_group.topic, 0), 0, 4, reason="a test", accept_repeats=True)
    assert orders_group.rows("entries", COLUMNS) == [(n, n, n - 1) for n in (1, 1)] + [(2, 5, 2)] * 2 + [(3, 3, 3)] * 2
    assert waiting(orders_group) == [1]
