"""Resolves a pipeline's table names on a connection, with the ``schema_translate_map`` and the search path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, text

Translation = Mapping[str | None, str | None]
"""An engine's ``schema_translate_map``."""

_WITH_SCHEMAS = text(
    """
SELECT named.name, concat(n.nspname, '.', c.relname) AS full_name
FROM unnest(CAST(:names AS text[]), CAST(:schemas AS text[]), CAST(:tables AS text[])) named (name, schema, relation)
JOIN pg_catalog.pg_class c ON c.relname = named.relation
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
      AND CASE WHEN named.schema = '' THEN pg_catalog.pg_table_is_visible(c.oid) ELSE n.nspname = named.schema END
"""
)


def translated(name: str, translation: Translation) -> str:
    """The table to which a handler's statement with the name ``name`` writes."""
    schema, dot, table = name.rpartition(".")
    schema_now = translation.get(schema if dot else None)
    return name if schema_now is None else f"{schema_now}.{table}"


def with_schemas(tx: Connection, names: Sequence[str]) -> dict[str, str]:
    """Each table's name with its schema, by ``names``; omits names that are not tables on this connection."""
    if not names:
        return {}
    schemas, _, tables = zip(*(name.rpartition(".") for name in names), strict=True)
    rows = tx.execute(_WITH_SCHEMAS, {"names": [*names], "schemas": [*schemas], "tables": [*tables]})
    return {row.name: row.full_name for row in rows}
