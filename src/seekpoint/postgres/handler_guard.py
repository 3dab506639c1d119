"""Keeps a handler from ending its transaction (I1), and restores the connection's settings after its call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import psycopg
from sqlalchemy import Connection, PoolProxiedConnection

Misuse = Callable[[str], NoReturn]
"""Raises HandlerMisuse; called with what the handler has called."""


class GuardedProxy:
    """The pool's proxy of a connection that a handler has: refuses to return it to the pool or to detach it."""

    def __init__(self, proxy: PoolProxiedConnection, misuse: Misuse) -> None:
        self._proxy, self._misuse = proxy, misuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)

    def close(self) -> None:
        self._misuse("close()")

    def detach(self) -> None:
        self._misuse("detach()")

    def invalidate(self, *_: Any, **__: Any) -> None:
        self._misuse("invalidate()")


@contextmanager
def ending_refused(driver: Any, misuse: Misuse) -> Iterator[None]:
    """Within the block the driver's connection refuses ``commit()`` and ``close()``.

    Every way to end the transaction that is not a statement's text goes through these methods.
    """

    def close() -> None:
        if not driver.closed:  # else SQLAlchemy closes what the server has ended
            misuse("close()")
        type(driver).close(driver)

    driver.commit, driver.close = partial(misuse, "commit()"), close
    try:
        yield
    finally:
        del driver.commit, driver.close


@contextmanager
def savepoints_ended(tx: Connection) -> Iterator[None]:
    """End the savepoints that the block leaves open: released, or rolled back on any exception."""
    ours = tx.get_nested_transaction()
    try:
        yield
    except BaseException:
        while (left := tx.get_nested_transaction()) is not None and left is not ours:
            left.rollback()
        raise
    while (left := tx.get_nested_transaction()) is not None and left is not ours:
        left.commit()


@contextmanager
def settings_kept(driver: psycopg.Connection[Any]) -> Iterator[None]:
    """Restore the settings of the driver's connection after the block."""
    names = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold", "prepared_max")
    before = {name: getattr(driver, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(driver, name, value)
