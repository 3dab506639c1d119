"""The socket of a worker's connection: another thread can cut it, and waits on it are not users' code's time."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg

from seekpoint.postgres.user_code_time import Stopwatch


class Wire:
    """Follows one session's connections, one after another."""

    def __init__(self, stopwatch: Stopwatch | None = None) -> None:
        self._stopwatch = stopwatch or Stopwatch()
        self._lock = threading.Lock()
        self._driver: Any = None
        self._socket: socket.socket | None = None
        self.is_cut = False

    def connected(self, driver: psycopg.Connection[Any]) -> None:
        """The session has this connection now. Raises psycopg.OperationalError once the wire is cut."""
        with self._lock:
            if self.is_cut:
                raise psycopg.OperationalError("the worker has ended: it was not done when its grace was over")
            self._forget()
            self._driver = driver
            self._driver.wait = partial(self._stopwatch.wait, self._driver.wait)
            # A duplicate: the number of the driver's own may be another file's by the time it is cut.
            self._socket = socket.socket(fileno=os.dup(driver.fileno()))

    def disconnected(self) -> None:
        """The session gives the connection back, or throws it away."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
            del self._driver.wait  # what hid the class's
        self._socket = self._driver = None

    def cut(self) -> None:
        """Close the connection for both sides, from another thread: who waits on it or uses it later gets an error.

        The server ends the transaction. There is no other connection afterwards.
        """
        with self._lock:
            self.is_cut = True
            if self._socket is not None:
                with suppress(OSError):  # the server was quicker
                    self._socket.shutdown(socket.SHUT_RDWR)
