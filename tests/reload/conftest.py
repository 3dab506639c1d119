"""The shop on the shared servers."""

from __future__ import annotations

import pytest

from shop import Shop


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Shop:
    """A group of its own with tables beside the ledger's, and a topic of two partitions."""
    get = request.getfixturevalue
    made = Shop(
        get("seekpoint_engine"),
        get("seekpoint_broker"),
        get("seekpoint_schema"),
        get("group"),
        get("topic")(2),
        get("run_worker"),
        get("produce"),
    )
    made.make_tables()
    return made
