"""The shop on the shared servers."""

from __future__ import annotations

import pytest

from shop import Shop


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop.on_shared_servers(request.getfixturevalue)
