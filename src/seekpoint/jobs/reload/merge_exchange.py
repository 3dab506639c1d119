"""Rows of a merge that exchange values of a unique index: one statement deletes and inserts them.

A unique index without a DEFERRABLE constraint is checked row by row, so no order of updates can exchange two values.
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

# The sort reads all deleted rows before the first one is inserted. Foreign keys without an action are checked at the
# end of the statement, when the referenced rows exist again.
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
    """Replace all live rows that differ with the rebuilt values in one statement, then ``insert`` the missing ones.

    Columns that no pipeline writes keep their values.

    Raises CutOverRefused if triggers or rules would run for the deletes, or the deletes would reach other tables.
    """
    target = tables.target
    if reasons := _seen_by(tables.connection, target):
        raise CutOverRefused([_refused(target, cause, "; ".join(reasons))])
    columns = target.all_columns

    def returned(source: str) -> Composable:
        sides = (
            composed("{column}", column=(source if column in tables.columns else "live", column)) for column in columns
        )
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
        raise CutOverRefused([_refused(target, cause, f"Postgres refuses that: {_message(error)}")]) from error


def _seen_by(connection: Connection, target: Target) -> list[str]:
    """Describe the triggers, foreign keys and inheriting tables that the deletes would affect."""
    reasons = [f"the table has {', '.join(listening)}"] if (listening := hooks(connection, target)) else []
    reasons += [str(key) for key in referencing(connection, target) if key.on_delete]
    return reasons + [f"{child} inherits from it" for child in inheriting(connection, target)]


def _refused(target: Target, cause: psycopg.Error, why: str) -> str:
    return (
        f"{target.name}: rows swap values in unique index {cause.diag.constraint_name} ({_message(cause)}), and a "
        f"merge would have to delete and insert them, but {why}. Open another run with strategy 'swap', which replaces "
        "the whole table; or make the index a DEFERRABLE constraint, and resume this run"
    )


def _message(error: psycopg.Error) -> str:
    return (error.diag.message_detail or error.diag.message_primary or str(error)).rstrip(".")
