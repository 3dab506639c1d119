"""How long users' code (handler, ``row=``, codec) has been running in the transaction that is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Stopwatch:
    """Runs while users' code does, and stops while it waits for the server; read from any thread."""

    def __init__(self) -> None:
        self._state: tuple[float | None, float] = None, 0.0  # since when it runs; the seconds before that

    @contextmanager
    def running(self) -> Iterator[None]:
        """Users' code runs for the length of the block."""
        self._state = monotonic(), 0.0
        try:
            yield
        finally:
            self._state = None, 0.0

    def wait(self, wait: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call ``wait``, which waits for an answer of the server: a lock, or a server that is away, does not count."""
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
        """So far, in the call that runs now; 0 where none does."""
        since, before = self._state
        return before if since is None else before + monotonic() - since
