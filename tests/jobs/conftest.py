"""A shop and an archive on the shared servers."""

from __future__ import annotations

import pytest

from support.archive import Vault
from support.reload_orders import Shop


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop.on_shared_servers(request.getfixturevalue)


@pytest.fixture
def vault(request: pytest.FixtureRequest) -> Vault:
    return Vault.on_shared_servers(request.getfixturevalue)
