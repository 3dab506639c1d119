"""Waits between attempts, and a step that is tried again after an error that may pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from time import sleep
from typing import TypeVar

from seekpoint.postgres.sqlstates import is_transient

T = TypeVar("T")

TRIES = 20
_chance = random.Random()  # noqa: S311 -- jitter


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from ``initial`` to ``ceiling`` seconds, each drawn from its upper half.

    The jitter keeps workers that failed together from coming back together.
    """

    initial: float = 1.0
    ceiling: float = 30.0

    def wait(self, attempt: int, chance: random.Random = _chance) -> float:
        """Seconds after the n-th attempt (from 1); the first wait is at most ``initial``."""
        return min(self.initial * 2.0 ** min(attempt - 1, 100), self.ceiling) * (0.5 + chance.random() / 2)

    def waits(self, chance: random.Random = _chance) -> Iterator[float]:
        """All of them; endless."""
        return (self.wait(attempt, chance) for attempt in count(1))


SHORT = Backoff(0.2, 2.4)  # TRIES attempts wait half a minute in all
_LONG = Backoff(1.25, 20.0)


def pause(attempt: int, backoff: Backoff = SHORT) -> None:
    """Wait after the n-th attempt (from 1)."""
    sleep(backoff.wait(attempt))


def longer_pause(attempt: int) -> None:
    """Wait after the n-th attempt (from 1) that took too long: a second, then twice as long each time."""
    pause(attempt, _LONG)


def retried(
    step: Callable[[], T],
    may_pass: Callable[[BaseException], bool] = is_transient,
    *,
    tries: int = TRIES,
    backoff: Backoff = SHORT,
) -> T:
    """What ``step`` returns: tried again where its error may pass. Raises the last error, and every other at once."""
    for attempt in range(1, tries):
        try:
            return step()
        except Exception as error:
            if not may_pass(error):
                raise
        pause(attempt, backoff)
    return step()
