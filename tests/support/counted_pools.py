"""Counts the connections that are checked out of the pools of a worker."""

from __future__ import annotations

import threading
from collections import Counter

from sqlalchemy import Engine, event


class CountedPools:
    """The most connections in use at one time, by the thread that took them.

    Counts those of ``engine``'s pool, and of all pools that are made from it later.
    """

    def __init__(self, engine: Engine) -> None:
        self.most = Counter[str]()
        self._in_use, self._lock = Counter[str](), threading.Lock()
        event.listen(engine, "checkout", self._taken)
        event.listen(engine, "checkin", self._returned)

    def _taken(self, _driver: object, _record: object, _proxy: object) -> None:
        thread = threading.current_thread().name
        with self._lock:
            self._in_use[thread] += 1
            self.most[thread] = max(self.most[thread], self._in_use[thread])

    def _returned(self, _driver: object, _record: object) -> None:
        with self._lock:
            self._in_use[threading.current_thread().name] -= 1
