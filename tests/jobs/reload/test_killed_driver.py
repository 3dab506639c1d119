"""A driver that dies by SIGKILL, in any state: another one takes the run and brings it to its end."""

from __future__ import annotations

import pytest

from support.before_cutover import applied_by, working
from support.reload_orders import Shop, doubled, gone, of
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


@pytest.mark.repeats("at")
@pytest.mark.parametrize("at", PLACES)
def test_another_driver_resumes(shop: Shop, at: str) -> None:
    old = working(shop, FIRST)
    reload = shop.reload()
    run = reload.open().run.id
    Reloader(shop, run, at=at, width=50).kill_where_it_waits()
    assert shop.rows() == doubled(FIRST, by=1), "nothing was published"
    applied_by(old, shop, LATER)
    old.stop()
    reload.run(reload.take_over(run))
    assert shop.rows() == doubled(FIRST + LATER)
    assert shop.schemas() == []


def test_a_dead_drivers_run_can_be_aborted(shop: Shop) -> None:
    worker = working(shop, FIRST)
    reload = shop.reload()
    run = reload.open().run.id
    Reloader(shop, run, at="turn cut_over", width=50).kill_where_it_waits()
    assert reload.runs.abort(run, "its driver is dead").swept
    applied_by(worker, shop, LATER)
    worker.stop()
    assert shop.rows() == doubled(FIRST + LATER, by=1)
