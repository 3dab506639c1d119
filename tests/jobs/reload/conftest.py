"""The shop on the shared servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.before_cutover import FIRST, settled
from support.handler_reload import Books
from support.reload_orders import Shop


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop.on_shared_servers(request.getfixturevalue)


@pytest.fixture
def full(shop: Shop, request: pytest.FixtureRequest) -> Shop:
    """The shop after version 1 has applied the test module's RECORDS, or FIRST."""
    settled(shop, getattr(request.module, "RECORDS", FIRST))
    return shop


@pytest.fixture
def books(shop: Shop) -> Iterator[Books]:
    """The shop, with a handler instead of sinks."""
    made = Books.of(shop)
    yield made
    made.engine.dispose()
