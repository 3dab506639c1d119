"""A table's indexes, in the fixed order in which rebuilt indexes are created and compared with live ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text

from seekpoint.errors import ReloadRefused
from seekpoint.sinks.catalog import quoted

_INDEXES = text(
    """
    SELECT i.indexrelid AS oid, c.relname AS name, i.indisunique AS is_unique,
           i.indisunique AND i.indimmediate AND i.indisvalid AS is_enforced,
           i.indpred IS NULL AND i.indexprs IS NULL AS is_plain,
           coalesce(columns.names, '{}') AS columns, columns.is_not_null,
           (SELECT CASE k.contype WHEN 'p' THEN 'PRIMARY KEY' ELSE 'UNIQUE' END FROM pg_constraint k
            WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u')) AS constraint,
           pg_get_indexdef(i.indexrelid) AS definition,
           format('CREATE %sINDEX %I ON %s%I.%I ', CASE WHEN i.indisunique THEN 'UNIQUE ' END, c.relname,
                  CASE c.relkind WHEN 'I' THEN 'ONLY ' END, n.nspname, t.relname) AS head
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace
    CROSS JOIN LATERAL (
        SELECT array_agg(CAST(a.attname AS text) ORDER BY k.n) AS names, bool_and(a.attnotnull) AS is_not_null
        FROM unnest(CAST(i.indkey AS int2[])) WITH ORDINALITY k (num, n)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num
        WHERE k.n <= i.indnkeyatts
    ) AS columns
    WHERE i.indrelid = to_regclass(:name) ORDER BY i.indisprimary DESC, c.relname
    """
)


class Index(NamedTuple):
    """An index as the catalog prints it. ``columns`` are its key's columns, without expressions.

    ``is_enforced``: unique, valid and not deferrable. ``is_plain``: without expressions and condition. ``constraint``:
    PRIMARY KEY, UNIQUE or None. ``head``: the definition up to the table's name.
    """

    oid: int
    name: str
    is_unique: bool
    is_enforced: bool
    is_plain: bool
    columns: Sequence[str]
    is_not_null: bool
    constraint: str | None
    definition: str
    head: str

    @property
    def using(self) -> str:
        """The part of the definition after the table's name. Raises ReloadRefused if it cannot be copied."""
        if not self.definition.startswith(self.head):
            why = (
                f"cannot copy index {self.name} ({self.definition}): drop it, or if it is not unique, use "
                "strategy 'merge'"
            )
            raise ReloadRefused([why])
        return self.definition.removeprefix(self.head)


def indexes(connection: Connection, table: tuple[str, str]) -> list[Index]:
    """The indexes of a table: the primary key's first, then by name."""
    return [Index(*row) for row in connection.execute(_INDEXES, {"name": quoted(*table)})]
