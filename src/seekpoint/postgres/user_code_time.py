"""How long users' code (handler, ``row=``, codec) has been running in the open transaction."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Stopwatch:
    """Counts the seconds of a block of users' code, without its waits for the server; may be read from any thread."""

    def __init__(self) -> None:
        self._state: tuple[float | None, float] = None, 0.0  # when it was last started; seconds counted before

    def __enter__(self) -> None:
        """Count during the block."""
        self._state = monotonic(), 0.0

    def __exit__(self, *_: object) -> None:
        self._state = None, 0.0

    def wait(self, wait: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call ``wait``, which waits for an answer of the server, without counting (a lock, an unreachable server)."""
        since, before = self._state
        if since is None:
            return wait(*args, **options)
        before += monotonic() - since
        self._state = None, before
        try:
            return wait(*args, **options)
        finally:
            self._state = monotonic(), before

    def seconds(self) -> float:
        """Seconds of the users' code that runs now; 0 where none does."""
        since, before = self._state
        return before if since is None else before + monotonic() - since
