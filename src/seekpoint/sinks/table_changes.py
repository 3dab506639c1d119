"""Statements for a migration that give an existing table what a sink needs. Nothing is executed."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    ARRAY,
    JSON,
    REAL,
    TIMESTAMP,
    BigInteger,
    Column,
    Connection,
    Double,
    Enum,
    Float,
    Inspector,
    Integer,
    Numeric,
    SmallInteger,
    String,
    Table,
    Time,
)
from sqlalchemy import inspect as inspector_of
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from seekpoint.sinks.names import cut_name


def create_statement(table: Table) -> str:
    """The table's CREATE TABLE."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return f"{str(CreateTable(table).compile(dialect=dialect)).strip()};"


def table_changes(tx: Connection, table: Table) -> list[str]:
    """The statements after which the existing table takes every row of the suggested one; empty if it already does.

    CREATE TABLE if there is no table. The existing table may be laxer: further columns, wider types, fewer NOT NULL.
    Columns are added without NOT NULL, because existing rows have no value for them.
    """
    inspector = inspector_of(tx)
    if not inspector.has_table(table.name, schema=table.schema):
        return [create_statement(table)]
    buffer = io.StringIO()
    offline = {"as_sql": True, "output_buffer": buffer, "literal_binds": True}
    operations = Operations(MigrationContext.configure(dialect_name="postgresql", opts=offline))
    existing = {column["name"]: column for column in inspector.get_columns(table.name, schema=table.schema)}
    for column in table.columns:
        _change_column(operations, table, column, existing.get(column.name))
    for name in _refused_columns(table, existing):
        operations.alter_column(table.name, name, nullable=True, schema=table.schema)
    _add_key(operations, inspector, table)
    statements = [f"{statement.strip()};" for statement in buffer.getvalue().split(";\n") if statement.strip()]
    if statements and table.name in inspector.get_view_names(table.schema):
        changes = " ".join(statements)
        return [
            f"-- {table.fullname} is a view: change its query, or the table that it reads, to the effect of {changes}"
        ]
    return statements


def _change_column(
    operations: Operations, table: Table, column: Column[Any], existing: Mapping[str, Any] | None
) -> None:
    if existing is None:
        operations.add_column(table.name, Column(column.name, column.type), schema=table.schema)
        return
    if not _holds(existing["type"], column.type):
        operations.alter_column(table.name, column.name, type_=column.type, schema=table.schema)
    if column.nullable and not existing["nullable"]:
        operations.alter_column(table.name, column.name, nullable=True, schema=table.schema)


def _refused_columns(table: Table, existing: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Columns that the table requires, but the rows lack."""
    for name, column in existing.items():
        has_value = column.get("default") is not None or column.get("identity") or column.get("computed")
        if name not in table.columns and not column["nullable"] and not has_value:
            yield name


def _add_key(operations: Operations, inspector: Inspector, table: Table) -> None:
    key = [column.name for column in table.primary_key.columns]
    primary = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    # ON CONFLICT uses the index of the view's table.
    if not key or table.name in inspector.get_view_names(table.schema):
        return
    if {*key} in _unique_columns(inspector, table, primary):
        return
    if primary:
        name = cut_name(f"{table.name}_{'_'.join(key)}_key")  # SQLAlchemy refuses a longer name
        operations.create_index(name, table.name, key, unique=True, schema=table.schema)
    else:
        operations.create_primary_key(cut_name(f"{table.name}_pkey"), table.name, key, schema=table.schema)


def _unique_columns(inspector: Inspector, table: Table, primary: Collection[str]) -> list[set[str | None]]:
    """The columns of each unique index that ON CONFLICT can infer from its columns alone."""
    indexes = inspector.get_indexes(table.name, schema=table.schema)
    full_indexes = [index for index in indexes if not index.get("dialect_options", {}).get("postgresql_where")]
    return [{*primary}, *({*index["column_names"]} for index in full_indexes if index["unique"])]


def _holds(existing: TypeEngine[Any], wanted: TypeEngine[Any]) -> bool:
    """Whether a column of the existing type takes each value of the new type, as far as types can show."""
    if isinstance(existing, postgresql.DOMAIN):
        return True  # its base type is checked at a worker's start
    for kinds, kinds_found, holds in _RULES:
        if isinstance(wanted, kinds) and isinstance(existing, kinds_found):
            return holds(existing, wanted)
    return not isinstance(existing, REAL | JSON) and _python_type(existing) is _python_type(wanted)


def _size(kind: Integer) -> int:
    return 2 if isinstance(kind, SmallInteger) else 8 if isinstance(kind, BigInteger) else 4


def _python_type(kind: TypeEngine[Any]) -> Any:
    try:
        return kind.python_type
    except NotImplementedError:
        return type(kind)


_TIMES = (TIMESTAMP, Time)
_Kinds = type[Any] | tuple[type[Any], ...]
_RULES: Sequence[tuple[_Kinds, _Kinds, Callable[[Any, Any], bool]]] = (
    (ARRAY, ARRAY, lambda existing, wanted: _holds(existing.item_type, wanted.item_type)),
    (Integer, Integer, lambda existing, wanted: _size(existing) >= _size(wanted)),
    (Double, Float, lambda existing, _: not isinstance(existing, REAL)),
    ((Integer, Numeric), Float, lambda *_: False),  # in SQLAlchemy 2.0 Float is a Numeric
    ((Integer, Double, Numeric), Numeric, lambda existing, _: existing.precision is None),
    (
        _TIMES,
        _TIMES,
        lambda existing, wanted: existing.timezone == wanted.timezone and existing.python_type is wanted.python_type,
    ),
    (JSON, JSON, lambda *_: True),
    # an enum's labels are checked at a worker's start
    (String, String, lambda existing, _: existing.length is None or isinstance(existing, Enum)),
)
