"""What a worker does while it waits for an answer of the server: it counts no time of user code, and reads ahead."""

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


class Work(NamedTuple):
    """What is done meanwhile; it must not use the connection.

    ``do`` is called until an answer is there, or it returns False. ``is_any`` is asked first, at each wait: cheap.
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
    """As ``driver.wait``; until an answer is there, ``work`` is done.

    ``waits`` is one of psycopg's generators: it yields what it waits for, and is sent what is ready.
    """
    if not work.is_any():
        return type(driver).wait(driver, waits, *args, **options)
    try:
        return type(driver).wait(driver, _working(driver, work, waits), *args, **options)
    except BaseException:
        with suppress(Exception):  # of a lost connection; Python would print it when the generator is collected
            waits.close()
        raise


def _working(
    driver: psycopg.Connection[Any], work: Work, waits: Generator[Wait, Ready | int, T]
) -> Generator[Wait, Ready | int, T]:
    """Work as long as nothing is ready; then wait as ``waits`` does, in psycopg, which cancels at Ctrl-C."""
    is_any = True
    try:
        state, poll = next(waits), select.poll()
        while True:
            poll.register(driver.pgconn.socket, _EVENTS[state])
            if is_any and (found := poll.poll(0)):
                state = waits.send(_ready(found[0][1]))
            elif is_any:
                is_any = work.do()
            else:
                state = waits.send((yield state))
    except StopIteration as end:
        answer: T = end.value
        return answer


def _ready(events: int) -> Ready:
    """What is ready; an error, or a connection that was closed, is read as an answer is."""
    written, read = events & select.POLLOUT, events & ~select.POLLOUT
    return Ready.RW if read and written else Ready.W if written else Ready.R


def waiting(
    stopwatch: Stopwatch, meanwhile: Work | None = None
) -> Callable[[psycopg.Connection[Any]], Callable[..., Any]]:
    """What makes of a connection how it waits: ``meanwhile`` is done, and the stopwatch does not count."""

    def wait_of(driver: psycopg.Connection[Any]) -> Callable[..., Any]:
        wait: Any = driver.wait if meanwhile is None else partial(work_while_waiting, driver, meanwhile)
        return partial(stopwatch.wait, wait)

    return wait_of
