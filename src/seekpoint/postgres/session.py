"""A worker's session: the only connection on which the worker commits batches, one transaction after another (I1).

A requested replay has a separate connection (`worker.replay.replay_one`). The errors of this module say how a
transaction failed: in the rows sent with the ledger's statement, by a refused COMMIT, or by an unanswered COMMIT.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import psycopg
from sqlalchemy import Engine, Transaction

from seekpoint.postgres import pooler
from seekpoint.postgres.connection import HandlerConnection, cancel_statement
from seekpoint.postgres.round_trip import StatementFailed, commit
from seekpoint.postgres.session_state import SessionState, is_configured_by_code
from seekpoint.postgres.sqlstates import connection_lost


class ConnectionSocket:
    """The socket of a session's current connection; ``wait`` makes a connection's function that waits for answers."""

    def __init__(self, wait: Callable[[psycopg.Connection[Any]], Callable[..., Any]] | None = None) -> None:
        self._wait = wait
        self._lock = threading.Lock()
        self._driver: Any = None
        self._socket: socket.socket | None = None
        self.is_cut = False

    def connected(self, driver: psycopg.Connection[Any]) -> None:
        """Note the session's new connection. Raises psycopg.OperationalError after :meth:`cut`."""
        with self._lock:
            if self.is_cut:
                raise psycopg.OperationalError("the worker has ended: it did not stop within its grace period")
            self._forget()
            self._driver = driver
            if self._wait is not None:
                self._driver.wait = self._wait(driver)
            # A duplicate, because the driver's descriptor may belong to another file by the time of cut().
            self._socket = socket.socket(fileno=os.dup(driver.fileno()))

    def disconnected(self) -> None:
        """Note that the session has returned or dropped the connection."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
            vars(self._driver).pop("wait", None)  # restores the class's method
        self._socket = self._driver = None

    def cut(self) -> None:
        """Shut the connection down, from another thread: a wait on it, or a later use, raises an error.

        The server rolls the transaction back. The session gets no other connection afterwards.
        """
        with self._lock:
            self.is_cut = True
            if self._driver is not None:
                with suppress(psycopg.Error):
                    cancel_statement(self._driver)
            if self._socket is not None:
                with suppress(OSError):  # the server has closed it
                    self._socket.shutdown(socket.SHUT_RDWR)


class TransactionFailed(Exception):  # noqa: N818 -- control: the caller decides what to raise
    """The transaction failed with ``error``; the subclass says at which point."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class SentRowsFailed(TransactionFailed):
    """A statement sent together with the ledger's failed: its error names no row."""


class CommitRefused(TransactionFailed):
    """The server refused COMMIT, for example by a deferred constraint: nothing was written."""


class CommitUnanswered(TransactionFailed):
    """COMMIT was sent, but not answered: it may have taken effect."""


def raised_by(error: Exception) -> Exception:
    """The error inside a TransactionFailed; any other error unchanged."""
    return error.error if isinstance(error, TransactionFailed) else error


class Session:
    """One connection for a worker's transactions, one after another; a new one after any failure.

    ``wire`` is the socket, which another thread may cut.

    ``lends``: handlers get the connection, so it never returns to the application's pool. Each COMMIT after a handler
    also reads the session's state; if that has changed, the connection is replaced, and ``changed`` names the changes.
    If application code configures new connections, the connection is replaced after every transaction with a handler.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        lends: bool = False,
        wire: ConnectionSocket | None = None,
    ) -> None:
        self._engine, self._lends = engine, lends
        self.wire = wire or ConnectionSocket()
        self._connection: HandlerConnection | None = None
        self._state: SessionState | None = None
        self._serves_one_handler = False  # the connection is replaced after the first transaction with a handler
        self.changed: tuple[str, ...] = ()

    @contextmanager
    def transaction(self) -> Iterator[HandlerConnection]:
        """A READ COMMITTED transaction: committed at the end of the block, rolled back on any exception.

        Raises SentRowsFailed, CommitRefused or CommitUnanswered for errors at these points; other errors unchanged.
        """
        self.changed, is_committing = (), False
        try:
            tx = self._connection or self._connect()
            tx.begins()
            transaction = tx.begin()
            yield tx
            is_committing = True
            self.changed = self._commit(tx, transaction)
        except BaseException as error:
            self.close(broken=True)
            if not isinstance(error, Exception):
                raise
            if isinstance(error, StatementFailed):
                raise SentRowsFailed(error.error) from error.error
            if is_committing:
                raise (CommitUnanswered if connection_lost(error) else CommitRefused)(error) from error
            raise
        if self.changed or (tx.was_lent_now and self._serves_one_handler):
            self.close(broken=True)

    def _connect(self) -> HandlerConnection:
        tx = self._connection = HandlerConnection(self._engine)
        tx.execution_options(isolation_level="READ COMMITTED")
        self.wire.connected(tx.driver)
        if self._lends and pooler.detect(tx) is None:  # a pooler gives each transaction another session
            self._serves_one_handler = is_configured_by_code(self._engine)
            if not self._serves_one_handler:
                with tx.begin():  # the application's listeners may change settings at BEGIN
                    pass
                self._state = SessionState(tx.driver)
        return tx

    def _commit(self, tx: HandlerConnection, transaction: Transaction) -> tuple[str, ...]:
        """COMMIT; returns the names of settings and other state that the handler has changed."""
        driver, state = tx.driver, self._state
        if state is None or not tx.was_lent_now:
            tx.commit_by(transaction, partial(commit, driver))
            return ()
        changed: list[str] = []
        tx.commit_by(transaction, lambda: changed.extend(state.commit(driver)))
        return tuple(changed)

    def close(self, *, broken: bool = False) -> None:
        """Return the connection to the pool; drop a broken one, which may still be inside a transaction."""
        connection, self._connection, self._state, self._serves_one_handler = self._connection, None, None, False
        if connection is None:
            return
        self.wire.disconnected()
        connection.put_back(broken=broken)
