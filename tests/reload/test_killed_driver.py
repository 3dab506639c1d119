"""A driver that dies by SIGKILL, in any state: another one takes the run and brings it to its end."""

from __future__ import annotations

import pytest

from reloader import Reloader
from shop import Shop, doubled, gone, of

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
    "following",
    "diffed",
    "turn cut_over",
]


@pytest.mark.parametrize("at", PLACES)
def test_another_driver_goes_on(shop: Shop, at: str) -> None:
    shop.produce(shop.topic, FIRST, partition=0)
    old = shop.worker()
    old.reached(shop.topic, len(FIRST))
    reload = shop.reload()
    run = reload.open().run.id
    reloader = Reloader(
        url=shop.engine.url.render_as_string(hide_password=False),
        brokers=shop.brokers,
        schema=shop.schema,
        group=shop.group,
        topic=shop.topic,
        run=str(run),
        at=at,
        width=50,
    )
    try:
        assert reloader.wait_for("standing")
    finally:
        reloader.kill()
    assert shop.rows() == doubled(FIRST, by=1), "nothing was published"
    shop.produce(shop.topic, LATER, partition=0)
    old.reached(shop.topic, len(FIRST) + len(LATER))
    old.stop()
    reload.run(reload.take(run))
    assert shop.rows() == doubled(FIRST + LATER)
    assert shop.schemas() == []


def test_a_dead_drivers_run_can_be_aborted(shop: Shop) -> None:
    shop.produce(shop.topic, FIRST, partition=0)
    worker = shop.worker()
    worker.reached(shop.topic, len(FIRST))
    reload = shop.reload()
    run = reload.open().run.id
    reloader = Reloader(
        url=shop.engine.url.render_as_string(hide_password=False),
        brokers=shop.brokers,
        schema=shop.schema,
        group=shop.group,
        topic=shop.topic,
        run=str(run),
        at="turn cut_over",
        width=50,
    )
    try:
        assert reloader.wait_for("standing")
    finally:
        reloader.kill()
    assert reload.runs.abort(run, "its driver is dead").swept
    shop.produce(shop.topic, LATER, partition=0)
    worker.reached(shop.topic, len(FIRST) + len(LATER))
    worker.stop()
    assert shop.rows() == doubled(FIRST + LATER, by=1)
