"""A worker runs under load while the ledger is migrated: nothing is lost or written twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Engine, text

from seekpoint import Partition, schema
from seekpoint.ledger import GroupLedger
from support.events import Run
from support.recorded_rows import RecordTable, Stream, ends
from support.waiting import until
from support.worker_group import QUICK

PARTITIONS, GROUP = 2, "orders"


@pytest.mark.long
def test_a_worker_continues_over_a_revision_that_adds_and_loses_nothing(
    engine: Engine,
    second_script: str,
    seekpoint_broker: str,
    topic: Callable[..., str],
    run_worker: Callable[..., Run],
) -> None:
    """One that starts afterwards, of the release before, is accepted: the revision is marked as compatible."""
    schema.upgrade(engine)
    record_table, name = RecordTable(engine, "public").create(), topic(PARTITIONS)

    def start() -> Run:
        return run_worker(record_table.pipeline(GROUP, name), engine=engine, schema="seekpoint", kafka=QUICK)

    def applies_more(run: Run, than: int) -> bool:
        assert run.health().live, "the worker has ended"
        return len(record_table.written(name)) > than + 100

    with Stream(seekpoint_broker, name, PARTITIONS, rate=200) as stream:
        run = start()
        for migrate, revision in ((schema.upgrade, second_script), (schema.downgrade, "0001")) * 2:
            until(
                partial(applies_more, run, len(record_table.written(name))),
                f"the worker applies the load before {revision}",
            )
            migrate(engine, to=revision)
        schema.upgrade(engine, to=second_script)
        until(partial(applies_more, run, len(record_table.written(name))), "it continues after the upgrade")
        run.stop()
        run = start()
        until(partial(applies_more, run, len(record_table.written(name))), "the next one continues")
    positions = {Partition(name, number): end for number, end in ends(stream.stored).items()}
    ledger = GroupLedger(engine, GROUP)
    until(lambda: {row.partition: row.next_offset for row in ledger.read()} == positions, "it catches up")
    run.stop()
    record_table.assert_holds(name, stream.stored)
    with engine.connect() as connection:
        assert schema.current(connection) == second_script
        assert connection.execute(text("SELECT count(*) FROM seekpoint.dead_letter")).scalar_one() == 0
