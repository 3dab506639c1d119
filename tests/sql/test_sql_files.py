"""The ledger's statements in files: the server accepts each, each is used, and what they repeat is what tables say."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.schema import DropSchema

from seekpoint import schema
from seekpoint.admin import Admin
from seekpoint.ledger import sql
from seekpoint.ledger.sql import Query, arrays
from seekpoint.ledger.tables import RELOAD_CLOSED
from seekpoint.postgres.round_trip import numbered
from support.failures import for_each

FOLDER = Path(sql.__file__).parent
SOURCE = Path(sql.__file__).parents[2]
FILES = {file.stem: sql.load(file.name) for file in FOLDER.glob("*.sql")}
QUERIES = [(stem, query) for stem, queries in FILES.items() for query in queries.values()]


@for_each(QUERIES)
def test_the_server_accepts_each_statement(
    case: tuple[str, Query], seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    """Its syntax, its tables and columns, and the types of its parameters."""
    with seekpoint_engine.connect() as tx:
        query, names = numbered(case[1].in_schema(seekpoint_schema))
        tx.connection.cursor().execute(f"PREPARE of_file AS {query}".encode())
        types = tx.execute(text("SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'of_file'"))
        assert len(types.scalar_one()) == len(names)
        tx.connection.cursor().execute(b"DEALLOCATE of_file")


def test_each_statement_is_used_and_each_that_is_used_is_there() -> None:
    used = {
        (found[1], found[2])
        for file in SOURCE.rglob("*.py")
        for found in re.finditer(r'\b([A-Z_]+)\["([a-z_]+)"\]', file.read_text(encoding="utf-8"))
        if found[1].lower() in FILES
    }
    assert used == {(stem.upper(), query.name) for stem, query in QUERIES}


def test_lines_are_as_long_as_those_of_code() -> None:
    lines = [line for file in FOLDER.glob("*.sql") for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if len(line) > 120] == []


def test_a_file_lists_the_states_of_a_closed_run_as_the_tables_do() -> None:
    closed = ", ".join(f"'{state}'" for state in RELOAD_CLOSED)
    lists = [
        (query.name, found[1])
        for _, query in QUERIES
        for found in re.finditer(r"state NOT IN \(([^)]*'cut_over'[^)]*)\)", query.text)
    ]
    assert lists
    assert [name for name, states in lists if states != closed] == []


def test_two_ledgers_of_one_process_are_in_schemas_whose_names_are_quoted(seekpoint_engine: Engine) -> None:
    names = [f"{name} {secrets.token_hex(6)}" for name in ('two "words" and 100%', "Seekpoint.other")]
    for number, name in enumerate(names):
        schema.upgrade(seekpoint_engine, schema=name)
        with seekpoint_engine.begin() as tx:
            quoted = '"' + name.replace('"', '""') + '"'
            tx.execute(text(f"INSERT INTO {quoted}.consumer_group (name) VALUES ('of {number}')"))
    for number, name in enumerate(names):
        groups, _ = Admin(seekpoint_engine, schema=name).groups()
        assert [each.name for each in groups] == [f"of {number}"]
        with seekpoint_engine.begin() as tx:
            tx.execute(DropSchema(name, cascade=True))


def test_rows_become_an_array_for_each_column() -> None:
    assert arrays([("t", 0), ("u", 1)], "topic", "partition") == {"topic": ["t", "u"], "partition": [0, 1]}
    assert arrays([], "topic", "partition") == {"topic": [], "partition": []}


def test_a_name_that_no_file_has_is_an_error() -> None:
    with pytest.raises(KeyError):
        sql.STATUS["nothing"]
