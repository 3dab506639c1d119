"""Each migration test gets a database of its own: what is asked about here is whole databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from migrations.test_host import Host


@pytest.fixture
def host(tmp_path: Path, database_url: str) -> Host:
    """A project with an Alembic of its own on that database."""
    return Host(tmp_path, database_url)


@pytest.fixture
def engine(database_url: str) -> Engine:
    """An engine on that database, which keeps no connection open."""
    return create_engine(database_url, poolclass=NullPool)
