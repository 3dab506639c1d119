"""``sd_notify``: reports to systemd that the process runs, is live, or ends (``Type=notify``, ``WatchdogSec=``)."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

EVERY = 1.0  # seconds between two checks, unless the watchdog needs shorter intervals


def notify(message: str) -> None:
    """Send one message to systemd; does nothing without ``NOTIFY_SOCKET``, and never raises."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        out.settimeout(1.0)
        out.connect("\0" + address[1:] if address.startswith("@") else address)
        out.sendall(message.encode())


@contextmanager
def notifying(live: Callable[[], bool]) -> Iterator[None]:
    """Within the block, send READY once ``live()`` is true, then WATCHDOG as long as it is true."""
    if not os.environ.get("NOTIFY_SOCKET"):
        yield
        return
    watchdog = os.environ.get("WATCHDOG_USEC", "")
    every = min(EVERY, int(watchdog) / 3e6) if watchdog.isdigit() and int(watchdog) else EVERY
    ended = threading.Event()

    def report() -> None:
        is_ready = False
        while not ended.wait(every):
            if live():
                notify("WATCHDOG=1" if is_ready else "READY=1\nWATCHDOG=1")
                is_ready = True

    thread = threading.Thread(target=report, name="seekpoint-systemd", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
