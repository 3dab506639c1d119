"""What the samples of a month take, and how much of them the views read for a thousand partitions of 200 groups."""

from __future__ import annotations

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
        groups = tx.execute(text(f'SELECT * FROM "{seekpoint_schema}".group_status')).all()
        for statement in (STATUS["lag_of_all"], STATUS["group_status"]):
            plan = plan_of(tx, seekpoint_schema, statement, {})
            assert {node.get("Index Name") for node in scans(plan, "position_sample")} == {"position_sample_pkey"}
            assert rows_read(plan, "position_sample") <= 5 * PARTITIONS, plan
    lines, doubts = Admin(seekpoint_engine, schema=seekpoint_schema).status()
    assert len(groups) == GROUPS
    assert all(group.lag_records == 10 * group.partitions for group in groups)
    assert (len(lines), sum(len(group.partitions) for group in lines), doubts) == (GROUPS, PARTITIONS, [])


DEAD_LETTERS = """
    INSERT INTO "{schema}".dead_letter
      (consumer_group, topic, topic_id, partition, record_offset, header_names, header_values, state, cause, error,
       attempts, version)
    SELECT 'g' || n % 20, 'orders', gen_random_uuid(), n % 20, n, '{{}}', '{{}}', 'dead_lettered', 'handler', 'E', 1, 1
    FROM generate_series(0, 9999) n"""


def test_the_status_of_a_group_reads_only_its_own_dead_letters(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    with seekpoint_engine.begin() as tx:
        fill(tx, seekpoint_schema, groups=20, partitions=200, month=3)
        tx.execute(text(DEAD_LETTERS.format(schema=seekpoint_schema)))
        tx.execute(text(f'ANALYZE "{seekpoint_schema}".dead_letter'))
        plan = plan_of(tx, seekpoint_schema, STATUS["lag"], {"names": ["g0", "g2"]})
    assert rows_read(plan, "dead_letter") == 2 * 500, plan
    groups, _ = Admin(seekpoint_engine, schema=seekpoint_schema).status(["g0", "g2"])
    dead_letters = [sum(partition.dead_letters for partition in group.partitions) for group in groups]
    assert dead_letters == [500, 500]
