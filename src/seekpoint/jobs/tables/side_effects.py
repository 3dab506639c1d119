"""What a merge's changes reach beside the table itself: rows that refer to it with an action, and inheriting tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, text

from seekpoint.jobs.tables.constraints import ForeignKey, foreign_keys
from seekpoint.jobs.tables.targets import Target
from seekpoint.sinks.catalog import quoted

_INHERITING = text(
    """
    SELECT format('%I.%I', n.nspname, c.relname) AS child
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE i.inhparent = to_regclass(:name) AND NOT c.relispartition ORDER BY 1
    """
)


def referencing(connection: Connection, target: Target) -> list[ForeignKey]:
    """The foreign keys by which a change of this table changes or deletes rows of others."""
    keys = foreign_keys(connection, [target])
    return [key for key in keys if key.to and key.is_whole and (key.on_delete or key.on_update)]


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
