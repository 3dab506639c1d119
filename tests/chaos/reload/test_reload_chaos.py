"""Tests of the reload chaos's schedule and checks; ``tests/chaos/reload/reloads.py`` runs the chaos."""

from __future__ import annotations

import pytest

from chaos.reload.load_and_reader import Log
from chaos.reload.reload_chaos import STAGERS, STRATEGIES, draw_schedule

SEED = 5


@pytest.mark.parametrize("rounds", [1, 3, 20])
def test_a_schedule_is_the_same_for_the_same_seed_and_fair(rounds: int) -> None:
    drawn_schedule = draw_schedule(SEED, rounds)
    assert drawn_schedule == draw_schedule(SEED, rounds)
    assert drawn_schedule != draw_schedule(SEED + 1, rounds)
    drawn = [plan.strategy for plan in drawn_schedule]
    assert max(map(drawn.count, STRATEGIES)) - min(map(drawn.count, STRATEGIES)) <= 1
    assert [plan.stager for plan in drawn_schedule] == [STAGERS[n % 2] for n in range(rounds)]


def test_the_log_agrees_with_the_table_computed_from_it() -> None:
    """After each record, the counts and sums that single reads are compared with are those of the computed table."""
    log = Log()
    for offset, (id_, amount) in enumerate([(1, 5), (2, 7), (1, None), (1, None), (2, 1), (3, 4)]):
        log.add(id_, amount, offset)
    for end in range(len(log.records) + 1):
        rows = log.table(end)
        assert (log.counts[end], log.sums[end]) == (len(rows), sum(amount for amount, _ in rows.values()))
    assert log.table(6) == {2: (1, 4), 3: (4, 5)}
