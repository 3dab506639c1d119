"""The socket of a worker's connection: another thread can close it, and waits on it do not count as users' code."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg

from seekpoint.postgres.user_code_time import Stopwatch


class ConnectionSocket:
    """The socket of one session's current connection."""

    def __init__(self, stopwatch: Stopwatch | None = None) -> None:
        self._stopwatch = stopwatch or Stopwatch()
        self._lock = threading.Lock()
        self._driver: Any = None
        self._socket: socket.socket | None = None
        self.is_cut = False

    def connected(self, driver: psycopg.Connection[Any]) -> None:
        """The session has this connection now. Raises psycopg.OperationalError once it was cut."""
        with self._lock:
            if self.is_cut:
                raise psycopg.OperationalError("the worker has ended: it was not done when its grace was over")
            self._forget()
            self._driver = driver
            self._driver.wait = partial(self._stopwatch.wait, self._driver.wait)
            # A duplicate: the driver's own descriptor may be another file's by the time it is cut.
            self._socket = socket.socket(fileno=os.dup(driver.fileno()))

    def disconnected(self) -> None:
        """The session has returned or dropped the connection."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
            del self._driver.wait  # the class's own method shows again
        self._socket = self._driver = None

    def cut(self) -> None:
        """Shut the connection down, from another thread: a wait on it, or a later use, raises an error.

        The server rolls the transaction back. The session gets no other connection afterwards.
        """
        with self._lock:
            self.is_cut = True
            if self._socket is not None:
                with suppress(OSError):  # the server has closed it
                    self._socket.shutdown(socket.SHUT_RDWR)
