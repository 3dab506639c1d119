"""Tables as users name them: a string, a tuple of the parts, a SQLAlchemy Table or a mapped class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sqlalchemy import FromClause, Table
from typing_extensions import TypeIs

from seekpoint.errors import ConfigError

TableName: TypeAlias = str | tuple[str, ...] | FromClause | type[Any]
TableOfTopic: TypeAlias = Callable[[str], TableName]
"""A function from a topic to the table of its records."""


def table_path(owner: str, table: TableName) -> tuple[str, ...]:
    """The table's name, qualified if a schema is given.

    ``table`` is ``"table"`` or ``"schema.table"``, a tuple of the parts, a SQLAlchemy ``Table`` or a mapped class.
    Anything else raises ConfigError; its message begins with ``owner``.
    """
    mapped = getattr(table, "__table__", table)
    if isinstance(mapped, Table):
        path: tuple[Any, ...] = (mapped.name,) if mapped.schema is None else (mapped.schema, mapped.name)
    elif isinstance(table, str):
        path = tuple(table.split("."))
    else:
        path = table if isinstance(table, tuple) else ()
    if not 1 <= len(path) <= 2 or not all(isinstance(part, str) and part for part in path):
        raise ConfigError(
            f"{owner}: name it 'table' or 'schema.table', or give a tuple of the parts, a SQLAlchemy Table or a mapped "
            f"class, got {table!r}"
        )
    return path


def names_tables(table: object) -> TypeIs[TableOfTopic]:
    """Whether ``table`` is a function from a topic to a table; a mapped class is a table."""
    return callable(table) and not isinstance(table, type)


def shown_table(table: TableName | TableOfTopic) -> str:
    """The table's name for messages, before it is checked."""
    mapped = getattr(table, "__table__", table)
    if names_tables(table):
        return str(getattr(table, "__name__", repr(table)))
    return repr(mapped.fullname) if isinstance(mapped, Table) else repr(table)
