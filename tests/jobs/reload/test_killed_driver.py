"""A driver that dies by SIGKILL, in any state: another one takes the run and brings it to its end."""

from __future__ import annotations

import pytest

from support.before_cutover import applied_by, working
from support.reload_orders import OrdersGroup, doubled, gone, of
from support.reload_process import Reloader

FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3)]
LATER = [of(n % 50, n, n) for n in range(200, 230)]
PLACES = [
    "opened",
    "turn staging",
    "staging",
    "turn staged",
    "staged",
    "turn indexed",
    "indexed",
    "catching_up",
    "compared",
    "turn cut_over",
]


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", PLACES)
def test_another_driver_resumes(orders_group: OrdersGroup, step: str) -> None:
    old = working(orders_group, FIRST)
    reload = orders_group.reload()
    run = reload.open().run.id
    Reloader(orders_group, run, step=step, width=50).kill_where_it_waits()
    assert orders_group.rows() == doubled(FIRST, by=1), "nothing was published"
    applied_by(old, orders_group, LATER)
    old.stop()
    reload.run(reload.take_over(run))
    assert orders_group.rows() == doubled(FIRST + LATER)
    assert orders_group.schemas() == []


def test_a_dead_drivers_run_can_be_aborted(orders_group: OrdersGroup) -> None:
    worker = working(orders_group, FIRST)
    reload = orders_group.reload()
    run = reload.open().run.id
    Reloader(orders_group, run, step="turn cut_over", width=50).kill_where_it_waits()
    assert reload.runs.abort(run, "its driver is dead").swept
    applied_by(worker, orders_group, LATER)
    worker.stop()
    assert orders_group.rows() == doubled(FIRST + LATER, by=1)
