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
RANDOM = random.SystemRandom()  # without state that forked workers would share


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from ``initial`` up to ``ceiling`` seconds, each randomly shortened by up to a half.

    The jitter keeps workers that failed together from retrying together.
    """

    initial: float = 1.0
    ceiling: float = 30.0

    def wait(self, attempt: int, chance: random.Random = RANDOM) -> float:
        """Seconds to wait after the n-th attempt (from 1); after the first, at most ``initial``."""
        return min(self.initial * 2.0 ** min(attempt - 1, 100), self.ceiling) * (0.5 + chance.random() / 2)

    def waits(self, chance: random.Random = RANDOM) -> Iterator[float]:
        """The waits after each attempt, endlessly."""
        return (self.wait(attempt, chance) for attempt in count(1))


SHORT = Backoff(0.2, 2.4)  # TRIES attempts wait half a minute in total
_LONG = Backoff(1.25, 20.0)


def pause(attempt: int, backoff: Backoff = SHORT) -> None:
    """Wait after the n-th attempt (from 1)."""
    sleep(backoff.wait(attempt))


def longer_pause(attempt: int) -> None:
    """Wait after the n-th attempt (from 1) that took too long: about a second, doubling up to 20 s."""
    pause(attempt, _LONG)


def retried(
    step: Callable[[], T],
    may_pass: Callable[[BaseException], bool] = is_transient,
    *,
    tries: int = TRIES,
    backoff: Backoff = SHORT,
    stopping: threading.Event | None = None,
) -> T:
    """Call ``step`` and return its result; retry it after transient errors, up to ``tries`` calls.

    Raises the last transient error, and any other error at once. Setting ``stopping`` ends the wait and the retries.
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
