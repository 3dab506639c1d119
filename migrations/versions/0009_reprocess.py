"""Runs that apply a bounded range of one partition again: their position, and the records that they could not apply.

Additive: no row is rewritten. A downgrade drops them unasked: no offset of a group depends on them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from seekpoint.schema import step

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        op.create_table("reprocess_run", *_run(schema), schema=schema)
        op.create_index(
            op.f("reprocess_run_consumer_group_topic_partition_idx"),
            "reprocess_run",
            ["consumer_group", "topic", "partition"],
            schema=schema,
        )
        op.create_table("reprocess_dead_letter", *_dead_letter(schema), schema=schema)


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        op.drop_table("reprocess_dead_letter", schema=schema)
        op.drop_table("reprocess_run", schema=schema)


def _required(name: str, kind: object, comment: str | None = None) -> sa.Column[object]:
    return sa.Column(name, kind, nullable=False, comment=comment)  # type: ignore[arg-type]


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp())


def _count(name: str, comment: str) -> sa.Column[object]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"), comment=comment)


def _run(schema: str) -> list[sa.schema.SchemaItem]:
    return [
        _required("id", sa.Uuid),
        _required("consumer_group", sa.Text),
        _required("topic", sa.Text),
        _required("partition", sa.Integer),
        _required("topic_id", sa.Uuid),
        _required("from_offset", sa.BigInteger),
        _required("to_offset", sa.BigInteger),
        _required("next_offset", sa.BigInteger, "position of the run"),
        sa.Column("target_schema", sa.Text, comment="of the tables that it writes; NULL: the pipeline's own"),
        _required("version", sa.Integer, "handler version"),
        _count("records", "that were applied"),
        _count("dead_letters", "of the run"),
        _required("state", sa.Text),
        _required("actor", sa.Text),
        _required("reason", sa.Text),
        _time("opened_at"),
        _time("changed_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("reprocess_run_pkey")),
        sa.ForeignKeyConstraint(
            ["consumer_group"], [f"{schema}.consumer_group.name"], name=op.f("reprocess_run_consumer_group_fkey")
        ),
        sa.CheckConstraint("state IN ('open', 'done', 'abandoned')", name=op.f("reprocess_run_state_check")),
        sa.CheckConstraint("from_offset < to_offset", name=op.f("reprocess_run_range_check")),
    ]


def _dead_letter(schema: str) -> list[sa.schema.SchemaItem]:
    return [
        _required("run", sa.Uuid),
        _required("record_offset", sa.BigInteger),
        sa.Column("leader_epoch", sa.Integer),
        sa.Column("timestamp_ms", sa.BigInteger),
        sa.Column("key", sa.LargeBinary),
        sa.Column("value", sa.LargeBinary),
        _required("header_names", postgresql.ARRAY(sa.LargeBinary)),
        _required("header_values", postgresql.ARRAY(sa.LargeBinary)),
        _required("state", sa.Text),
        _required("cause", sa.Text),
        _required("error", sa.Text),
        sa.Column("traceback", sa.Text),
        sa.Column("sqlstate", sa.Text),
        _time("dead_lettered_at"),
        sa.PrimaryKeyConstraint("run", "record_offset", name=op.f("reprocess_dead_letter_pkey")),
        sa.ForeignKeyConstraint(["run"], [f"{schema}.reprocess_run.id"], name=op.f("reprocess_dead_letter_run_fkey")),
    ]
