"""Work on a thread of its own, for the length of a ``with`` block."""

from __future__ import annotations

import threading
from typing import Self


class Background:
    """Runs :meth:`_run` until ``_stop`` is set, which the end of the block does; it waits for the thread's end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def _run(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
