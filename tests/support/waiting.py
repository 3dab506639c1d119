"""Polls for conditions that no event announces."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

SECONDS = 30.0  # a deadline for what takes milliseconds, or a rebalance or a backoff at most


def until(condition: Callable[[], Any], what: str | Callable[[], str], timeout: float = SECONDS) -> Any:
    """Wait until ``condition()`` is true, and return its result; ``what`` is awaited, or a function that describes it.

    Pauses are a tenth of the time waited so far, 10 to 100 ms: each question costs this process and the server time.
    """
    pause, began = threading.Event(), monotonic()
    while not (answer := condition()):
        waited = monotonic() - began
        assert waited < timeout, f"not within {timeout} s: {what if isinstance(what, str) else what()}"
        pause.wait(min(max(waited / 10, 0.01), 0.1))
    return answer
