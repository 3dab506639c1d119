"""Work on a separate thread during a ``with`` block."""

from __future__ import annotations

import threading
from typing import Self


class Background:
    """Runs :meth:`_run` on a thread; the end of the block sets ``_stop``, and waits until the thread has ended."""

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
