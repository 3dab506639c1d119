"""What the samples of a month take, and how long the views need for a thousand partitions of 200 groups."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from sqlalchemy import Engine, text

from seekpoint import Ledger
from seekpoint.admin import Admin
from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.records import Partition
from status_views import MONTH, fill

PARTITIONS, GROUPS = 1_000, 200


def seconds(read: Callable[[], object]) -> float:
    """The least of five: others work on this machine, too."""
    taken = []
    for _ in range(5):
        began = perf_counter()
        read()
        taken.append(perf_counter() - began)
    return min(taken)


def test_a_month_of_samples_of_a_thousand_partitions(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    quoted = f'"{seekpoint_schema}"'
    with seekpoint_engine.begin() as tx:
        fill(tx, seekpoint_schema, groups=GROUPS, partitions=PARTITIONS)
    with seekpoint_engine.connect() as tx:
        size = tx.execute(
            text(f"SELECT count(*), pg_total_relation_size('{quoted}.position_sample') FROM {quoted}.position_sample")
        ).one()
        of_all = text(f"SELECT * FROM {quoted}.group_status")
        groups = tx.execute(of_all).all()
        whole = seconds(lambda: tx.execute(of_all).all())
    admin = Admin(seekpoint_engine, schema=seekpoint_schema)
    found, doubts = admin.status()
    status = seconds(admin.status)
    print(f"{size[0]:,} rows, {size[1]:,} bytes, {size[1] / PARTITIONS:,.0f} a partition")
    print(f"group_status {whole:.3f} s, status {status:.3f} s")
    assert size[0] == PARTITIONS * MONTH
    assert size[1] / PARTITIONS < 400_000, "bytes of a partition"
    assert len(groups) == GROUPS
    assert all(group.lag_records == 10 * group.partitions for group in groups)
    assert (len(found), sum(len(group.partitions) for group in found), doubts) == (GROUPS, PARTITIONS, [])
    assert status < 1
    assert whole < 1
    one = StatusTables(Ledger(seekpoint_engine, "g0", schema=seekpoint_schema), WorkerProcess("h", 1, None, "1"))
    one.prune([Partition("orders", 0)])
