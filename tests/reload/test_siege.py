"""A short siege: one reload under load and kills of everything; a long one is ``tests/chaos/reloads.py``."""

from __future__ import annotations

import pytest

from seekpoint.dev.postgres import PostgresServer
from siege.field import Log
from siege.report import besiege
from siege.siege import STAGERS, STRATEGIES, deal

SEED = 5


@pytest.mark.parametrize("rounds", [1, 3, 20])
def test_a_schedule_is_the_same_for_the_same_seed_and_fair(rounds: int) -> None:
    dealt = deal(SEED, rounds)
    assert dealt == deal(SEED, rounds)
    assert dealt != deal(SEED + 1, rounds)
    drawn = [plan.strategy for plan in dealt]
    assert max(map(drawn.count, STRATEGIES)) - min(map(drawn.count, STRATEGIES)) <= 1
    assert [plan.stager for plan in dealt] == [STAGERS[n % 2] for n in range(rounds)]


def test_the_oracle_agrees_with_itself() -> None:
    """What single reads are judged by is what the table computed anew has, behind each record."""
    log = Log()
    for at, (id_, amount) in enumerate([(1, 5), (2, 7), (1, None), (1, None), (2, 1), (3, 4)]):
        log.add(id_, amount, at)
    for end in range(len(log.records) + 1):
        rows = log.table(end)
        assert (log.counts[end], log.sums[end]) == (len(rows), sum(amount for amount, _ in rows.values()))
    assert log.table(6) == {2: (1, 4), 3: (4, 5)}


def test_a_short_siege(own_postgres: PostgresServer, seekpoint_broker: str) -> None:
    print(f"seed {SEED}")
    account = besiege(own_postgres, seekpoint_broker, rounds=1, seed=SEED, stagers=("local",))
    assert account.passed, "\n".join(account.lines())
    assert account.reloads == {"generation, local": 1}
    assert account.killed["postgres"] == 1
    assert account.compared > 0
