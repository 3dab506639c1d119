"""Trying a transaction again that was rolled back: how often, and after how long."""

from __future__ import annotations

from random import Random
from time import sleep

TRIES = 20
WAIT = 0.2  # seconds before another try, on average; grows
_chance = Random()  # noqa: S311 -- spreads attempts, guards nothing


def pause(attempt: int) -> None:
    """Wait behind the n-th try (from 1); all of them wait half a minute."""
    sleep(_chance.uniform(0.5, 1.5) * WAIT * min(attempt, 10))


def longer_pause(attempt: int) -> None:
    """Wait after the n-th try (from 1) that took too long: a second, then twice as long each time."""
    sleep(_chance.uniform(0.75, 1.25) * 2.0 ** (attempt - 1))
