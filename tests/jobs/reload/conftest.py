"""The group with its records applied."""

from __future__ import annotations

import pytest

from support.before_cutover import FIRST, settled
from support.reload_orders import OrdersGroup


@pytest.fixture
def applied_group(orders_group: OrdersGroup, request: pytest.FixtureRequest) -> OrdersGroup:
    """The group after version 1 has applied the test module's RECORDS, or FIRST."""
    settled(orders_group, getattr(request.module, "RECORDS", FIRST))
    return orders_group
