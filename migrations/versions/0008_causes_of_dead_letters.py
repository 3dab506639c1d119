"""The line of the user's own code that an error came from; requests for replays, which running workers carry out.

Additive: no row is rewritten; dead letters of before have no line. A downgrade drops requests unasked.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from seekpoint.schema import step

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        comment = "innermost line of the user's own code in the error's traceback"
        op.add_column("dead_letter", sa.Column("error_line", sa.Text, comment=comment), schema=schema)
        op.create_table("replay_request", *_request(schema), schema=schema)
        op.create_index(
            op.f("replay_request_consumer_group_id_idx"), "replay_request", ["consumer_group", "id"], schema=schema
        )


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        op.drop_table("replay_request", schema=schema)
        op.drop_column("dead_letter", "error_line", schema=schema)


def _required(name: str, kind: object, comment: str | None = None) -> sa.Column[object]:
    return sa.Column(name, kind, nullable=False, comment=comment)  # type: ignore[arg-type]


def _count(name: str, comment: str | None = None) -> sa.Column[object]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"), comment=comment)


def _request(schema: str) -> list[sa.schema.SchemaItem]:
    time = sa.DateTime(timezone=True)
    return [
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        _required("consumer_group", sa.Text),
        _required("version", sa.Integer, "handler version that is to replay them"),
        _required("dead_letters", postgresql.ARRAY(sa.BigInteger), "ids"),
        _required("state", sa.Text),
        _required("actor", sa.Text),
        _required("reason", sa.Text),
        sa.Column("worker", sa.Uuid, comment="process that has started it"),
        _count("replayed", "were applied"),
        _count("failed", "failed again"),
        _count("refused"),
        sa.Column("error", sa.Text, comment="why the request failed"),
        sa.Column("requested_at", time, nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("started_at", time),
        sa.Column("seen_at", time, comment="when its worker last said so"),
        sa.Column("ended_at", time),
        sa.PrimaryKeyConstraint("id", name=op.f("replay_request_pkey")),
        sa.ForeignKeyConstraint(
            ["consumer_group"], [f"{schema}.consumer_group.name"], name=op.f("replay_request_consumer_group_fkey")
        ),
        sa.CheckConstraint(
            "state IN ('requested', 'started', 'done', 'failed')", name=op.f("replay_request_state_check")
        ),
    ]
