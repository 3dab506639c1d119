"""What the samples of a month take, and how much of them the views read for a thousand partitions of 200 groups."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import pytest
from sqlalchemy import Engine, text

from seekpoint.admin import Admin
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.sql import STATUS
from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.records import Partition
from status_views import MONTH, fill
from support.plans import plan_of, rows_read, scans

PARTITIONS, GROUPS = 1_000, 200
SAMPLES = 200  # of each partition, where the views' reads are counted: they do not grow with the samples


def seconds(read: Callable[[], object]) -> float:
    """The least of five: others work on this machine, too."""
    taken = []
    for _ in range(5):
        began = perf_counter()
        read()
        taken.append(perf_counter() - began)
    return min(taken)


@pytest.mark.long
def test_a_month_of_samples_of_a_partition(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    """A hundred partitions: a partition's share of the table and its index is that of a thousand."""
    table, partitions = f'"{seekpoint_schema}".position_sample', 100
    with seekpoint_engine.begin() as tx:
        fill(tx, seekpoint_schema, groups=20, partitions=partitions)
        rows, size = tx.execute(text(f"SELECT count(*), pg_total_relation_size('{table}') FROM {table}")).one()
    print(f"{rows:,} rows, {size:,} bytes, {size / partitions:,.0f} a partition")
    assert rows == partitions * MONTH
    assert size / partitions < 400_000, "bytes of a partition"
    samples = StatusTables(
        GroupLedger(seekpoint_engine, "g0", schema=seekpoint_schema), WorkerProcess("h", 1, None, "1")
    )
    samples.prune([Partition("orders", 0)])


@pytest.mark.long
def test_the_views_read_five_samples_of_each_of_a_thousand_partitions(
    seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    with seekpoint_engine.begin() as tx:
        fill(tx, seekpoint_schema, groups=GROUPS, partitions=PARTITIONS, month=SAMPLES)
    with seekpoint_engine.connect() as tx:
        of_all = text(f'SELECT * FROM "{seekpoint_schema}".group_status')
        groups = tx.execute(of_all).all()
        whole = seconds(lambda: tx.execute(of_all).all())
        for statement in (STATUS["lag_of_all"], STATUS["group_status"]):
            plan = plan_of(tx, seekpoint_schema, statement, {})
            assert {node.get("Index Name") for node in scans(plan, "position_sample")} == {"position_sample_pkey"}
            assert rows_read(plan, "position_sample") <= 5 * PARTITIONS, plan
    admin = Admin(seekpoint_engine, schema=seekpoint_schema)
    lines, doubts = admin.status()
    status = seconds(admin.status)
    print(f"group_status {whole:.3f} s, status {status:.3f} s")
    assert len(groups) == GROUPS
    assert all(group.lag_records == 10 * group.partitions for group in groups)
    assert (len(lines), sum(len(group.partitions) for group in lines), doubts) == (GROUPS, PARTITIONS, [])
    assert status < 1
    assert whole < 1
