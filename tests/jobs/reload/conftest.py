"""The shop with its records applied."""

from __future__ import annotations

import pytest

from support.before_cutover import FIRST, settled
from support.reload_orders import Shop


@pytest.fixture
def full(shop: Shop, request: pytest.FixtureRequest) -> Shop:
    """The shop after version 1 has applied the test module's RECORDS, or FIRST."""
    settled(shop, getattr(request.module, "RECORDS", FIRST))
    return shop
