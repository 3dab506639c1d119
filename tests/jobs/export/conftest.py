"""The vault on the shared servers."""

from __future__ import annotations

import pytest

from support.archive import Vault


@pytest.fixture
def vault(request: pytest.FixtureRequest) -> Vault:
    return Vault.on_shared_servers(request.getfixturevalue)
