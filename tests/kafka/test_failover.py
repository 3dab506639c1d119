"""A failover puts rows, positions and claims back to an earlier moment: the worker finds its way by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import text

from seekpoint import Partition, events
from seekpoint.ledger import Expected, GroupLedger
from seekpoint.worker import apply
from support.manual_worker import ManualWorker, actions
from support.worker_group import WorkerGroup

pytestmark = pytest.mark.usefixtures("short_backoff")


def image(worker_group: WorkerGroup) -> dict[str, list[Any]]:
    """What a standby has at this moment."""
    with worker_group.engine.connect() as tx:
        tables = ("partition_offset", "book")
        return {
            table: list(tx.execute(text(f"SELECT * FROM {worker_group.schema}.{table}")).mappings()) for table in tables
        }


def fail_over(worker_group: WorkerGroup, then: dict[str, list[Any]]) -> None:
    """The standby has become the primary: rows, positions and claims are those of an earlier moment, all at once."""
    with worker_group.engine.begin() as tx:
        # On another machine no lock is in the way; here the batch in flight is waited for.
        tx.execute(text(f"LOCK TABLE {worker_group.schema}.partition_offset, {worker_group.schema}.book"))
        for table, rows in then.items():
            tx.execute(text(f"DELETE FROM {worker_group.schema}.{table}"))
            for row in rows:
                columns = [c for c in row if c != "n"]
                names = ", ".join(f'"{c}"' for c in columns)
                values = ", ".join(f":{c}" for c in columns)
                query = f"INSERT INTO {worker_group.schema}.{table} ({names}) VALUES ({values})"
                tx.execute(text(query), {c: row[c] for c in columns})


@pytest.mark.parametrize("quiet", [True, False], ids=["idle", "running"])
@pytest.mark.parametrize("lost", ["tail", "claim"])
def test_a_failover_that_loses_the_tail_or_the_claim(worker_group: WorkerGroup, lost: str, quiet: bool) -> None:
    """I1, I2, I3: an older position, and a claim of this worker or of one that has ended: it notices and replays.

    No rebalance comes: the worker claims by itself.
    """
    name = worker_group.topic()
    run = worker_group.worker(name)
    run.placed()
    stored = worker_group.produce(name, 4)
    run.reached(name, 4)
    then = image(worker_group)
    if lost == "claim":
        run.stop()
        run = worker_group.worker(name)
        run.placed()
    stored += worker_group.produce(name, 6)
    run.reached(name, 10)
    mark = run.seen.mark()
    fail_over(worker_group, then)
    if not quiet:
        stored += worker_group.produce(name, 1)
    if lost == "claim":
        run.seen.wait_for(events.ClaimLost, since=mark)
        assert run.seen.wait_for(events.Activated, since=mark).offset == 4
    resynced = run.seen.wait_for(events.Resynced, since=mark)
    assert (resynced.expected, resynced.found, resynced.cause) == (10, 4, "rolled back")
    worker_group.wait_for_position(name, len(stored))
    run.stop()
    worker_group.record_table.assert_holds(name, stored)
    assert run.seen.all(events.Revoked, mark)[:-1] == []  # none but the one of leaving
    assert run.seen.all(events.Assigned, mark) == []
    assert run.seen.all(events.KafkaTrouble, mark) == []
    assert [(a.action, a.from_offset, a.to_offset) for a in actions(worker_group)] == [("rolled back", 10, 4)]


def test_a_failover_while_a_partition_is_revoked_ends_its_part_of_the_batch(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2, I3: the batch has no record of it, and holds it as it moved lately: it is left out, and then released."""
    held: list[set[int]] = []
    hold = GroupLedger.hold

    def counted(self: GroupLedger, tx: Any, expected: Sequence[Expected]) -> str:
        held.append({e.claim.partition.number for e in expected})
        assert len(held) < 9, "refused again and again"
        return hold(self, tx, expected)

    monkeypatch.setattr(GroupLedger, "hold", counted)
    monkeypatch.setattr(apply, "MOST_RECORDS_IN_ONE_INSERT", 0)  # a small batch holds only its own partitions
    name = worker_group.topic(2)
    revoked = Partition(name, 0)
    stored = worker_group.produce(name, 2)
    with ManualWorker(worker_group, name) as manual_worker:
        manual_worker.commit(manual_worker.batch(2))
        then = image(worker_group)
        stored += worker_group.produce(name, 1)
        manual_worker.commit(manual_worker.batch(1))
        others = worker_group.produce(name, 2, partition=1)
        batch = manual_worker.batch(2)
        manual_worker.held.partitions.on_revoked([revoked], False)
        fail_over(worker_group, then)
        manual_worker.commit(batch)
        assert held == [{0}, {0}, {0, 1}, {1}]
        assert [e.found for e in manual_worker.seen.all(events.Resynced)] == [2]
        manual_worker.held.maintain()
        assert manual_worker.seen.all(events.Released)[-1].partitions == (revoked,)
    assert worker_group.positions() == {revoked: 2, Partition(name, 1): 2}
    worker_group.record_table.assert_holds(name, [*stored[:2], *others])
    assert [(a.action, a.from_offset, a.to_offset) for a in actions(worker_group)] == [("rolled back", 3, 2)]
