"""Prometheus' own programs: from the path, or of Debian's package, which `make monitoring` unpacks.

A run of all tests leaves out what needs them where they are not there; `make monitoring` fails without them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.docs_pages import ROOT

UNPACKED = ROOT / ".venv" / "prometheus" / "root" / "usr" / "bin"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SEEKPOINT_REQUIRE_MONITORING"):
        return
    missing = {name for name in ("promtool", "prometheus") if _path(name) is None}
    left_out = [item for item in items if missing.intersection(getattr(item, "fixturenames", ()))]
    if left_out:
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{UNPACKED}")


def _program(name: str) -> Path:
    path = _path(name)
    if path is None:
        pytest.fail(f"{name} is not here: `make monitoring` gets Debian's package of it, where there is apt")
    return Path(path)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The program that checks and tests rules."""
    return _program("promtool")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The server."""
    return _program("prometheus")
