"""Checks that a pipeline's handler can be called, and names it in messages."""

from __future__ import annotations

import inspect
from contextlib import AbstractAsyncContextManager
from typing import Any

from seekpoint.errors import ConfigError


def shown_handler(handle: object) -> str:
    """The handler's name in messages: ``the handler module.name``."""
    return (
        f"the handler {getattr(handle, '__module__', '?')}.{getattr(handle, '__qualname__', type(handle).__qualname__)}"
    )


def is_async(handle: object) -> bool:
    """Whether ``handle`` is an async function, or an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(getattr(handle, "__call__", None))  # noqa: B004


def check_handler(pipeline: str, handle: object, resources: object) -> None:
    """Raise ConfigError unless the handler can be called with a connection, a batch and, if declared, resources."""
    if not callable(handle):
        raise ConfigError(f"{pipeline}: the handler must be a function handle(tx, batch), got {handle!r}")
    for function in (handle, getattr(handle, "__call__", None)):  # noqa: B004
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"{pipeline}: the handler is a generator, and would never run; write a function handle(tx, batch), or "
                "an async one, without yield"
            )
    if resources is not None and not is_async(handle):
        raise ConfigError(
            f"{pipeline}: resources= are entered in the event loop of an async handler, but this handler is a plain "
            "function: open what the handler needs in the module that defines it"
        )
    if resources is not None and not _makes_context(resources):
        raise ConfigError(
            f"{pipeline}: resources= must be a function that returns an async context manager (one that "
            f"@asynccontextmanager decorates), got {resources!r}"
        )
    _check_parameters(pipeline, handle, 2 if resources is None else 3)


def _makes_context(resources: object) -> bool:
    """Whether ``resources`` is a function that is neither a context manager nor an undecorated generator."""
    undecorated = (inspect.isasyncgenfunction, inspect.isgeneratorfunction, inspect.iscoroutinefunction)
    return (
        callable(resources)
        and not isinstance(resources, AbstractAsyncContextManager)
        and not any(is_kind(resources) for is_kind in undecorated)
    )


def _check_parameters(pipeline: str, handle: Any, count: int) -> None:
    called = f"handle({', '.join(('tx', 'batch', 'resources')[:count])})"
    try:
        signature = inspect.signature(handle)
        signature.bind(*[None] * count)
    except TypeError as error:
        raise ConfigError(f"{pipeline}: the handler is called as {called}: {error}") from None
    except ValueError:
        return  # a builtin whose signature is not known
    first = next(iter(signature.parameters.values()))
    if first.name == "batch" or _names_a_batch(first.annotation):
        raise ConfigError(
            f"{pipeline}: the handler is called as {called}, and its first parameter {first.name!r} is a "
            "batch: put the transaction's connection first"
        )


def _names_a_batch(annotation: Any) -> bool:
    """Whether the annotation, perhaps a string, is Batch, with or without type parameters."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.split("[", 1)[0].rsplit(".", 1)[-1] == "Batch"
