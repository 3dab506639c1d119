"""A reset that would count records twice is refused, and names the tables with the sums; others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text

from seekpoint import Accumulate, Append, Pipeline, Text
from seekpoint.admin import Admin, ResetTo
from seekpoint.errors import ConfigError
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.pipeline.declared import declared
from support.ledger_worker import LedgerWorker

NewLedgerWorker = Callable[..., LedgerWorker]
SUMS = Accumulate("daily_sales", key=["day"], add=["cents"])
REFUSED = r"sums in daily_sales would count records twice.*--rebuild MODULE:NAME"


def declares(ledger: GroupLedger, *sinks: Any, **options: Any) -> None:
    """A worker of such a pipeline has stored its declaration."""
    pipeline = Pipeline("g", topics="t", value=Text(), sinks=sinks, **options)
    StatusTables(ledger, WorkerProcess("host", 1, None, "0")).declare(declared(pipeline))


def test_a_backward_reset_is_refused_by_plan_and_by_the_ledger(new_worker: NewLedgerWorker, admin: Admin) -> None:
    """I1: nothing is done, even if the plan was made before the worker's declaration was known."""
    worker = new_worker(positions={0: 10, 1: 10})
    unaware = admin.plan_reset("g", ResetTo.offset(4), {"t": [0]})
    declares(worker.ledger, SUMS, Append("log"))
    plan = admin.plan_reset("g", ResetTo.offset(4), {"t": [0]})
    assert plan.counts_twice == ("daily_sales",)
    assert any(
        "daily_sales would count records twice: refused, unless --rebuild" in consequence
        for consequence in plan.consequences
    )
    for refused in (plan, unaware):
        with pytest.raises(ConfigError, match=REFUSED):
            admin.apply(refused, reason="a test")
    with pytest.raises(ConfigError, match=r"t/0 is not reset from 10 to 9: sums in daily_sales"):
        worker.ledger.reset_offset("t", 0, 9, reason="a test", log=(0, 10))
    assert worker.positions() == {0: 10, 1: 10}
    assert admin.history("g") == []


@pytest.mark.parametrize("sinks", [[Append("log")], []])
def test_of_other_pipelines_records_are_read_again(new_worker: NewLedgerWorker, admin: Admin, sinks: list[Any]) -> None:
    worker = new_worker(positions={0: 10})
    if sinks:
        declares(worker.ledger, *sinks)
    plan = admin.plan_reset("g", ResetTo.offset(4))
    assert plan.counts_twice == ()
    admin.apply(plan, reason="a test")
    assert worker.positions() == {0: 4}


def test_what_was_not_applied_counts_once(new_worker: NewLedgerWorker, admin: Admin) -> None:
    """Forward; back from a forward reset, while nothing was applied since; before the first offset of all."""
    worker = new_worker(positions={0: 10})
    declares(worker.ledger, SUMS)
    admin.apply(admin.plan_reset("g", ResetTo.offset(20)), reason="too far")
    admin.apply(admin.plan_reset("g", ResetTo.offset(10)), reason="undone")
    assert worker.positions() == {0: 10}
    with pytest.raises(ConfigError, match=REFUSED):
        admin.apply(admin.plan_reset("g", ResetTo.offset(9)), reason="a test")
    admin.apply(admin.plan_reset("g", ResetTo.offset(20)), reason="again")
    plan = admin.plan_reset("g", ResetTo.offset(9))
    assert plan.counts_twice == ("daily_sales",)
    worker.claim(0)
    worker.commit({0: 30})
    with pytest.raises(ConfigError, match=REFUSED):
        admin.apply(admin.plan_reset("g", ResetTo.offset(20)), reason="applied since")


def test_a_group_that_began_late_may_read_what_was_before(
    new_worker: NewLedgerWorker, admin: Admin, seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    worker = new_worker(positions={0: 0})
    declares(worker.ledger, SUMS)
    with seekpoint_engine.begin() as tx:
        late = f'UPDATE "{seekpoint_schema}".partition_offset SET first_offset = 50, next_offset = 50'
        tx.execute(text(late))
    plan = admin.plan_reset("g", ResetTo.offset(0))
    assert plan.counts_twice == ()
    admin.apply(plan, reason="it began at the end")
    assert worker.positions() == {0: 0}


def test_a_truncated_log_has_other_records_at_these_offsets(new_worker: NewLedgerWorker) -> None:
    """From its end on nothing of what is read was applied; from before it, some was."""
    worker = new_worker(positions={0: 10})
    declares(worker.ledger, SUMS)
    with pytest.raises(ConfigError, match=REFUSED):
        worker.ledger.reset_offset("t", 0, 5, reason="a test", log=(0, 7))
    worker.ledger.reset_offset("t", 0, 7, reason="a test", log=(0, 7), expected=10)
    assert worker.positions() == {0: 7}


def test_a_log_end_that_is_older_than_the_position_is_no_truncation(new_worker: NewLedgerWorker, admin: Admin) -> None:
    """I1: a worker has committed since the brokers were asked; no lost range is stored either."""
    worker = new_worker(positions={0: 100})
    declares(worker.ledger, SUMS)
    worker.claim(0)
    worker.commit({0: 110})
    with pytest.raises(ConfigError, match=r"pass expected=110, and a log= that the brokers reported"):
        worker.ledger.reset_offset("t", 0, 100, reason="to the end", log=(0, 100))
    assert worker.positions() == {0: 110}
    assert admin.lost(["g"]) == []


def test_a_group_that_is_forgotten_says_what_its_next_beginning_does(new_worker: NewLedgerWorker, admin: Admin) -> None:
    worker = new_worker(positions={0: 10})
    declares(worker.ledger, SUMS)
    worker.ledger.pause(reason="it has ended")
    plan = admin.plan_forget("g", export_to=None)
    assert any("adds its records again to the sums in daily_sales" in consequence for consequence in plan.consequences)


def test_a_reset_before_a_group_began_again_was_of_another_position(new_worker: NewLedgerWorker, admin: Admin) -> None:
    """I1: what it had skipped was applied since."""
    worker = new_worker(positions={0: 10})
    declares(worker.ledger, SUMS)
    admin.apply(admin.plan_reset("g", ResetTo.offset(20)), reason="skip")
    worker.ledger.pause(reason="it has ended")
    admin.apply(admin.plan_forget("g", export_to=None), reason="a test", actor="bob")
    (forgotten,) = admin.forgotten()
    old = worker.ledger
    ledger = GroupLedger(
        old.engine, "g", schema=old.schema, tables=["applied"], accept_forgotten=forgotten.forgotten_at
    )
    again = LedgerWorker(ledger, topic_id=worker.topic_id)
    again.claim(0, start={0: 0})
    declares(ledger, SUMS)
    again.commit({0: 20})
    with pytest.raises(ConfigError, match=REFUSED):
        admin.apply(admin.plan_reset("g", ResetTo.offset(10)), reason="a test")


def test_a_process_of_the_same_version_does_not_remove_sums(new_worker: NewLedgerWorker, admin: Admin) -> None:
    """I1: in a rolling deploy an older process, whose handler writes the table, may claim last."""
    worker = new_worker(positions={0: 10})
    declares(worker.ledger, SUMS)
    declares(worker.ledger, handle=lambda tx, batch: None, writes=["daily_sales"])
    with pytest.raises(ConfigError, match=REFUSED):
        admin.apply(admin.plan_reset("g", ResetTo.offset(4)), reason="a test")
    declares(worker.ledger, SUMS, Append("log"))  # what does not concern sums is the last worker's
    (line,) = [line for line in admin.plan_reset("g", ResetTo.offset(4)).consequences if line.startswith("log ")]
    assert "two rows of each record" in line


def test_sums_of_a_table_that_the_topic_no_longer_goes_to_are_removed(
    new_worker: NewLedgerWorker, admin: Admin
) -> None:
    worker = new_worker(positions={0: 10})
    declares(worker.ledger, SUMS)
    declares(worker.ledger, Append("log"))
    assert admin.plan_reset("g", ResetTo.offset(4)).counts_twice == ()
