"""Each migration test gets a database of its own: what is asked about here is whole databases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from migrations.test_host import Host
from seekpoint import schema
from seekpoint.ledger import schema_revision


@pytest.fixture
def host(tmp_path: Path, database_url: str) -> Host:
    """A project with an Alembic of its own on that database."""
    return Host(tmp_path, database_url)


@pytest.fixture
def engine(database_url: str) -> Engine:
    """An engine on that database, which keeps no connection open."""
    return create_engine(database_url, poolclass=NullPool)


@pytest.fixture
def second_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The scripts have a second revision, which this library, of the first one, does not ask for. Its id."""
    package = tmp_path / "next" / "seekpoint"
    shutil.copytree(schema.version_location().parent, package / "migrations")
    script = Path(__file__).with_name("next_release") / "0002_notes.py"
    shutil.copy(script, package / "migrations" / "versions")
    monkeypatch.setattr(schema, "__file__", str(package / "schema.py"))
    return "0002"


@pytest.fixture
def second_revision(second_script: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """This library is the next release, whose tables are those of the second revision. Its id."""
    monkeypatch.setattr(schema, "HEAD", second_script)
    monkeypatch.setattr(schema_revision, "HEAD", second_script)
    return second_script
