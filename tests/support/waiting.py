"""Polls for conditions that no event announces."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

SECONDS = 30.0  # a deadline for what takes milliseconds, or a rebalance or a backoff at most


def until(condition: Callable[[], Any], what: str, timeout: float = SECONDS) -> Any:
    """Wait until ``condition()`` is true, and return its result."""
    pause, deadline = threading.Event(), monotonic() + timeout
    while not (answer := condition()):
        assert monotonic() < deadline, f"not within {timeout} s: {what}"
        pause.wait(0.01)
    return answer
