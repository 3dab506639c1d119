"""A shop, books and an archive on the shared servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.archive import Vault
from support.handler_reload import Books
from support.reload_orders import Shop


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop.on_shared_servers(request.getfixturevalue)


@pytest.fixture
def books(shop: Shop) -> Iterator[Books]:
    """The shop, with a handler instead of sinks."""
    made = Books.of(shop)
    yield made
    made.engine.dispose()


@pytest.fixture
def vault(request: pytest.FixtureRequest) -> Vault:
    return Vault.on_shared_servers(request.getfixturevalue)
