"""Columns, states and actions are called by the terms of the glossary: token, reset, dead-lettered, blocked, crashed.

The manifest of exports gets a checksum of each file; files that it has already have none. A verify that was completed
is a state of its own, `verified`.

Stop the workers and jobs, migrate, start. Not additive: a worker of the version before ends at its next statement,
which names a column that is no longer there, and writes nothing. Refused while a run of a reload or batch is open:
the tables in its staging schema have the names of the version that opened it. Downgrading is the same in
reverse, and is refused while the manifest has checksums, unless their groups are named.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from alembic import op

from seekpoint.schema import refuse_losing, refuse_open_runs, rename_not_null, step

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("partition_offset", "claim", "token"),
    ("dead_letter", "parked_at", "dead_lettered_at"),
    ("dead_letter", "parked_by", "dead_lettered_by"),
    ("reload_position", "moves", "resets"),
)
_COMMENTS = (
    (
        *("partition_offset", "token", sa.Uuid),
        "fencing token, drawn anew by every claim and every move",
        "fencing token, drawn by every claim and every reset",
    ),
    ("dead_letter", "dead_lettered_by", sa.Uuid, "process that parked it", "process that dead-lettered it"),
    (
        *("reload_position", "resets", sa.BigInteger),
        "by hand, as known at the opening",
        "resets by operators, as known at the opening",
    ),
)
_STATES = {"parked": "dead_lettered", "held": "blocked"}
_CAUSES = {"killed": "crashed", "held": "blocked"}
_ACTIONS = {"move": "reset"}


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        refuse_open_runs(schema)
        for table, old, new in _COLUMNS:
            op.alter_column(table, old, new_column_name=new, schema=schema)
            rename_not_null(schema, table, old, new)
        for table, column, kind, _, comment in _COMMENTS:
            op.alter_column(table, column, existing_type=kind(), comment=comment, schema=schema)
        _without_conditions(schema, "admin_action_move_idx")
        sha256 = sa.Column("sha256", sa.Text, comment="of the file's bytes, in hexadecimal digits")
        op.add_column("export_manifest", sha256, schema=schema)
        _rename(schema, "dead_letter", "state", _STATES)
        _rename(schema, "dead_letter", "cause", _CAUSES)
        _rename(schema, "admin_action", "action", _ACTIONS)
        _conditions(
            schema,
            letter_states="'dead_lettered', 'blocked'",
            action=("admin_action_reset_idx", "reset"),
            run_states="'catching_up', 'compared', 'verified'",
        )
        _mark_verified(schema)


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        refuse_open_runs(schema)
        refuse_losing(
            schema,
            "export_manifest",
            what="the checksums of exported files",
            then="a file that is damaged afterwards may be read as other records, without an error",
            where="sha256 IS NOT NULL",
        )
        _unmark_verified(schema)
        _without_conditions(schema, "admin_action_reset_idx")
        _rename(schema, "admin_action", "action", _reverse(_ACTIONS))
        _rename(schema, "dead_letter", "cause", _reverse(_CAUSES))
        _rename(schema, "dead_letter", "state", _reverse(_STATES))
        op.drop_column("export_manifest", "sha256", schema=schema)
        _conditions(
            schema,
            letter_states="'parked', 'held'",
            action=("admin_action_move_idx", "move"),
            run_states="'following', 'diffed'",
        )
        for table, column, kind, comment, _ in _COMMENTS:
            op.alter_column(table, column, existing_type=kind(), comment=comment, schema=schema)
        for table, old, new in _COLUMNS:
            op.alter_column(table, new, new_column_name=old, schema=schema)
            rename_not_null(schema, table, new, old)


def _reverse(terms: Mapping[str, str]) -> Mapping[str, str]:
    return {new: old for old, new in terms.items()}


def _rename(schema: str, table: str, column: str, terms: Mapping[str, str]) -> None:
    rows = sa.table(table, sa.column(column), schema=schema)
    for old, new in terms.items():
        op.execute(
            sa.update(rows)
            .values({column: sa.literal_column(f"'{new}'")})
            .where(rows.c[column] == sa.literal_column(f"'{old}'"))
        )


_VERIFIED = ": nothing was to be published"  # ends the error text of a verify that was completed, before this revision


def _mark_verified(schema: str) -> None:
    """A verify that was completed is a state, and no error."""
    runs = _runs(schema)
    op.execute(
        sa.update(runs)
        .values(state=sa.literal_column("'verified'"), error=sa.null())
        .where(
            runs.c.strategy == sa.literal_column("'verify'"),
            runs.c.state == sa.literal_column("'aborted'"),
            sa.func.right(runs.c.error, sa.literal_column(str(len(_VERIFIED)))) == sa.literal_column(f"'{_VERIFIED}'"),
        )
    )


def _unmark_verified(schema: str) -> None:
    runs = _runs(schema)
    op.execute(
        sa.update(runs)
        .values(state=sa.literal_column("'aborted'"), error=runs.c.reason.concat(sa.literal_column(f"'{_VERIFIED}'")))
        .where(runs.c.state == sa.literal_column("'verified'"))
    )


def _runs(schema: str) -> sa.TableClause:
    columns = [sa.column(name, sa.Text) for name in ("strategy", "state", "reason", "error")]
    return sa.table("reload_run", *columns, schema=schema)


def _without_conditions(schema: str, resets: str) -> None:
    """Drop the constraints and partial indexes that name a state or an action."""
    op.drop_index("dead_letter_open_idx", "dead_letter", schema=schema)
    op.drop_index("dead_letter_key_idx", "dead_letter", schema=schema)
    op.drop_index(resets, "admin_action", schema=schema)
    op.drop_constraint(op.f("dead_letter_state_check"), "dead_letter", type_="check", schema=schema)
    op.drop_constraint(op.f("reload_run_state_check"), "reload_run", type_="check", schema=schema)


def _conditions(schema: str, *, letter_states: str, action: tuple[str, str], run_states: str) -> None:
    """Create them, with these states and this action."""
    op.create_check_constraint(
        op.f("dead_letter_state_check"),
        "dead_letter",
        sa.text(f"state IN ({letter_states}, 'skipped', 'replayed', 'discarded', 'superseded')"),
        schema=schema,
    )
    op.create_check_constraint(
        op.f("reload_run_state_check"),
        "reload_run",
        sa.text(f"state IN ('opened', 'staging', 'staged', 'indexed', {run_states}, 'cut_over', 'aborted', 'failed')"),
        schema=schema,
    )
    is_open = f"state IN ({letter_states})"
    op.create_index(
        op.f("dead_letter_open_idx"),
        "dead_letter",
        ["consumer_group", "topic", "partition", "record_offset"],
        schema=schema,
        postgresql_where=sa.text(is_open),
    )
    op.create_index(
        op.f("dead_letter_key_idx"),
        "dead_letter",
        ["consumer_group", "topic_id", "partition", sa.text("sha256(key)"), "record_offset"],
        schema=schema,
        postgresql_where=sa.text(f"{is_open} AND key IS NOT NULL"),
    )
    name, called = action
    op.create_index(
        op.f(name),
        "admin_action",
        ["consumer_group", "topic", "partition", "id"],
        schema=schema,
        postgresql_where=sa.text(f"action = '{called}'"),
    )
