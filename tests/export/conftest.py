"""The vault on the shared servers."""

from __future__ import annotations

import pytest

from vault import Vault


@pytest.fixture
def vault(request: pytest.FixtureRequest) -> Vault:
    return Vault.on_shared_servers(request.getfixturevalue)
