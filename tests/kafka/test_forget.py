"""A group is forgotten under its workers: they end, and none starts before that is undone or accepted."""

from __future__ import annotations

import pytest

from seekpoint import Limits, StartAt, events
from seekpoint.admin import Admin
from seekpoint.errors import GroupForgotten
from support.worker_group import WorkerGroup

OFTEN = Limits(idle_check=0.1, lag_check=0.1)


def test_workers_end_and_none_starts_until_it_is_undone_or_accepted(worker_group: WorkerGroup) -> None:
    """I2, I4: each record is applied once: the undo continues at the stored offset, an accepted start at StartAt."""
    name, stored = worker_group.log(5, 2)
    admin = Admin(worker_group.engine, schema=worker_group.schema)
    run = worker_group.worker(name, limits=OFTEN)
    run.reached(name, 5, 0)
    run.reached(name, 5, 1)
    admin.apply(admin.plan_pause(worker_group.group), reason="it ends")
    run.seen.wait_for(events.Paused)
    admin.apply(admin.plan_forget(worker_group.group, export_to=None), reason="it has ended", actor="ada")
    run.ends_with(GroupForgotten)
    stored += worker_group.produce(name, ["later"])
    with pytest.raises(GroupForgotten, match="forgotten by ada") as caught:
        worker_group.worker(name, limits=OFTEN)
    assert worker_group.positions() == {}

    admin.apply(admin.plan_undo_forget(worker_group.group), reason="a mistake")
    admin.apply(admin.plan_resume(worker_group.group), reason="go on")
    run = worker_group.worker(name, limits=OFTEN)
    worker_group.finish(run, name, stored)
    worker_group.record_table.assert_holds(name, stored)

    admin.apply(admin.plan_pause(worker_group.group), reason="it ends")
    admin.apply(admin.plan_forget(worker_group.group, export_to=None), reason="it has ended")
    (forgotten,) = admin.forgotten()
    assert forgotten.partitions == 2
    latest = worker_group.pipeline(name, start=StartAt.latest())
    with pytest.raises(GroupForgotten):
        worker_group.worker(latest, limits=OFTEN, accept_forgotten=caught.value.forgotten_at)
    run = worker_group.worker(latest, limits=OFTEN, accept_forgotten=forgotten.forgotten_at)
    run.placed(2)
    stored += worker_group.produce(name, ["last"])
    worker_group.finish(run, name, stored)
    worker_group.record_table.assert_holds(name, stored)
