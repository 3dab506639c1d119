"""A second signal: KeyboardInterrupt where no event loop runs, and in a loop the end of its task, at whatever place."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from contextvars import Context
from types import FrameType
from typing import Any, NoReturn

import pytest

from seekpoint.worker.abort import Abort


class SeenWithin(asyncio.SelectorEventLoop):
    """A loop that sees the signal in its own code: when it is about to queue the next callback."""

    is_next = False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_next:
            self.is_next = False
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().call_soon(callback, *args, context=context)


@pytest.fixture
def abort() -> Iterator[Abort]:
    """Called at SIGUSR1."""
    called = Abort()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        called(signal.Signals(number).name)

    before = signal.signal(signal.SIGUSR1, on_signal)
    yield called
    signal.signal(signal.SIGUSR1, before)


def test_without_a_loop_it_raises_where_it_is_seen(abort: Abort) -> None:
    with pytest.raises(KeyboardInterrupt, match="SIGUSR1"):
        os.kill(os.getpid(), signal.SIGUSR1)


def test_a_task_ends_although_the_signal_is_seen_within_the_loop_s_own_code(abort: Abort) -> None:
    """A KeyboardInterrupt there loses the callback that would resume the task, and the loop's end waits for it."""
    loop, tasks = SeenWithin(), []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        answer = loop.create_future()
        loop.call_soon(answer.set_result, None)
        loop.is_next = True
        await answer

    with closing(loop), pytest.raises(KeyboardInterrupt, match="SIGUSR1"):
        abort.run(asyncio.Runner(loop_factory=lambda: loop), work())
    assert [task.done() for task in tasks if task is not None] == [True]


def test_the_task_s_own_code_ends_before_it_is_raised(abort: Abort) -> None:
    steps: list[str] = []

    async def work() -> NoReturn:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            steps.append("continues until it awaits")
            await asyncio.Event().wait()
        finally:
            steps.append("cancelled")
        raise AssertionError

    with asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt) as raised:
        abort.run(runner, work())
    assert steps == ["continues until it awaits", "cancelled"]
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)


def test_a_task_that_catches_the_cancellation_is_aborted_where_it_returns(abort: Abort) -> None:
    async def work() -> str:
        os.kill(os.getpid(), signal.SIGUSR1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "caught"
        raise AssertionError

    with asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt, match="SIGUSR1"):
        abort.run(runner, work())


def test_what_is_not_aborted_returns_and_raises_as_it_is(abort: Abort) -> None:
    async def returns() -> int:
        return 5

    async def raises() -> NoReturn:
        raise ValueError("its own")

    with asyncio.Runner() as runner:
        assert abort.run(runner, returns()) == 5
        with pytest.raises(ValueError, match="its own"):
            abort.run(runner, raises())
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGUSR1)
