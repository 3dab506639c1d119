"""Each migration test gets a database of its own: what is asked about here is whole databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from migrations.test_host import Host


@pytest.fixture
def encoding() -> str:
    """Of that database; to be parametrized."""
    return "UTF8"


@pytest.fixture
def database_url(seekpoint_dsn: str, encoding: str) -> Iterator[str]:
    """URL (with its password) of an empty database, dropped after the test."""
    name = f"migrations_{uuid4().hex}"
    server = create_engine(seekpoint_dsn, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"))
    yield make_url(seekpoint_dsn).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def host(tmp_path: Path, database_url: str) -> Host:
    """A project with an Alembic of its own on that database."""
    return Host(tmp_path, database_url)


@pytest.fixture
def engine(database_url: str) -> Engine:
    """An engine on that database, which keeps no connection open."""
    return create_engine(database_url, poolclass=NullPool)
