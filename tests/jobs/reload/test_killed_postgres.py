"""Postgres killed in the middle of a run: a driver that takes it over resumes after its last committed step."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from seekpoint.testing.servers.postgres import PostgresServer
from support.before_cutover import settled, started
from support.reload_orders import doubled, gone, of, orders_group_on

RECORDS = [of(n % 40, n, n) for n in range(120)] + [gone(3)]


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("place", ["staging", "turn staged", "catching_up", "turn cut_over"])
def test_a_crash_of_the_database(
    request: pytest.FixtureRequest, own_postgres: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two steps the same driver continues; in a step it ends, but for the cut-over, which is tried again."""
    orders_group = orders_group_on(request, own_postgres)
    settled(orders_group, RECORDS)
    crashed: list[str] = []

    def crash(step: str) -> None:
        if step == place and not crashed:
            crashed.append(step)
            own_postgres.kill()
            own_postgres.start()

    reload, driver = started(orders_group.reload(range_records=50, progress=lambda what, *_: crash(what)))
    turn = driver.transition

    def turned(tx: Any, state: str) -> None:
        turn(tx, state)
        crash(f"turn {state}")

    monkeypatch.setattr(driver, "transition", turned)
    if place == "turn staged":
        with pytest.raises(OperationalError):
            reload.run(driver)
        driver = reload.take_over(driver.run.id)
        assert driver.run.state == "staging", "the step was rolled back"
    reload.run(driver)
    assert crashed == [place]
    assert orders_group.rows() == doubled(RECORDS)
    assert orders_group.schemas() == []
    orders_group.engine.dispose()
