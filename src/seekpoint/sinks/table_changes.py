"""What a table that exists lacks for a sink, as statements for a migration. Nothing is changed."""

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


def create_statement(table: Table) -> str:
    """The table's CREATE TABLE."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return f"{str(CreateTable(table).compile(dialect=dialect)).strip()};"


def table_changes(tx: Connection, table: Table) -> list[str]:
    """The statements after which the database's table takes every row of the suggested one; none where it does.

    CREATE TABLE where there is none. A table may be laxer: it may have further columns, wider types, and NULL where the
    suggested one has not. Columns are added without NOT NULL: rows that are there have no value for them.
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
    return [f"{statement.strip()};" for statement in buffer.getvalue().split(";\n") if statement.strip()]


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
    """Columns that the rows do not have, and that no row may leave out."""
    for name, column in existing.items():
        has_value = column.get("default") is not None or column.get("identity") or column.get("computed")
        if name not in table.columns and not column["nullable"] and not has_value:
            yield name


def _add_key(operations: Operations, inspector: Inspector, table: Table) -> None:
    key = [column.name for column in table.primary_key.columns]
    primary = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    if not key or {*key} in _unique_columns(inspector, table, primary):
        return
    if primary:
        name = f"{table.name}_{'_'.join(key)}_key"
        operations.create_index(name, table.name, key, unique=True, schema=table.schema)
    else:
        operations.create_primary_key(f"{table.name}_pkey", table.name, key, schema=table.schema)


def _unique_columns(inspector: Inspector, table: Table, primary: Collection[str]) -> list[set[str | None]]:
    """The columns of each unique index that ON CONFLICT takes by its columns alone."""
    indexes = inspector.get_indexes(table.name, schema=table.schema)
    whole = [index for index in indexes if not index.get("dialect_options", {}).get("postgresql_where")]
    return [{*primary}, *({*index["column_names"]} for index in whole if index["unique"])]


def _holds(found: TypeEngine[Any], wanted: TypeEngine[Any]) -> bool:
    """Whether a column of the type found takes each value of the wanted one, as far as the types say."""
    if isinstance(found, postgresql.DOMAIN):
        return True  # the check at a worker's start knows its base type
    for kinds, kinds_found, holds in _RULES:
        if isinstance(wanted, kinds) and isinstance(found, kinds_found):
            return holds(found, wanted)
    return not isinstance(found, REAL | JSON) and _python_type(found) is _python_type(wanted)


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
    (ARRAY, ARRAY, lambda found, wanted: _holds(found.item_type, wanted.item_type)),
    (Integer, Integer, lambda found, wanted: _size(found) >= _size(wanted)),
    ((Integer, Double, Numeric), Numeric, lambda found, _: found.precision is None),
    (
        _TIMES,
        _TIMES,
        lambda found, wanted: found.timezone == wanted.timezone and found.python_type is wanted.python_type,
    ),
    (JSON, JSON, lambda *_: True),
    (String, String, lambda found, _: found.length is None or isinstance(found, Enum)),  # labels: at a worker's start
)
