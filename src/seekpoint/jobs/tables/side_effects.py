"""What a merge's changes reach beside the table itself: rows that refer to it with an action, and inheriting tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from seekpoint.jobs.tables.targets import Target
from seekpoint.sinks.catalog import quoted

# A key of a partitioned table has one row for each partition beside its own; a key may refer to one partition alone.
_KEYS = text(
    """
    WITH RECURSIVE own (oid) AS (
        SELECT CAST(to_regclass(:name) AS oid)
        UNION SELECT i.inhrelid FROM pg_inherits i JOIN own ON i.inhparent = own.oid
    )
    SELECT f.conname AS name, format('%I.%I', n.nspname, c.relname) AS child,
           CAST(f.confdeltype AS text) AS on_delete, CAST(f.confupdtype AS text) AS on_update,
           ARRAY(SELECT CAST(a.attname AS text) FROM unnest(f.confkey) WITH ORDINALITY AS k (attnum, n)
                 JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.attnum ORDER BY k.n) AS columns
    FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE f.contype = 'f' AND f.conparentid = 0 AND f.confrelid IN (SELECT oid FROM own)
          AND (f.confdeltype IN ('c', 'n', 'd') OR f.confupdtype IN ('c', 'n', 'd'))
    ORDER BY child, name
    """
)
_INHERITING = text(
    """
    SELECT format('%I.%I', n.nspname, c.relname) AS child
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE i.inhparent = to_regclass(:name) AND NOT c.relispartition ORDER BY 1
    """
)
_ACTIONS = {"c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}


@dataclass(frozen=True, slots=True)
class ReferencingKey:
    """A foreign key of ``child`` that refers with an action to ``columns`` of the table, or of a part of it."""

    name: str
    child: str
    on_delete: str | None
    on_update: str | None
    columns: tuple[str, ...]

    def __str__(self) -> str:
        actions = [f"ON {event} {action}" for event, action in (("DELETE", self.on_delete), ("UPDATE", self.on_update))
                   if action]  # fmt: skip
        return f"{self.child} refers to it by {self.name} ({', '.join(actions)})"


def referencing(connection: Connection, target: Target) -> list[ReferencingKey]:
    """The foreign keys by which a change of this table changes or deletes rows of others."""
    return [
        ReferencingKey(
            row.name, row.child, _ACTIONS.get(row.on_delete), _ACTIONS.get(row.on_update), tuple(row.columns)
        )
        for row in connection.execute(_KEYS, {"name": quoted(*target.path)})
    ]


def inheriting(connection: Connection, target: Target) -> list[str]:
    """The tables that inherit from this one: their rows are found in it, compared with it, and deleted from it."""
    return list(connection.execute(_INHERITING, {"name": quoted(*target.path)}).scalars())


def of_inheritance(connection: Connection, target: Target) -> list[str]:
    """Why a merge of the table is refused, unless it may change and delete rows of inheriting tables."""
    if not (children := inheriting(connection, target)):
        return []
    why = f"{target.name}: {', '.join(children)} inherit from it, and a merge would delete rows there, too"
    return [f"{why}: allow it by --allow-inheritance (Reload(…, allow_inheritance=True))"]


def notes(connection: Connection, found: Sequence[Target]) -> Iterator[str]:
    """What a merge of these tables may reach, for people."""
    for target in found:
        for key in referencing(connection, target):
            yield f"{target.name}: {key}"
        for child in inheriting(connection, target):
            yield f"{target.name}: {child} inherits from it, and its rows are compared and changed, too"
