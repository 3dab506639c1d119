"""Tests of the stream chaos's schedule and recomputation; ``tests/chaos/spark/streams.py`` runs the chaos."""

from __future__ import annotations

import pytest

from chaos.spark.stream_chaos import FAULTS, draw_schedule, expected_sales


@pytest.mark.parametrize("rounds", [1, 4, 30])
def test_a_schedule_is_the_same_for_the_same_seed_and_fair(rounds: int) -> None:
    drawn = draw_schedule(5, rounds)
    assert drawn == draw_schedule(5, rounds)
    assert drawn != draw_schedule(6, rounds)
    faults = [plan.fault for plan in drawn]
    assert max(map(faults.count, FAULTS)) - min(map(faults.count, FAULTS)) <= 1


def test_sums_are_those_of_a_loop_by_hand() -> None:
    assert expected_sales([(0, 5, 1), (103, -7, 2), (4, 1, 0)]) == [("r0", -2, 2, 1, 2), ("r1", 1, 1, 0, 0)]
