"""The shop on the shared servers."""

from __future__ import annotations

import pytest

from support.reload_orders import Shop


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop.on_shared_servers(request.getfixturevalue)
