"""Dead letters, and attempts: what became of a record that failed, and when it is tried again.

``partition_offset`` gets columns and no index: its updates stay HOT. Those that must not be NULL have constant
defaults, so no row is rewritten, and the lock that ``ALTER TABLE`` takes is held for a moment.

The way back drops every dead letter, and is refused while one is open: its offset is passed, and no worker reads that
record again (I4).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from seekpoint.schema import refuse_losing, step

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_OPEN = sa.text("state IN ('parked', 'held')")
_MOVES = "admin_action_move_idx"


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        for column in _attempt():
            op.add_column("partition_offset", column, schema=schema)
        _dead_letter(schema)
        op.create_index(
            op.f(_MOVES),
            "admin_action",
            ["consumer_group", "topic", "partition", "id"],
            schema=schema,
            postgresql_where=sa.text("action = 'move'"),
        )


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        refuse_losing(
            schema,
            "dead_letter",
            what="open dead letters",
            then="their records were passed without being applied, and no worker reads them again; replay or discard "
            "them first (seekpoint dead-letters)",
            where="state IN ('parked', 'held')",
        )
        op.drop_index(_MOVES, "admin_action", schema=schema)
        op.drop_table("dead_letter", schema=schema)
        for column in reversed(_attempt()):
            op.drop_column("partition_offset", column.name, schema=schema)


def _attempt() -> list[sa.Column[object]]:
    return [
        sa.Column("attempt_crashes", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("attempt_running", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("attempt_error", sa.Text, comment="NULL: the process that tried it never came back"),
        sa.Column("retry_at", sa.DateTime(timezone=True)),
        sa.Column("attempts_allowed", sa.Integer),
        sa.Column("attempt_policy", sa.Text, comment="what follows the last attempt"),
    ]


def _dead_letter(schema: str) -> None:
    op.create_table(
        "dead_letter",
        *_record(),
        *_fate(),
        sa.PrimaryKeyConstraint("id", name=op.f("dead_letter_pkey")),
        sa.ForeignKeyConstraint(
            ["consumer_group"], [f"{schema}.consumer_group.name"], name=op.f("dead_letter_consumer_group_fkey")
        ),
        sa.UniqueConstraint(
            "consumer_group", "topic_id", "partition", "record_offset", name=op.f("dead_letter_record_key")
        ),
        sa.CheckConstraint(
            "state IN ('parked', 'held', 'skipped', 'replayed', 'discarded', 'superseded')",
            name=op.f("dead_letter_state_check"),
        ),
        sa.CheckConstraint(
            "cardinality(header_names) = cardinality(header_values)", name=op.f("dead_letter_headers_check")
        ),
        schema=schema,
    )
    _indexes(schema)


def _indexes(schema: str) -> None:
    op.create_index(
        op.f("dead_letter_open_idx"),
        "dead_letter",
        ["consumer_group", "topic", "partition", "record_offset"],
        schema=schema,
        postgresql_where=_OPEN,
    )
    op.create_index(
        op.f("dead_letter_key_idx"),
        "dead_letter",
        ["consumer_group", "topic_id", "partition", sa.text("sha256(key)"), "record_offset"],
        schema=schema,
        postgresql_where=sa.text("state IN ('parked', 'held') AND key IS NOT NULL"),
    )


def _record() -> list[sa.Column[object]]:
    """Where it comes from, and all that the log has of it."""
    return [
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Uuid, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("record_offset", sa.BigInteger, nullable=False),
        sa.Column("leader_epoch", sa.Integer),
        sa.Column("timestamp_ms", sa.BigInteger),
        sa.Column("key", sa.LargeBinary),
        sa.Column("value", sa.LargeBinary, comment="NULL also where the record was skipped"),
        sa.Column("header_names", postgresql.ARRAY(sa.LargeBinary), nullable=False),
        sa.Column("header_values", postgresql.ARRAY(sa.LargeBinary), nullable=False),
    ]


def _fate() -> list[sa.Column[object]]:
    """Why the record was dead-lettered, and what became of it."""
    return [
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("traceback", sa.Text),
        sa.Column("sqlstate", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False, comment="handler version"),
        sa.Column("parked_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("parked_by", sa.Uuid, comment="process that parked it"),
        sa.Column("replays", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("replayed_at", sa.DateTime(timezone=True)),
        sa.Column("replay_error", sa.Text),
        sa.Column("replay_traceback", sa.Text),
        sa.Column("closed_at", sa.DateTime(timezone=True)),
        sa.Column("closed_by", sa.Text),
        sa.Column("closed_reason", sa.Text),
    ]
