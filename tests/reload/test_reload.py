"""A reload from end to end, on a real broker and a real Postgres."""

from __future__ import annotations

import pytest

from shop import Shop, doubled, gone, of


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_a_mended_transform_takes_over_at_the_stored_offsets(shop: Shop, strategy: str) -> None:
    first = [of(n % 40, n, n) for n in range(120)] + [gone(3), gone(7), of(7, 5)]
    shop.produce(shop.topic, first, partition=0)
    old = shop.worker()
    old.reached(shop.topic, len(first))
    assert shop.rows() == doubled(first, by=1)

    reload = shop.reload(range_records=50)
    driver = reload.open(strategy=strategy)
    reload.stage(driver)
    later = [of(n % 50, n, n) for n in range(200, 260)] + [gone(11)]
    shop.produce(shop.topic, later, partition=0)
    old.reached(shop.topic, len(first) + len(later))
    old.stop()
    outcome = reload.run(driver)

    assert shop.rows() == doubled(first + later)
    assert outcome.tries == 1
    assert reload.runs.get(driver.run.id).state == "cut_over"
    assert shop.schemas() == [], "nothing is left behind"
