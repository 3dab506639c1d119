"""Trying a transaction again that was rolled back: how often, and after how long."""

from __future__ import annotations

from random import Random
from time import sleep

from seekpoint.postgres.sqlstates import sqlstate

TRIES = 20
WAIT = 0.2  # seconds before another try, on average; grows
_chance = Random()  # noqa: S311 -- spreads attempts, guards nothing


# serialization_failure, deadlock_detected, lock_not_available: what others did at the same time, and no more
CONFLICTS = frozenset({"40001", "40P01", "55P03"})


def is_conflict(error: BaseException) -> bool:
    """Whether a transaction was rolled back for what others did at the same time."""
    return sqlstate(error) in CONFLICTS


def pause(attempt: int) -> None:
    """Wait behind the n-th try (from 1); all of them wait half a minute."""
    sleep(_chance.uniform(0.5, 1.5) * WAIT * min(attempt, 10))


def longer_pause(attempt: int) -> None:
    """Wait after the n-th try (from 1) that took too long: a second, then twice as long each time."""
    sleep(_chance.uniform(0.75, 1.25) * 2.0 ** (attempt - 1))
