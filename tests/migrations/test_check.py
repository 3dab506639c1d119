"""A worker must refuse a ledger that is missing, older or newer: the message names both revisions and the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, inspect, text

from seekpoint import schema
from seekpoint.errors import SchemaMismatch


def stamp(engine: Engine, *revisions: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM seekpoint.alembic_version"))
        for revision in revisions:
            connection.execute(text("INSERT INTO seekpoint.alembic_version VALUES (:it)"), {"it": revision})


def complaint(engine: Engine, name: str = "seekpoint") -> str:
    with engine.connect() as connection, pytest.raises(SchemaMismatch) as caught:
        schema.check(connection, name)
    return str(caught.value)


def test_missing(engine: Engine) -> None:
    message = complaint(engine)
    assert "schema 'seekpoint' has no ledger tables" in message
    assert f"needs revision {schema.HEAD}" in message
    assert "run `seekpoint db upgrade`" in message


def test_missing_under_another_name_the_command_is_ready_to_paste(engine: Engine) -> None:
    schema.upgrade(engine)
    assert """`seekpoint db upgrade --schema 'my ledger'`""" in complaint(engine, "my ledger")


@pytest.mark.parametrize("empty", [schema.downgrade, stamp], ids=["no tables", "no version"])
def test_an_empty_schema_is_missing_too(engine: Engine, empty: Callable[[Engine], None]) -> None:
    schema.upgrade(engine)
    empty(engine)
    assert "has no ledger tables" in complaint(engine)


def test_newer(engine: Engine) -> None:
    schema.upgrade(engine)
    stamp(engine, "9999")
    message = complaint(engine)
    assert f"at revision 9999, newer than revision {schema.HEAD}" in message
    assert "update Seekpoint to the version that migrated it" in message
    assert "db upgrade" not in message, "it would not help"


@pytest.mark.parametrize("revisions", [["3f2a9c01d7e4"], ["0001", "3f2a9c01d7e4"]])
def test_a_version_table_of_another_library(engine: Engine, revisions: list[str]) -> None:
    schema.upgrade(engine)
    stamp(engine, *revisions)
    message = complaint(engine)
    assert "3f2a9c01d7e4" in message
    assert "give the ledger a separate schema" in message


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP"])
def test_a_database_that_cannot_hold_every_error_is_refused(engine: Engine, encoding: str) -> None:
    """I1: refused at the start, not when an error with another character is stored with a dead letter."""
    with pytest.raises(SchemaMismatch) as refused:
        schema.upgrade(engine)
    for message in (str(refused.value), complaint(engine)):
        assert f"the encoding of this database is {encoding}" in message
        assert "CREATE DATABASE ... ENCODING 'UTF8'" in message
    with engine.connect() as connection:
        assert schema.current(connection) is None
        assert not inspect(connection).has_schema("seekpoint")


@pytest.mark.parametrize("encoding", ["LATIN1"])
def test_a_ledger_that_is_there_already_is_refused_too(engine: Engine, encoding: str) -> None:
    """I1: as it was built before the check existed; an operator can remove it."""
    with engine.begin() as connection:
        connection.execute(text(schema.sql()))
    with engine.begin() as connection, pytest.raises(SchemaMismatch, match=encoding):
        schema.check(connection)
    schema.downgrade(engine)


@pytest.mark.repeats("name")
@pytest.mark.parametrize("name", ["seekpoint", 'my "ledger"'])
def test_a_newer_revision_that_is_marked_as_compatible_is_accepted(engine: Engine, name: str) -> None:
    """Services that share a ledger are upgraded one after the other; the mark is of that revision alone."""

    def step(to: str, since: str, compatible_with: str | None) -> None:
        with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
            token = schema._chosen.set(name)
            try:
                with schema.step(to=to, since=since, compatible_with=compatible_with):
                    pass
            finally:
                schema._chosen.reset(token)

    schema.upgrade(engine, schema=name)
    step("9997", schema.HEAD, schema.HEAD)
    with engine.connect() as connection:
        schema.check(connection, name)
    step("9998", "9997", "9997")
    assert "newer than revision" in complaint(engine, name)
    step("9999", "9998", None)
    assert "newer than revision" in complaint(engine, name), "an earlier mark is not of this revision"
