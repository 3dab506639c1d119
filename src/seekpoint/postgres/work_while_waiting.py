"""Waits for the server's answer, and does other work meanwhile."""

from __future__ import annotations

import select
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

T = TypeVar("T")

CANCEL = 5.0  # seconds for the server to take the request that cancels a statement


class Work(NamedTuple):
    """What is done meanwhile; it must not use the connection.

    ``do`` is called until an answer is there, or it returns False. ``is_any`` is asked first, at each wait: cheap.
    """

    is_any: Callable[[], bool]
    do: Callable[[], bool]


_EVENTS = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}


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
        return _wait(driver, work, waits, *args, **options)
    except BaseException:
        with suppress(Exception):  # of a lost connection; Python would print it when the generator is collected
            waits.close()
        raise


def _wait(
    driver: psycopg.Connection[Any],
    work: Work,
    waits: Generator[Wait, Ready | int, T],
    *args: Any,
    **options: Any,
) -> T:
    try:
        state, poll = next(waits), select.poll()
        while True:
            poll.register(driver.pgconn.socket, _EVENTS[state])
            if found := poll.poll(0):
                state = waits.send(_ready(found[0][1]))
            elif not work.do():
                break
    except StopIteration as end:
        answer: T = end.value
        return answer
    except KeyboardInterrupt:
        _cancel(driver)
        raise
    return type(driver).wait(driver, _from(state, waits), *args, **options)


def _cancel(driver: psycopg.Connection[Any]) -> None:
    """As psycopg's own wait does: else the server runs a statement on whose answer no client waits."""
    if driver.pgconn.transaction_status == TransactionStatus.ACTIVE:
        with suppress(Exception):  # the interruption is what is raised
            driver.cancel_safe(timeout=CANCEL)


def _ready(events: int) -> Ready:
    """What is ready; an error, or a connection that was closed, is read as an answer is."""
    written, read = events & select.POLLOUT, events & ~select.POLLOUT
    return Ready.RW if read and written else Ready.W if written else Ready.R


def _from(state: Wait, waits: Generator[Wait, Ready | int, T]) -> Generator[Wait, Ready | int, T]:
    """The rest of a generator that waits for ``state``."""
    while True:
        ready = yield state
        try:
            state = waits.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer
