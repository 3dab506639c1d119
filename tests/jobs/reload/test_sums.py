"""Tables of sums: rebuilt, compared, and published while workers add to them; each record counts once."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from seekpoint import Accumulate, Json, Pipeline
from seekpoint.admin import Admin
from seekpoint.errors import ReloadRefused
from seekpoint.jobs.reload import LocalStager, Reload
from seekpoint.jobs.staging.consolidate import stage_missing
from seekpoint.jobs.staging.stage import begin_staging
from support.before_cutover import diffed, reloaded
from support.events import Run
from support.order_sums import MODULE, assert_sums, totals
from support.reload_orders import Order, OrderKey, OrdersGroup, gone, of

FIRST = [of(n % 40, n, n + 1) for n in range(200)] + [gone(3)]
LATER = [of(n, 7, n) for n in range(100, 130)] + [gone(101)]


def summing(orders_group: OrdersGroup, records: list[Any], **options: Any) -> Run:
    """A worker that has added these records, and continues."""
    pipeline = totals(orders_group, **options)
    end = orders_group.put(records)
    worker = orders_group.run_worker(pipeline)
    worker.reached(orders_group.topic, end)
    return worker


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_sums_are_rebuilt_by_other_code_and_workers_continue(orders_group: OrdersGroup, strategy: str) -> None:
    """I1, I5: records that come before and after the comparison count once."""
    summing(orders_group, FIRST).stop()
    between: list[Any] = []
    with diffed(orders_group.reload([totals(orders_group, version=2)], range_records=90), strategy=strategy) as (
        reload,
        driver,
        passes,
    ):
        if strategy == "merge":
            orders_group.apply(totals(orders_group), orders_group.put(LATER))
            between = LATER
        reload.cut_over(driver, passes)
    assert_sums(orders_group, [*FIRST, *between], by=2)
    after = [of(1, 5, 999)]
    orders_group.apply(totals(orders_group, version=2), orders_group.put(after))
    assert_sums(orders_group, [*FIRST, *between, *after], by=2)


@pytest.mark.long
def test_processes_aggregate_their_ranges(
    orders_group: OrdersGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summing(orders_group, FIRST).stop()
    orders_group.put(LATER, partition=1)
    orders_group.run_worker(totals(orders_group)).finish(orders_group.topic, len(LATER), 1)
    names = {"group": orders_group.group, "topic": orders_group.topic, "schema": orders_group.schema, "version": 2}
    module = f"sums_{secrets.token_hex(4)}"
    (tmp_path / f"{module}.py").write_text(MODULE.format(**names))
    monkeypatch.syspath_prepend(str(tmp_path))
    reload = orders_group.reload([f"{module}:orders"], processes=2, range_records=30)
    reload.run(reload.open())
    assert_sums(orders_group, [*FIRST, *LATER], by=2)


@pytest.mark.long
def test_ranges_are_aggregated_where_they_are_staged(orders_group: OrdersGroup) -> None:
    """One row for each key and range, and not one for each record."""
    summing(orders_group, FIRST).stop()
    reload = orders_group.reload([totals(orders_group, version=2)], range_records=50)
    driver = reload.open()
    begin_staging(driver, reload.sources)
    stager = LocalStager(orders_group.engine, orders_group.schema, reload.kafka, reload.sources)
    stage_missing(driver, stager, 50, lambda *_: None)
    (schema,) = orders_group.schemas()
    names = orders_group.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(:s) AND relname LIKE 'r0%0'", s=schema
    )
    counts = [
        orders_group.execute(f'SELECT count(*), sum("seekpoint rows") FROM "{schema}"."{name}"')[0] for (name,) in names
    ]
    assert sorted(int(rows) for _, rows in counts) == [1, 50, 50, 50, 50]
    assert {groups for groups, rows in counts if rows == 50} == {5}
    reload.run(driver)
    assert_sums(orders_group, FIRST, by=2)


def test_verify_finds_a_sum_that_is_wrong_and_passes_the_last_digits_of_floats(orders_group: OrdersGroup) -> None:
    worker = summing(orders_group, FIRST)
    verify = orders_group.reload([totals(orders_group)]).verify
    assert verify().is_empty, "while a worker is there"
    orders_group.execute("UPDATE {schema}.totals SET weight = weight * (1 + 1e-12), note = 'not ours' WHERE bucket = 1")
    assert verify().is_empty
    orders_group.execute("UPDATE {schema}.totals SET weight = weight * (1 + 1e-6) WHERE bucket = 1")
    orders_group.execute("UPDATE {schema}.totals SET amount = amount + 1 WHERE bucket = 2")
    orders_group.execute("UPDATE {schema}.totals SET last_at = NULL WHERE bucket = 3")
    orders_group.execute("DELETE FROM {schema}.totals WHERE bucket = 4")
    (table,) = verify().tables
    assert (table.equal, table.missing, table.extra, table.different) == (1, 1, 0, 3)
    worker.stop()
    reloaded(orders_group.reload([totals(orders_group)]))
    assert verify().is_empty
    assert_sums(orders_group, FIRST)


@pytest.mark.long
def test_dead_letters_are_left_out_and_counted_when_they_are_replayed(orders_group: OrdersGroup) -> None:
    """I4: before the run, between its comparison and its cut-over, and after it."""
    orders_group.execute("CREATE TABLE {schema}.totals (bucket int PRIMARY KEY, amount bigint CHECK (amount < 1000))")

    def pipeline(version: int = 1) -> Pipeline:
        path = (orders_group.schema, "totals")
        sink = Accumulate(path, key=["bucket"], add=["amount"], row=lambda r: (r.value.id % 5, r.value.amount))
        its: dict[str, Any] = {"value": Json(Order), "key": Json(OrderKey), "on_poison": "dead_letter"}
        return Pipeline(orders_group.group, topics=orders_group.topic, sinks=[sink], version=version, **its)

    records = [of(1, 900), of(2, 5), of(1, 200), of(1, 300), of(1, 50)]  # 200 and 300 exceed the limit
    for end in range(1, 6):
        orders_group.apply(pipeline(), orders_group.put([records[end - 1]]))
    assert orders_group.rows("totals", "bucket, amount, 0") == [(1, 950, 0), (2, 5, 0)]
    assert orders_group.reload([pipeline()]).verify().is_empty
    replay = Admin(orders_group.engine, schema=orders_group.schema).dead_letters(pipeline())
    first, second = replay.list()
    orders_group.execute("ALTER TABLE {schema}.totals DROP CONSTRAINT totals_amount_check")
    with diffed(orders_group.reload([pipeline(2)])) as (reload, driver, passes):
        assert (
            Admin(orders_group.engine, schema=orders_group.schema).dead_letters(pipeline()).replay(second.id).is_applied
        )
        reload.cut_over(driver, passes)
    assert orders_group.rows("totals", "bucket, amount, 0") == [(1, 1250, 0), (2, 5, 0)]
    assert Admin(orders_group.engine, schema=orders_group.schema).dead_letters(pipeline(2)).replay(first.id).is_applied
    assert orders_group.rows("totals", "bucket, amount, 0") == [(1, 1450, 0), (2, 5, 0)]
    assert orders_group.reload([pipeline(2)]).verify().is_empty


def test_a_record_whose_key_refers_to_no_row_becomes_a_dead_letter(orders_group: OrdersGroup) -> None:
    """Rows keep their places then: each is traced to its record, and the sums are without it."""
    orders_group.execute("CREATE TABLE {schema}.places (bucket int PRIMARY KEY)")
    orders_group.execute("INSERT INTO {schema}.places VALUES (0), (1), (2), (3), (4)")
    summing(orders_group, FIRST).stop()
    orders_group.execute("ALTER TABLE {schema}.totals ADD FOREIGN KEY (bucket) REFERENCES {schema}.places")
    orders_group.execute("DELETE FROM {schema}.totals WHERE bucket = 4")
    orders_group.execute("DELETE FROM {schema}.places WHERE bucket = 4")
    reload = orders_group.reload([totals(orders_group, version=2, on_poison="dead_letter")], range_records=70)
    reloaded(reload)
    lost = [record for record in FIRST if int(record[0].split(":")[1].rstrip("}")) % 5 == 4]
    assert_sums(orders_group, [record for record in FIRST if record not in lost], by=2)
    assert orders_group.execute("SELECT count(*) FROM {schema}.dead_letter") == [(len(lost),)]


def test_a_sum_that_its_column_cannot_hold_ends_the_run_with_the_reason(orders_group: OrdersGroup) -> None:
    summing(orders_group, FIRST).stop()
    orders_group.execute("ALTER TABLE {schema}.totals DROP COLUMN mean, ALTER amount TYPE smallint")
    many = [of(1, 30_000, 1), of(1, 30_000, 1)]
    orders_group.put(many)
    orders_group.execute("UPDATE {schema}.partition_offset SET next_offset = next_offset + 2 WHERE partition = 0")
    with pytest.raises(ReloadRefused, match=r"the database refuses the rebuilt rows: .*smallint out of range"):
        reloaded(orders_group.reload([totals(orders_group)]))


def test_sinks_that_add_other_columns_to_one_table_are_refused(orders_group: OrdersGroup) -> None:
    pipeline = totals(orders_group)
    other = Accumulate((orders_group.schema, "totals"), key=["bucket"], add=["orders"], row=lambda r: (r.value.id, 1))
    both = Pipeline(orders_group.group, topics=orders_group.topic, value=Json(Order), sinks=[*pipeline.sinks, other])
    with pytest.raises(Exception, match="sinks of different kinds, keys, orders or sums"):
        Reload(
            [both], orders_group.engine, {"bootstrap.servers": orders_group.brokers}, schema=orders_group.schema
        ).open()
