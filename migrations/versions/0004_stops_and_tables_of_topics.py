"""Stored stops and suspect ranges of partitions, the tables of each topic's records, lost ranges without a known end.

Additive: no row is rewritten, and each lock lasts for a moment, so workers of the release before continue while it is
applied. Downgrading is refused while there are lost ranges whose end is unknown: the column could not hold them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from seekpoint.schema import refuse_losing, step

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        for column in _columns():
            op.add_column("partition_offset", column, schema=schema)
        op.alter_column("lost_range", "to_offset", existing_type=sa.BigInteger, nullable=True, schema=schema)
        op.create_table(
            "group_topic",
            sa.Column("consumer_group", sa.Text, nullable=False),
            sa.Column("topic", sa.Text, nullable=False),
            sa.Column("version", sa.Integer, nullable=False, comment="handler version that declared them"),
            sa.Column("tables", postgresql.ARRAY(sa.Text), comment="where records of the topic go; NULL: not known"),
            sa.Column(
                "replaced",
                sa.Integer,
                nullable=False,
                server_default=sa.text("0"),
                comment="counts accepted declarations",
            ),
            sa.Column(
                "changed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()
            ),
            sa.PrimaryKeyConstraint("consumer_group", "topic", name=op.f("group_topic_pkey")),
            sa.ForeignKeyConstraint(
                ["consumer_group"], [f"{schema}.consumer_group.name"], name=op.f("group_topic_consumer_group_fkey")
            ),
            schema=schema,
        )


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        refuse_losing(
            schema,
            "lost_range",
            what="lost ranges without a known end",
            then="nothing else says that these records were not applied",
            where="to_offset IS NULL",
        )
        op.drop_table("group_topic", schema=schema)
        lost = sa.table("lost_range", sa.column("to_offset"), schema=schema)
        op.execute(sa.delete(lost).where(lost.c.to_offset.is_(None)))
        op.alter_column("lost_range", "to_offset", existing_type=sa.BigInteger, nullable=False, schema=schema)
        for column in reversed(_columns()):
            op.drop_column("partition_offset", column.name, schema=schema)


def _columns() -> list[sa.Column[object]]:
    return [
        sa.Column("suspect_end", sa.BigInteger, comment="end of the range that may hold a crashing record"),
        sa.Column("suspect_part_end", sa.BigInteger, comment="end of the part that is tried, or saw a crash"),
        sa.Column("suspect_running", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("stop_kind", sa.Text, comment="why the partition is stopped; NULL: it is not"),
        sa.Column("stop_offset", sa.BigInteger, comment="where it stopped"),
        sa.Column("stop_message", sa.Text),
        sa.Column("stop_choices", postgresql.ARRAY(sa.Text), comment="what an operator can do"),
        sa.Column("stopped_at", sa.DateTime(timezone=True)),
    ]
