"""Aborts the open batch on a second signal.

KeyboardInterrupt, raised by the signal handler, could interrupt asyncio between removing a callback from the loop's
queue and calling it. The callback would be lost, and the task that awaits it would never end. So the loop's task is
cancelled instead, as ``asyncio.Runner`` does on SIGINT:
https://docs.python.org/3/library/asyncio-runner.html#handling-keyboard-interruption
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Abort:
    """Interrupts the worker's thread with KeyboardInterrupt; a signal handler calls it with the reason.

    While :meth:`run` runs an event loop, the loop's task is cancelled first, and KeyboardInterrupt is raised when the
    task ends. A task that catches CancelledError, or does not await, delays the abort.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._has_loop = False
        self._task: asyncio.Task[Any] | None = None  # the task that the loop runs; None before its first step

    def __call__(self, reason: str) -> None:
        """Raise KeyboardInterrupt; if an event loop runs, cancel its task instead."""
        if not self._has_loop:
            raise KeyboardInterrupt(reason)
        self._reason = reason
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)  # also wakes the loop

    def run(self, runner: asyncio.Runner, coroutine: Coroutine[Any, Any, T], context: Context | None = None) -> T:
        """Return the coroutine's result. Raises the coroutine's errors, and KeyboardInterrupt after an abort."""
        self._has_loop = True
        try:
            returned = runner.run(self._known(coroutine), context=context)
        except BaseException as error:
            self._raise_if_aborted(error)
            raise
        self._raise_if_aborted()
        return returned

    def _raise_if_aborted(self, error: BaseException | None = None) -> None:
        self._has_loop, self._task = False, None
        reason, self._reason = self._reason, None  # an abort must not end later runs: they exit the resources
        if reason is not None:
            raise KeyboardInterrupt(reason) from error

    async def _known(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        if self._reason is not None:
            coroutine.close()
            raise KeyboardInterrupt(self._reason)
        return await coroutine
