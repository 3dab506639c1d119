"""A group is forgotten under its workers: they end, and none starts before that is undone or accepted."""

from __future__ import annotations

import pytest

from seekpoint import Limits, StartAt, events
from seekpoint.admin import Admin
from seekpoint.errors import GroupForgotten
from support.kafka_postgres import Scene

OFTEN = Limits(idle_check=0.1, lag_check=0.1)


def test_workers_end_and_none_starts_until_it_is_undone_or_accepted(scene: Scene) -> None:
    """I2, I4: each record is applied once: the undo continues at the stored offset, an accepted start at StartAt."""
    name, stored = scene.log(5, 2)
    admin = Admin(scene.engine, schema=scene.schema)
    run = scene.worker(name, limits=OFTEN)
    run.reached(name, 5, 0)
    run.reached(name, 5, 1)
    admin.apply(admin.plan_pause(scene.group), reason="it ends")
    run.seen.wait_for(events.Paused)
    admin.apply(admin.plan_forget(scene.group, export_to=None), reason="it has ended", actor="ada")
    run.seen.wait_for(events.WorkerStopped, lambda stopped: isinstance(stopped.error, GroupForgotten))
    with pytest.raises(GroupForgotten):
        run.stop()
    stored += scene.produce(name, ["later"])
    with pytest.raises(GroupForgotten, match="forgotten by ada") as caught:
        scene.worker(name, limits=OFTEN)
    assert scene.positions() == {}

    admin.apply(admin.plan_undo_forget(scene.group), reason="a mistake")
    admin.apply(admin.plan_resume(scene.group), reason="go on")
    run = scene.worker(name, limits=OFTEN)
    scene.finish(run, name, stored)
    scene.book.assert_holds(name, stored)

    admin.apply(admin.plan_pause(scene.group), reason="it ends")
    admin.apply(admin.plan_forget(scene.group, export_to=None), reason="it has ended")
    (forgotten,) = admin.forgotten()
    assert forgotten.partitions == 2
    latest = scene.pipeline(name, start=StartAt.latest())
    with pytest.raises(GroupForgotten):
        scene.worker(latest, limits=OFTEN, accept_forgotten=caught.value.at)
    run = scene.worker(latest, limits=OFTEN, accept_forgotten=forgotten.at)
    run.placed(2)
    stored += scene.produce(name, ["last"])
    scene.finish(run, name, stored)
    scene.book.assert_holds(name, stored)
