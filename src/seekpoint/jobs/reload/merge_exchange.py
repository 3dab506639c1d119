"""Rows of a merge that exchange values of a unique index: one statement deletes and inserts them.

An index that is not of a DEFERRABLE constraint is checked row by row, so no order of updates takes two rows past each
other.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.errors import CutOverRefused
from seekpoint.jobs.reload.compare import DIFFERENT_KEY, distinct
from seekpoint.jobs.reload.merge_check import hooks
from seekpoint.jobs.tables.dependencies import inheriting, referencing
from seekpoint.jobs.tables.sql_templates import Composable, composed, names
from seekpoint.jobs.tables.staging_schema import StagingTables
from seekpoint.jobs.tables.targets import Target

# The sort needs all deleted rows before the first one is inserted. Foreign keys without an action are checked when the
# statement has ended: what they refer to is there again.
_EXCHANGE = """
WITH prepared AS (
    DELETE FROM {live} AS live USING {diff} AS diff
    WHERE diff.{kind} IN ('different', {different_key}) AND {same} RETURNING {prepared}),
touched AS (
    DELETE FROM {live} AS live USING {diff} AS diff JOIN {built} AS built USING ({key})
    WHERE diff.{kind} = 'touched' AND {same} AND {differs} RETURNING {touched})
INSERT INTO {live} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {columns} FROM (SELECT * FROM prepared UNION ALL SELECT * FROM touched) AS changed ORDER BY {key}
"""


def exchange(tables: StagingTables, cause: psycopg.errors.UniqueViolation, insert: Callable[[], object]) -> None:
    """Give all live rows that differ the rebuilt values at once, then ``insert`` the missing ones.

    Columns that no pipeline writes are kept.

    Raises CutOverRefused where others would see rows deleted that only change, or rows of other tables would follow.
    """
    target = tables.target
    if reasons := _seen_by(tables.connection, target):
        raise CutOverRefused([_refused(target, cause, "; ".join(reasons))])
    columns = target.all_columns

    def returned(source: str) -> Composable:
        sides = (composed("{column}", column=(source if one in tables.columns else "live", one)) for one in columns)
        return ident.SQL(", ").join(sides)

    try:
        tables.run(
            _EXCHANGE,
            different_key=DIFFERENT_KEY,
            columns=names(columns),
            prepared=returned("diff"),
            touched=returned("built"),
            differs=distinct([*target.inexact_key, *tables.others], "live", "built"),
        )
        insert()
    except psycopg.errors.IntegrityError as error:
        raise CutOverRefused([_refused(target, cause, f"that was refused: {_message(error)}")]) from error


def _seen_by(connection: Connection, target: Target) -> list[str]:
    """Who would take rows that only change for deleted ones."""
    found = [f"it has {', '.join(listening)}"] if (listening := hooks(connection, target)) else []
    found += [str(key) for key in referencing(connection, target) if key.on_delete]
    return found + [f"{child} inherits from it" for child in inheriting(connection, target)]


def _refused(target: Target, cause: psycopg.Error, why: str) -> str:
    return (
        f"{target.name}: rows exchange values of {cause.diag.constraint_name} ({_message(cause)}), and a merge would "
        f"delete and insert them: {why}. Strategy 'swap' can publish them, because it replaces the whole table: open "
        "another run; or make it a DEFERRABLE constraint, and resume this one"
    )


def _message(error: psycopg.Error) -> str:
    return (error.diag.message_detail or error.diag.message_primary or str(error)).rstrip(".")
