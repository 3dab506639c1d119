"""Exponential backoff, and retries of a step after transient errors."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from time import sleep
from typing import TypeVar

from seekpoint.postgres.sqlstates import is_transient

T = TypeVar("T")

TRIES = 20
_chance = random.SystemRandom()  # has no state that forked workers would share


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from ``initial`` to ``ceiling`` seconds; each is random between half of it and all of it.

    The jitter keeps workers that failed together from retrying together.
    """

    initial: float = 1.0
    ceiling: float = 30.0

    def wait(self, attempt: int, chance: random.Random = _chance) -> float:
        """Seconds after the n-th attempt (from 1); the first wait is at most ``initial``."""
        return min(self.initial * 2.0 ** min(attempt - 1, 100), self.ceiling) * (0.5 + chance.random() / 2)

    def waits(self, chance: random.Random = _chance) -> Iterator[float]:
        """The waits after the first, second, ... attempt; endless."""
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
    stopping: threading.Event | None = None,
) -> T:
    """Return what ``step`` returns; repeat it after transient errors. Raises the last of them, and others at once.

    Setting ``stopping`` ends a wait, and no further attempt follows.
    """
    for attempt in range(1, tries):
        try:
            return step()
        except Exception as error:
            if not may_pass(error) or (stopping is not None and stopping.wait(backoff.wait(attempt))):
                raise
        if stopping is None:
            pause(attempt, backoff)
    return step()
