"""Serves the console with uvicorn, on a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from seekpoint.admin import Admin
from seekpoint.errors import ConfigError
from seekpoint.web.app import create_app


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Keep the program's handlers."""


@contextmanager
def serving(admin: Admin, host: str, port: int, **options: Any) -> Iterator[str]:
    """Serve ``create_app(admin, **options)`` within the block; yields its address. Port 0: a free one.

    Raises ConfigError if the address is not free.
    """
    family, shown = (socket.AF_INET6, f"[{host}]") if ":" in host else (socket.AF_INET, host)
    try:
        listening = socket.create_server((host, port), family=family)  # from now on connections wait until served
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]  # Python's own addition repeats the address
        raise ConfigError(f"the address {shown}:{port} is not free: {why}; choose another address or port") from None
    config = uvicorn.Config(create_app(admin, **options), log_level="warning", proxy_headers=False)
    server = _Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="seekpoint-console")
    thread.start()
    try:
        yield f"http://{shown}:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
