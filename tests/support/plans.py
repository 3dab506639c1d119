"""The server's plans of the ledger's statements, in a filled schema."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.schema import DropSchema

from seekpoint import schema
from seekpoint.ledger.sql import Query
from seekpoint.postgres.round_trip import positional

Plan = Mapping[str, Any]


class FilledLedger(NamedTuple):
    """A filled ledger: engine and schema."""

    engine: Engine
    schema: str


@contextmanager
def filled_ledger(
    dsn: str, tables: tuple[str, ...], fill: str, analyzed: bool, **parameters: Any
) -> Iterator[FilledLedger]:
    """Create a ledger's schema with the rows of ``fill``, analyzed once or never; autovacuum is off."""
    engine, name = create_engine(dsn), f"plans_{secrets.token_hex(6)}"
    schema.upgrade(engine, schema=name)
    with engine.begin() as tx:
        for table in tables:
            tx.execute(text(f"ALTER TABLE {name}.{table} SET (autovacuum_enabled = off)"))
        for statement in fill.format(schema=name).split(";"):
            tx.execute(text(statement), parameters)
        if analyzed:
            tx.execute(text(f"ANALYZE {', '.join(f'{name}.{table}' for table in tables)}"))
    yield FilledLedger(engine, name)
    with engine.begin() as tx:
        tx.execute(DropSchema(name, cascade=True))
    engine.dispose()


def plan_of(
    tx: Connection, ledger: str, query: Query, parameters: Mapping[str, Any], *, how: str = "ANALYZE, FORMAT JSON"
) -> Plan:
    """The plan with these values; the caller rolls back what ANALYZE writes."""
    plan: Plan = tx.exec_driver_sql(f"EXPLAIN ({how}) {query.in_schema(ledger)}", parameters).scalar_one()[0]["Plan"]
    return plan


def prepared_plan(tx: Connection, ledger: str, query: Query) -> Plan:
    """The plan without values, as of a prepared statement."""
    if (tx.dialect.server_version_info or (0,)) < (16,):
        pytest.skip("EXPLAIN (GENERIC_PLAN) came with Postgres 16")
    text, _ = positional(query.in_schema(ledger))
    plan: Plan = tx.exec_driver_sql(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}").scalar_one()[0]["Plan"]
    return plan


def scans(plan: Plan, table: str) -> Iterator[Plan]:
    """The plan's nodes that read a table."""
    if plan.get("Relation Name") == table and plan["Node Type"] != "ModifyTable":
        yield plan
    for inner in plan.get("Plans", []):
        yield from scans(inner, table)


def rows_read(plan: Plan, table: str) -> int:
    """The rows read from a table, including those that a filter removed."""
    found_scans = list(scans(plan, table))
    assert found_scans, plan
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in found_scans
    )


def flush_counts(tx: Connection) -> None:
    """Make the session report its statistics."""
    tx.execute(text("SELECT pg_stat_force_next_flush()"))
    tx.commit()


def sequential_scans(engine: Engine, ledger: str, table: str) -> int:
    """How many sequential scans of the table the server has counted."""
    query = "SELECT seq_scan FROM pg_stat_user_tables WHERE schemaname = :schema AND relname = :table"
    with engine.connect() as tx:
        flush_counts(tx)
        return int(tx.execute(text(query), {"schema": ledger, "table": table}).scalar_one())


def rows_fetched(engine: Engine, ledger: str, table: str) -> int:
    """How many of the table's rows scans have fetched, as the server has counted."""
    query = (
        "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables "
        "WHERE schemaname = :schema AND relname = :table"
    )
    with engine.connect() as tx:
        flush_counts(tx)
        return int(tx.execute(text(query), {"schema": ledger, "table": table}).scalar_one())
