"""What docs/reference/schema.md says of tables and rights is what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine, Table, create_engine, make_url, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.pool import NullPool

from seekpoint import schema
from seekpoint.ledger import Attempt, Expected, GroupLedger, Move, tables
from seekpoint.ledger.dead_letters import DeadLetters, Where
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "schema.md").read_text(encoding="utf-8")
FAILURE = Failure(Cause.POISON, "Poison: a test")
SHORT = {"TIMESTAMP WITH TIME ZONE": "timestamptz"}


@pytest.mark.parametrize("table", tables.metadata.sorted_tables, ids=lambda table: str(table.name))
def test_every_column_is_described_as_it_is(table: Table) -> None:
    section = PAGE.split(f"### `{table.name}`\n", 1)[1].split("\n#", 1)[0]
    described = re.findall(r"^\| `(\w+)` \| (\S+) \| (yes|no) \| (.+) \|$", section, re.MULTILINE)
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    types = [str(column.type.compile(dialect)) for column in table.columns]
    assert [row[:3] for row in described] == [
        (column.name, SHORT.get(kind, kind.lower()), "yes" if column.nullable else "no")
        for column, kind in zip(table.columns, types, strict=True)
    ]


@pytest.fixture
def worker_url(engine: Engine, database_url: str) -> Iterator[str]:
    """URL of a role that has the rights of the page's first block on rights, and no others."""
    schema.upgrade(engine)
    role = f"worker_{make_url(database_url).database}"
    grants = re.search(r"## Rights\n.*?```sql\n(.*?)```", PAGE, re.DOTALL)
    assert grants is not None
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'a test alone'"))
        connection.execute(text(grants[1].replace("TO worker", f"TO {role}")))
    yield make_url(database_url).set(username=role, password="a test alone").render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {role} CASCADE"))
        connection.execute(text(f"DROP ROLE {role}"))


def test_the_rights_suffice_for_a_worker_and_its_operator(worker_url: str) -> None:
    engine = create_engine(worker_url, poolclass=NullPool)
    with engine.connect() as connection:
        schema.check(connection)
    ledger = GroupLedger(engine, "billing", tables=["orders"])
    here, topic = Partition("orders", 0), uuid4()
    topics, dead_letters = {"orders": topic}, DeadLetters(ledger)
    claimed = ledger.claim([here], topics, cluster_id="one", start=lambda _: {here: 0})
    claim = claimed.granted[here]
    with engine.begin() as tx:
        held = ledger.hold(tx, [Expected(claim, 0)])
        dead_letters.insert(
            tx, [NewDeadLetter(RawRecord("orders", 0, 9, None, b"k", b"v"), FAILURE, State.DEAD_LETTERED)], topics, 1
        )
        (claim,) = ledger.advance(tx, [Move(claim, 0, 10, None, None)], held)
        ledger.record_attempts(tx, [(claim, Attempt(10, 1, "ValueError", 5.0))])
    ledger.record_attempts_alone([(claim, Attempt(10, 2))])
    with engine.begin() as tx:
        assert dead_letters.open_keys(tx, [here]) == {(here, b"k"): (9, State.DEAD_LETTERED)}
        [dead_letter] = dead_letters.list(Where())
        dead_letters.failed_again(tx, dead_letters.lock(tx, dead_letter.id), FAILURE)
        dead_letters.close(tx, dead_letter, State.REPLAYED, "alice", "a test")
    ledger.reset_offset("orders", 0, 20, log=None, reason="a test", lost="a test gave them up")
    ledger.pause(reason="a test")
    ledger.resume()
    ledger.release([claim])
    assert [position.next_offset for position in ledger.read()] == [20]


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM seekpoint.partition_offset", "UPDATE seekpoint.admin_action SET reason = 'none'",
     "DELETE FROM seekpoint.lost_range", "DELETE FROM seekpoint.dead_letter",
     "UPDATE seekpoint.alembic_version SET version_num = '9999'",
     "CREATE TABLE seekpoint.more ()"],
)  # fmt: skip
def test_the_rights_are_no_more_than_that(worker_url: str, statement: str) -> None:
    engine = create_engine(worker_url, poolclass=NullPool)
    with engine.begin() as connection, pytest.raises(ProgrammingError) as caught:
        connection.execute(text(statement))
    assert isinstance(caught.value.orig, psycopg.errors.InsufficientPrivilege)
