"""The workers of a run ask its first process for servers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from seekpoint.testing import pytest_plugin

WORKERS = 32


def test_workers_that_ask_at_once_are_all_answered() -> None:
    """With a shorter backlog the kernel dropped connections that workers believed to have: the run never ended."""
    servers: Any = pytest_plugin._Servers(print)
    servers._starts = {"kafka": lambda: SimpleNamespace(bootstrap="broker:9092", close=lambda: None)}
    address = servers.serve()
    together = threading.Barrier(WORKERS)

    def ask(_: int) -> str:
        together.wait()
        return pytest_plugin._Elsewhere(*address).address_of("kafka")

    with ThreadPoolExecutor(WORKERS) as workers:
        assert set(workers.map(ask, range(WORKERS))) == {"broker:9092"}
    servers.close()
