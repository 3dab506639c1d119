"""The schema that the tests of a process share: each finds the ledger's tables as they were made, without rows."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.errors import LockNotAvailable

from seekpoint.ledger.schema_revision import HEAD
from seekpoint.testing import ledger_schema
from seekpoint.testing.ledger_schema import LedgerSchema
from support.databases import libpq

_LEFT = """
CREATE TABLE parent (id serial PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE child PARTITION OF parent DEFAULT;
CREATE VIEW shown AS SELECT * FROM child;
CREATE MATERIALIZED VIEW stored AS SELECT * FROM shown;
CREATE SEQUENCE numbers;
CREATE TYPE pair AS (a int, b int);
CREATE TYPE mood AS ENUM ('good');
CREATE DOMAIN short AS varchar(3);
CREATE TYPE span AS RANGE (subtype = int);
CREATE FUNCTION one(pair) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE PROCEDURE two(p int) LANGUAGE sql AS 'SELECT 1';
"""
_CHANGES = [
    "ALTER TABLE worker ADD COLUMN more int",
    "ALTER TABLE worker DROP COLUMN trouble CASCADE",
    "ALTER TABLE worker ALTER COLUMN state SET DEFAULT 'm'",
    "ALTER VIEW lag RENAME TO other",
    "CREATE INDEX ON admin_action (at)",
    "DROP INDEX admin_action_reset_idx",
    "GRANT SELECT ON worker TO PUBLIC",
    "CREATE POLICY p ON worker",
    "ALTER TABLE worker ADD CHECK (true)",
    "CREATE TRIGGER t BEFORE UPDATE ON worker EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "DROP VIEW lag CASCADE",
    "CREATE RULE r AS ON DELETE TO lag DO INSTEAD NOTHING",
    "DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO PUBLIC', current_schema()); END $$",
    "DO $$ BEGIN EXECUTE format('DROP SCHEMA %I CASCADE', current_schema()); END $$",
]
_OBJECTS = "SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass AND refobjid = %s::regnamespace"


class LentSchema:
    """A schema of the test's own, and a session that uses it as tests do."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.schema = dsn, LedgerSchema()
        self.session = psycopg.connect(dsn, autocommit=True)

    def prepare(self) -> str:
        """Give it to the next test; returns its name, which is the session's search path."""
        self.schema.prepare(self.dsn)
        name = self.schema.lend()
        self.session.execute(f"SET search_path = {name}".encode())
        return name

    def scalar(self, query: str, *values: object) -> object:
        row = self.session.execute(query.encode(), values).fetchone()
        assert row is not None
        return row[0]


@pytest.fixture
def lent_schema(seekpoint_dsn: str) -> Iterator[LentSchema]:
    lent_schema = LentSchema(libpq(seekpoint_dsn))
    yield lent_schema
    lent_schema.session.close()
    lent_schema.schema.remove(lent_schema.dsn)


def write(lent_schema: LentSchema) -> None:
    lent_schema.session.execute("INSERT INTO consumer_group (name) VALUES ('g')")
    lent_schema.session.execute(
        "INSERT INTO admin_action (consumer_group, action, actor, reason) VALUES ('g', 'a', 'b', 'c')"
    )


def test_what_a_test_wrote_and_made_is_removed_and_the_tables_stay(lent_schema: LentSchema) -> None:
    name = lent_schema.prepare()
    before = lent_schema.scalar(_OBJECTS, name)
    for _ in range(2):
        write(lent_schema)
        assert lent_schema.scalar("SELECT id FROM admin_action") == 1, "its sequence begins again"
        lent_schema.session.execute("UPDATE alembic_version SET version_num = 'none'")
        lent_schema.session.execute(_LEFT.encode())
        lent_schema.schema.empty()
        assert lent_schema.prepare() == name
        assert lent_schema.scalar(_OBJECTS, name) == before
        assert (
            lent_schema.scalar("SELECT (SELECT count(*) FROM consumer_group) + (SELECT count(*) FROM admin_action)")
            == 0
        )
        assert lent_schema.scalar("SELECT version_num FROM alembic_version") == HEAD


@pytest.mark.long
def test_tables_that_a_test_changed_are_made_again(lent_schema: LentSchema) -> None:
    unnoticed = []
    for change in _CHANGES:
        name = lent_schema.prepare()
        lent_schema.session.execute(change.encode())
        lent_schema.schema.empty()
        assert lent_schema.scalar("SELECT count(*) FROM pg_namespace WHERE nspname = %s", name) == int(
            lent_schema.schema.is_made
        )
        if lent_schema.schema.is_made:
            unnoticed.append(change)
    assert not unnoticed
    lent_schema.prepare()
    write(lent_schema)


def test_what_a_test_changes_without_the_tables_is_found_by_the_next_one(lent_schema: LentSchema) -> None:
    """It has asked for the schema's name alone: nothing is emptied after it."""
    name = lent_schema.prepare()
    lent_schema.schema.empty()
    for change in ("CREATE TABLE left_behind ()", "ALTER TABLE worker ADD COLUMN more int"):
        assert lent_schema.schema.lend() == name
        lent_schema.session.execute(change.encode())
        lent_schema.prepare()
        assert lent_schema.scalar("SELECT to_regclass('left_behind') IS NULL") is True
        assert "more" not in str(
            lent_schema.scalar("SELECT array_agg(attname) FROM pg_attribute WHERE attrelid = 'worker'::regclass")
        )


def test_a_session_that_a_test_ended_is_replaced(lent_schema: LentSchema) -> None:
    name = lent_schema.prepare()
    lent_schema.schema.empty()
    ended = (
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid()"
    )
    for use in (lent_schema.prepare, lent_schema.schema.empty):
        lent_schema.schema.lend()
        assert lent_schema.scalar(ended, f"%{name}%") is True
        use()
    assert lent_schema.prepare() == name


def test_a_transaction_that_a_test_left_open_is_an_error(
    lent_schema: LentSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_schema, "_LOCK_TIMEOUT", "100ms")
    name = lent_schema.prepare()
    write(lent_schema)
    with psycopg.connect(lent_schema.dsn) as open_one:
        open_one.execute(f"SELECT FROM {name}.admin_action FOR UPDATE".encode())
        with pytest.raises(LockNotAvailable):
            lent_schema.schema.empty()
        assert lent_schema.prepare() != name, "the next test does not wait for it"
    assert lent_schema.scalar("SELECT count(*) FROM admin_action") == 0
    lent_schema.schema.remove(lent_schema.dsn)
    assert lent_schema.scalar("SELECT count(*) FROM pg_namespace WHERE nspname = %s", name) == 0
