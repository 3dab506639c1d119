"""Prometheus' own programs: from the path, or of Debian's package, which `make monitoring` unpacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.docs_pages import ROOT

UNPACKED = ROOT / ".venv" / "prometheus" / "root" / "usr" / "bin"


def _program(name: str) -> Path:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{UNPACKED}")
    if found is None:
        missing = f"{name} is not here: `make monitoring` gets Debian's package of it, where there is apt"
        (pytest.fail if os.environ.get("SEEKPOINT_REQUIRE_MONITORING") else pytest.skip)(missing)
    return Path(found)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The program that checks and tests rules."""
    return _program("promtool")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The server."""
    return _program("prometheus")
