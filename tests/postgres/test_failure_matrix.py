"""Every kind of failure, on every path, under every policy: where the record ends, and what becomes of the others.

``python tests/failures/table.py`` runs the same and prints the table.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.schema import DropSchema

from failures.judge import judge, prepare
from failures.kinds import KINDS, Kind
from seekpoint import schema
from seekpoint.pipeline.policy import OnPoison
from support.every_row import check_each
from support.sink_tables import SinkTables


@pytest.fixture(scope="module")
def sink_tables(seekpoint_dsn: str) -> Iterator[SinkTables]:
    """One schema for all of them: each case has tables and a group of its own."""
    name, engine = f"seekpoint_{secrets.token_hex(6)}", create_engine(seekpoint_dsn)
    try:
        schema.upgrade(engine, schema=name)
        sink_tables = SinkTables(engine, name)
        prepare(sink_tables)
        yield sink_tables
        with engine.begin() as tx:
            tx.execute(text("SET LOCAL lock_timeout = '10s'"))
            tx.execute(DropSchema(name, cascade=True, if_exists=True))
    finally:
        engine.dispose()


# A part has two ways of writing under two policies; all of a kind's parts together have each way under each policy.
PARTS = [(kind, part) for kind in KINDS for part in range(min(9, len(kind.strategies) * len(OnPoison)))]


@pytest.mark.repeats("part")
@pytest.mark.parametrize(("kind", "part"), PARTS, ids=str)
def test_where_a_record_ends(sink_tables: SinkTables, kind: Kind, part: int) -> None:
    policies = list(OnPoison)
    cases = [
        (strategy, policies[(number + turn) % len(policies)])
        for turn in range(len(policies))
        for number, strategy in enumerate(kind.strategies)
    ]
    check_each(
        cases[part::9],
        lambda case: judge(sink_tables, kind, *case, f"t_{secrets.token_hex(5)}"),
        lambda case: f"{case[0]}, {case[1].value}",
    )
