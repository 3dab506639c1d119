"""Installs handlers of SIGTERM and SIGINT for the duration of a block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[bool]:
    """Call the handler on these signals within the block, by default SIGTERM and SIGINT.

    Restores the previous handlers at its end. Yields False outside the main thread, where Python allows no handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = {number: signal.signal(number, handler) for number in numbers or STOP_SIGNALS}
    try:
        yield True
    finally:
        for number, previous in before.items():
            signal.signal(number, previous or signal.SIG_DFL)  # None: installed by C
