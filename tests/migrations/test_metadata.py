"""The tables that the statements know (``seekpoint.ledger.tables``) are the tables that the migrations build."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, Table, inspect, text
from sqlalchemy.schema import CreateSchema

from seekpoint import schema
from seekpoint.ledger import tables


def metadata_in(name: str) -> MetaData:
    moved = MetaData(naming_convention=tables.metadata.naming_convention)
    for table in tables.metadata.sorted_tables:
        table.to_metadata(moved, schema=name)
    return moved


def differences(connection: Connection, name: str) -> list[Any]:
    """What autogenerate would change so that the schema ``name`` matches the metadata."""
    theirs = schema.not_ours(name)
    options = {
        "include_schemas": True,
        "include_name": lambda *asked: not theirs(*asked),
        "version_table_schema": name,
        "compare_server_default": True,
    }
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata_in(name)))


CATALOG = {
    "columns": """
        SELECT c.table_name, c.ordinal_position, c.column_name, c.data_type, c.udt_name, c.is_nullable,
               c.column_default, c.identity_generation,
               col_description(format('%I.%I', c.table_schema, c.table_name)::regclass, c.ordinal_position)
        FROM information_schema.columns c WHERE c.table_schema = :name
              AND c.table_name NOT IN ('alembic_version', 'lag', 'group_status', 'partition_state')""",
    "constraints": """
        SELECT c.relname, k.conname, replace(pg_get_constraintdef(k.oid), quote_ident(:name) || '.', '')
        FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
        WHERE k.connamespace = quote_ident(:name)::regnamespace AND c.relname <> 'alembic_version'""",
    "indexes": """
        SELECT tablename, indexname, replace(indexdef, quote_ident(:name) || '.', '')
        FROM pg_indexes WHERE schemaname = :name AND tablename <> 'alembic_version'""",
}


def catalog(connection: Connection, name: str) -> dict[str, set[tuple[Any, ...]]]:
    """What Postgres itself says of a schema: more than autogenerate looks at."""
    asked = {part: connection.execute(text(query), {"name": name}) for part, query in CATALOG.items()}
    return {part: {tuple(row) for row in rows} for part, rows in asked.items()}


def storage(connection: Connection, name: str) -> dict[str, dict[str, str]]:
    rows = connection.execute(
        text(
            "SELECT relname, reloptions FROM pg_class "
            "WHERE relnamespace = quote_ident(:name)::regnamespace AND relkind = 'r' AND reloptions IS NOT NULL"
        ),
        {"name": name},
    )
    return {table: dict(option.split("=") for option in options) for table, options in rows}


@pytest.mark.parametrize("name", ["seekpoint", 'Odd "name"; 100% a.b:c'])
def test_autogenerate_finds_nothing_to_change(engine: Engine, name: str) -> None:
    schema.upgrade(engine, schema=name)
    with engine.connect() as connection:
        assert differences(connection, name) == []


def test_autogenerate_would_find_a_changed_column_or_default(engine: Engine) -> None:
    schema.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE seekpoint.lost_range ALTER from_offset TYPE int"))
        connection.execute(text("ALTER TABLE seekpoint.consumer_group ALTER version SET DEFAULT 2"))
        different = [difference for group in differences(connection, "seekpoint") for difference in group]
    assert sorted((kind, table, column) for kind, _, table, column, *_ in different) == [
        ("modify_default", "consumer_group", "version"),
        ("modify_type", "lost_range", "from_offset"),
    ]


def test_metadata_and_migrations_make_the_same_catalog(engine: Engine) -> None:
    """Autogenerate compares neither primary keys nor checks nor the order of columns; Postgres' catalog has all."""
    schema.upgrade(engine, schema="migrated")
    with engine.begin() as connection:
        connection.execute(CreateSchema("declared"))
        metadata_in("declared").create_all(connection)
        migrated, declared = catalog(connection, "migrated"), catalog(connection, "declared")
    assert migrated == declared
    assert all(migrated.values()), "the queries found something to compare"


def test_storage_parameters_are_those_of_the_metadata(engine: Engine) -> None:
    schema.upgrade(engine, schema="stored")
    with engine.connect() as connection:
        parameters = storage(connection, "stored")
    declared = {table.name: table.info["storage"] for table in tables.metadata.tables.values() if table.info}
    assert parameters == declared
    assert parameters["partition_offset"]["fillfactor"] == "50", "updates of the hot row must stay HOT"


def test_only_tables_indexes_and_views_are_made(engine: Engine) -> None:
    schema.upgrade(engine)
    with engine.connect() as connection:
        kinds = connection.scalars(
            text("SELECT DISTINCT relkind::text FROM pg_class WHERE relnamespace = 'seekpoint'::regnamespace")
        ).all()
        functions = connection.scalar(
            text("SELECT count(*) FROM pg_proc WHERE pronamespace = 'seekpoint'::regnamespace")
        )
        triggers = connection.scalar(text("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal"))
    assert set(kinds) == {"r", "i", "S", "v"}, "tables, indexes, views, and the sequences of identity columns"
    assert (functions, triggers) == (0, 0)


@pytest.mark.parametrize("view", tables.lag.metadata.sorted_tables, ids=lambda view: str(view.name))
def test_views_have_the_columns_of_the_metadata(engine: Engine, view: Table) -> None:
    schema.upgrade(engine)
    with engine.connect() as connection:
        columns = inspect(connection).get_columns(view.name, schema="seekpoint")
    assert {column["name"]: column["type"].compile(connection.dialect) for column in columns} == {
        column.name: column.type.compile(connection.dialect) for column in view.columns
    }


def test_the_hot_row_has_no_index_but_its_key(engine: Engine) -> None:
    schema.upgrade(engine)
    with engine.connect() as connection:
        assert inspect(connection).get_indexes("partition_offset", schema="seekpoint") == []


def test_the_revisions_form_one_line_that_ends_at_head() -> None:
    folder = schema.version_location()
    scripts = ScriptDirectory(str(folder.parent))
    line = [script.revision for script in scripts.walk_revisions()]
    assert line[0] == schema.HEAD
    assert line == sorted(line, reverse=True), "ids sort in the order in which they follow one another"
    assert all(len(revision) == 4 and revision.isdigit() for revision in line)
    assert {path.name[:4] for path in folder.glob("[0-9]*.py")} == set(line), "a file is named after its revision"


def test_the_maintainers_alembic_agrees(engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.upgrade(engine)
    monkeypatch.setenv("SEEKPOINT_DATABASE_URL", database_url)
    output = StringIO()
    command.check(Config(schema.version_location().parent / "alembic.ini", stdout=output))
    assert "No new upgrade operations" in output.getvalue()
