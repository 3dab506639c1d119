"""A group and an archive on the shared servers."""

from __future__ import annotations

import pytest

from support.archive import ArchivedGroup
from support.reload_orders import OrdersGroup


@pytest.fixture
def orders_group(request: pytest.FixtureRequest) -> OrdersGroup:
    return OrdersGroup.on_shared_servers(request.getfixturevalue)


@pytest.fixture
def archived_group(request: pytest.FixtureRequest) -> ArchivedGroup:
    return ArchivedGroup.on_shared_servers(request.getfixturevalue)
