"""The group of the commands' terminal."""

from __future__ import annotations

import pytest

from support.before_cutover import settled
from support.cli_jobs import FIRST, Terminal
from support.reload_orders import OrdersGroup


@pytest.fixture
def orders_group(terminal: Terminal) -> OrdersGroup:
    """The group, with its first records applied by version 1."""
    settled(terminal.orders_group, FIRST)
    return terminal.orders_group
