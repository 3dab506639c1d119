"""Tests of the compiled part. Without it there are none here; tests/unit/test_native.py is run with and without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from seekpoint.sinks.native import PLAN
from seekpoint.sinks.native.driver_checks import is_exact

collect_ignore_glob = ["test_*.py"] if PLAN is None else []


@pytest.fixture
def sent() -> Iterator[list[bool]]:
    """For each chunk that was encoded in this process: whether its text was sent."""
    found: list[bool] = []

    def asked(*given: Any) -> bool:
        found.append(exact := is_exact(*given))
        return exact

    with patch("seekpoint.sinks.copy.is_exact", asked):
        yield found
