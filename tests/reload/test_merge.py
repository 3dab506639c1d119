"""What a merge does before its locks: the pages that it is going to change are made ready, and nobody waits."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from cutting import diffed, settled
from seekpoint.reload import merge
from shop import Shop, doubled, of

MANY, CHANGED = 2_000, 300
RECORDS = [of(n, 1 if n < CHANGED else 0) for n in range(MANY)]  # twice nothing is the same


def locked_once(shop: Shop) -> set[int]:
    """The rows that somebody has locked or tried to change since they were written."""
    return {row[0] for row in shop.execute("SELECT id FROM {schema}.orders WHERE xmax::text <> '0'")}


def test_rows_that_differ_are_locked_once_and_let_go(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some pages of keys at a time; whoever else has changed or locked some of them is not waited for."""
    monkeypatch.setattr(merge, "WARM", 1)
    settled(shop, RECORDS)
    steps: list[tuple[int, int]] = []
    told: list[tuple[str, int, int]] = []
    reload = shop.reload(progress=lambda *step: told.append(step))
    driver = reload.open()
    with diffed(reload, driver) as rounds:
        before = locked_once(shop)
        with shop.engine.connect() as other:
            other.execute(text(f"UPDATE {shop.schema}.orders SET note = 'mine' WHERE id = 7"))
            other.execute(text(f"SELECT FROM {shop.schema}.orders WHERE id = 8 FOR UPDATE"))
            merge.warm(driver, rounds.targets, lambda *step: steps.append(step))
        assert locked_once(shop) - before == set(range(CHANGED)) - before
        free = shop.execute("SELECT id FROM {schema}.orders WHERE id < :most FOR UPDATE NOWAIT", most=CHANGED)
        assert len(free) == CHANGED
        assert len(steps) > 4, "some pages at a time"
        assert steps == sorted(steps)
        assert (steps[0], steps[-1]) == ((0, CHANGED), (CHANGED, CHANGED))
        reload.cut_over(driver, rounds)
    assert [step for step in told if step[0] == "warming up"] == [("warming up", *step) for step in steps]
    assert shop.rows() == doubled(RECORDS)


def test_a_large_difference_is_not_gone_through_before_the_lock(shop: Shop) -> None:
    settled(shop, RECORDS[: 2 * CHANGED])
    reload = shop.reload()
    driver = reload.open()
    with diffed(reload, driver) as rounds:
        before = locked_once(shop)
        merge.warm(driver, rounds.targets, lambda *_: pytest.fail("there is nothing to do"))
        assert locked_once(shop) == before
