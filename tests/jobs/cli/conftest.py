"""The shop of the commands' terminal."""

from __future__ import annotations

import pytest

from support.before_cutover import settled
from support.cli_jobs import FIRST, Terminal
from support.reload_orders import Shop


@pytest.fixture
def shop(terminal: Terminal) -> Shop:
    """The shop, with its first records applied by version 1."""
    settled(terminal.shop, FIRST)
    return terminal.shop
