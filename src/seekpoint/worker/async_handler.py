"""Runs async handlers in an event loop on the worker's thread, which runs only while a handler does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from importlib import import_module
from typing import Any

from sqlalchemy.exc import MissingGreenlet

from seekpoint.errors import ConfigError, HandlerMisuse, required
from seekpoint.pipeline.batch import Batch
from seekpoint.pipeline.handler import is_async, shown_handler
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.worker.abort import Abort
from seekpoint.worker.waiting import Stopwatch

Call = Callable[[HandlerConnection, Batch[Any, Any]], object]

CANCEL_TASKS = 5.0  # seconds that the handler's tasks get to end once they are cancelled; the transaction waits

# The tasks of the handler's call. A task inherits it from the task that starts it; resources= have none.
_tasks: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("_tasks", default=None)


@contextmanager
def callable_handler(
    pipeline: Pipeline, stopwatch: Stopwatch | None = None, abort: Abort | None = None
) -> Iterator[Call | None]:
    """Yield the pipeline's handler as a plain function; an async handler runs in an event loop of this block.

    ``resources=`` are entered before the first batch, and exited at the end of the block; then tasks that still run in
    the loop are cancelled. ``abort`` cancels the running task.
    """
    handle: Any = pipeline.handle
    if handle is None or not is_async(handle):
        yield handle
        return
    _require_no_loop(shown_handler(handle))
    with required("async handlers need greenlet", "async"):
        import_module("greenlet")
    with asyncio.Runner() as runner:
        run = partial((abort or Abort()).run, runner)
        called = _AsyncHandler(run, handle, pipeline.resources, stopwatch or Stopwatch())
        try:
            yield called
        finally:
            called.close()


def _require_no_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        f"{name} is async and needs an event loop, but this thread already runs one: make this call in another thread, "
        "with asyncio.to_thread()"
    )


class _AsyncHandler:
    """Runs an async handler. Created, called and closed on the worker's thread; enters and exits the resources."""

    def __init__(
        self,
        run: Callable[..., Any],
        handle: Any,
        resources: Callable[[], AbstractAsyncContextManager[Any]] | None,
        stopwatch: Stopwatch,
    ) -> None:
        from seekpoint.postgres.awaited import awaited, engine_of_awaited  # noqa: PLC0415 -- it needs greenlet

        self._run, self._handle, self._who = run, handle, shown_handler(handle)
        self._lent = partial(awaited, engine=engine_of_awaited(), waits=stopwatch.wait)
        self._leaving: asyncio.Event
        self._host: asyncio.Task[None] | None = None
        self._resources = () if resources is None else (run(self._enter(resources)),)

    def __call__(self, tx: HandlerConnection, batch: Batch[Any, Any]) -> object:
        """Run the handler to its end. Raises what it raises."""
        return self._run(self._apply(tx, batch), context=copy_context())

    def close(self) -> None:
        """Exit the resources. Raises what they raise."""
        if self._host is not None:
            self._run(self._leave(self._host))

    async def _apply(self, tx: HandlerConnection, batch: Batch[Any, Any]) -> object:
        if self._host is not None and self._host.done():
            raise HandlerMisuse(
                f"{self._who}: its resources= ended while the worker ran, because one of their tasks failed or was "
                "cancelled: catch that task's errors"
            )
        try:
            with self._lent(tx) as connection, _tracked() as tasks:
                try:
                    returned: object = await self._handle(connection, batch, *self._resources)
                finally:
                    unfinished = await self._end(tasks)
                if unfinished:
                    raise HandlerMisuse(
                        f"{self._who} returned while tasks it had started were running ({_names(unfinished)}). They "
                        "were cancelled, because they would write in the next batch's transaction: await them, or use "
                        "asyncio.TaskGroup"
                    )
                return returned
        except (RuntimeError, MissingGreenlet) as error:
            if misuse := _misuse(error):
                raise HandlerMisuse(f"{self._who} {misuse}") from error
            raise

    async def _end(self, tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
        """Cancel each running task, also those that are started meanwhile, and await them; returns these tasks.

        Raises HandlerMisuse if one does not end within ``CANCEL_TASKS``.
        """
        loop, cancelled = asyncio.get_running_loop(), set[asyncio.Task[Any]]()
        deadline = loop.time() + CANCEL_TASKS
        while (running := {task for task in tasks if not task.done()}) and loop.time() < deadline:
            for task in running - cancelled:
                task.cancel()
            cancelled |= running
            await asyncio.wait(running, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
        if running:
            for task in running:
                asyncio.tasks._unregister_task(task)  # noqa: SLF001 -- documented; the loop would await it forever
            raise HandlerMisuse(
                f"{self._who}: tasks it had started still run {CANCEL_TASKS:g} s after they were cancelled "
                f"({_names(running)}): let CancelledError out of them, and await them, or use asyncio.TaskGroup"
            )
        return cancelled

    async def _enter(self, resources: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        """Enter the resources in a task that also exits them, as a TaskGroup requires."""
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._leaving = asyncio.Event()
        self._host = host = asyncio.create_task(_hold(resources, entered, self._leaving))
        await asyncio.wait([host, entered], return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await host  # raises
        return entered.result()

    async def _leave(self, host: asyncio.Task[None]) -> None:
        self._leaving.set()
        await host


async def _hold(
    resources: Callable[[], AbstractAsyncContextManager[Any]], entered: asyncio.Future[Any], leaving: asyncio.Event
) -> None:
    manager: object = resources()
    if not isinstance(manager, AbstractAsyncContextManager):
        raise ConfigError(
            f"resources= returned {manager!r}, which is no async context manager: write an async function with one "
            "yield, and decorate it with @asynccontextmanager"
        )
    async with manager as value:
        entered.set_result(value)
        await leaving.wait()


def _misuse(error: RuntimeError | MissingGreenlet) -> str | None:
    """The handler's mistake, from the error's message (asyncio has no classes for these errors); None if unknown."""
    message = str(error)
    if isinstance(error, MissingGreenlet):
        reason = message.partition(". ")[0]  # without SQLAlchemy's advice
        return (
            f"used the connection without await ({reason}): await the methods of tx; pass plain functions to "
            "tx.run_sync(); load related ORM objects in the query, with selectinload()"
        )
    if message.endswith(("attached to a different loop", "bound to a different event loop", "Event loop is closed")):
        return (
            f"used an object of another event loop ({message}): the worker runs its own loop; create clients, locks "
            "and queues in resources=, or inside the handler"
        )
    if message.endswith(("from a running event loop", "loop is already running", "another loop is running")):
        return f"started an event loop inside the worker's ({message}): await the coroutine instead"
    return None


@contextmanager
def _tracked() -> Iterator[set[asyncio.Task[Any]]]:
    """The running tasks that this task starts, and those that these start; not those of ``resources=``.

    A factory of tasks finds them, because Python 3.11 has no ``Task.get_context``.
    """
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[Any]]()
    factory: Any = loop.get_task_factory()

    def create(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        context: Context | None = options.get("context")
        create_task = partial(asyncio.Task, loop=loop) if factory is None else partial(factory, loop)
        task = create_task(coroutine, **options)
        if (_tasks.get() if context is None else context.get(_tasks)) is tasks:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    _tasks.set(tasks)
    loop.set_task_factory(create)
    try:
        yield tasks
    finally:
        loop.set_task_factory(factory)


def _names(tasks: set[asyncio.Task[Any]]) -> str:
    return ", ".join(sorted(getattr(task.get_coro(), "__qualname__", task.get_name()) for task in tasks))
