"""Waits for the server: the worker reads ahead during the wait, which does not count as time of the user's code."""

from __future__ import annotations

import select
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, ParamSpec, TypeVar

import psycopg
from psycopg.waiting import Ready, Wait

P = ParamSpec("P")
T = TypeVar("T")

_EVENTS = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}


class Stopwatch:
    """Measures how long users' code runs, without its waits for the server; may be read from any thread."""

    def __init__(self) -> None:
        self._state: tuple[float | None, float] = None, 0.0  # time of the last start; seconds counted before it

    def __enter__(self) -> None:
        """Measure the block."""
        self._state = monotonic(), 0.0

    def __exit__(self, *_: object) -> None:
        self._state = None, 0.0

    def wait(self, wait: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call ``wait``, which waits for a lock or an unreachable server, without counting its time."""
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
        """Seconds of the users' code that runs now; 0 if none does."""
        since, before = self._state
        return before if since is None else before + monotonic() - since


class Work(NamedTuple):
    """Work to do while waiting; it must not use the connection.

    Each wait calls ``is_any`` first, which must be cheap, and then ``do`` until the answer arrives or ``do`` returns
    False.
    """

    is_any: Callable[[], bool]
    do: Callable[[], bool]


def work_while_waiting(
    driver: psycopg.Connection[Any],
    work: Work,
    waits: Generator[Wait, Ready | int, T],
    *args: Any,
    **options: Any,
) -> T:
    """Wait as ``driver.wait`` does, and do ``work`` until the answer arrives.

    ``waits`` is one of psycopg's generators: it yields what it waits for, and is sent what is ready.
    """
    if not work.is_any():
        return type(driver).wait(driver, waits, *args, **options)
    try:
        return type(driver).wait(driver, _working(driver, work, waits), *args, **options)
    except BaseException:
        # A lost connection's error, which Python would otherwise print when it collects the generator.
        with suppress(Exception):
            waits.close()
        raise


def _working(
    driver: psycopg.Connection[Any], work: Work, waits: Generator[Wait, Ready | int, T]
) -> Generator[Wait, Ready | int, T]:
    """Work until the socket is ready; then, or without work, wait in psycopg, which cancels the statement on Ctrl-C."""
    is_any = True
    try:
        state, poll = next(waits), select.poll()
        while True:
            poll.register(driver.pgconn.socket, _EVENTS[state])
            if is_any and (polled := poll.poll(0)):
                state = waits.send(_ready(polled[0][1]))
            elif is_any:
                is_any = work.do()
            else:
                state = waits.send((yield state))
    except StopIteration as end:
        answer: T = end.value
        return answer


def _ready(events: int) -> Ready:
    """The socket's events; an error or a closed connection counts as readable."""
    writable, readable = events & select.POLLOUT, events & ~select.POLLOUT
    return Ready.RW if readable and writable else Ready.W if writable else Ready.R


def waiting(
    stopwatch: Stopwatch, meanwhile: Work | None = None
) -> Callable[[psycopg.Connection[Any]], Callable[..., Any]]:
    """Return a function that gives a connection its ``wait``, which does the work ``meanwhile`` and is not counted."""

    def wait_of(driver: psycopg.Connection[Any]) -> Callable[..., Any]:
        wait: Any = driver.wait if meanwhile is None else partial(work_while_waiting, driver, meanwhile)
        return partial(stopwatch.wait, wait)

    return wait_of
