"""The ledger: groups, offsets, lost ranges, admin actions.

Only tables and indexes: no function, no trigger. Every name is spelled out and marked final (``op.f``),
because inside a host's migration the host's naming convention would otherwise be applied to it.

Downgrading is refused while a group has offsets or lost ranges.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from seekpoint.schema import refuse_losing, step

revision = "0001"
down_revision = None
branch_labels = ("seekpoint",)
depends_on = None

_plain = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        _consumer_group(schema)
        _partition_offset(schema)
        _lost_range(schema)
        _admin_action(schema)


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        refuse_losing(
            schema,
            "partition_offset",
            what="the stored offsets",
            then="at their next start every record would be applied again",
        )
        refuse_losing(
            schema, "lost_range", what="the lost ranges", then="nothing else says that these records were not applied"
        )
        for table in ("admin_action", "lost_range", "partition_offset", "consumer_group"):
            op.drop_table(table, schema=schema)


def _consumer_group(schema: str) -> None:
    op.create_table(
        "consumer_group",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("cluster_id", sa.Text, comment="Kafka cluster the offsets belong to"),
        sa.Column("version", sa.Integer, nullable=False, server_default=sa.text("1"), comment="handler version"),
        sa.Column(
            "tables",
            postgresql.ARRAY(sa.Text),
            nullable=False,
            server_default=sa.text("'{}'"),
            comment="tables the group writes",
        ),
        sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("paused_reason", sa.Text),
        sa.Column("paused_by", sa.Text),
        _now("created_at"),
        sa.PrimaryKeyConstraint("name", name=op.f("consumer_group_pkey")),
        schema=schema,
    )


def _partition_offset(schema: str) -> None:
    op.create_table(
        "partition_offset",
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("topic_id", sa.Uuid, nullable=False, comment="the topic's id when the offset was first stored"),
        sa.Column("first_offset", sa.BigInteger, nullable=False, comment="the first position ever applied"),
        sa.Column(
            "next_offset",
            sa.BigInteger,
            nullable=False,
            comment="position to read next; never last processed",
        ),
        sa.Column("leader_epoch", sa.Integer, comment="epoch of the last applied record; NULL: none is known"),
        sa.Column(
            "claim",
            sa.Uuid,
            nullable=False,
            comment="fencing token, drawn anew by every claim and every move",
        ),
        sa.Column("epoch", sa.BigInteger, nullable=False, comment="counts the tokens, for people and for order"),
        sa.Column("owner", sa.Uuid, comment="process that claimed it, for display; NULL after a release"),
        sa.Column("claimed_at", sa.DateTime(timezone=True)),
        sa.Column("unreleased_claims", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("attempt_offset", sa.BigInteger),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("committed_at", sa.DateTime(timezone=True)),
        sa.Column("record_time", sa.DateTime(timezone=True), comment="timestamp of the last applied record"),
        sa.PrimaryKeyConstraint("consumer_group", "topic", "partition", name=op.f("partition_offset_pkey")),
        _group_key("partition_offset", schema),
        sa.CheckConstraint("next_offset >= 0", name=op.f("partition_offset_next_offset_check")),
        schema=schema,
    )
    # Every commit updates these rows: half of each page stays free so that the new version fits beside the
    # old one (HOT), and vacuum comes by the count of dead rows, however many live ones there are.
    # A statement of its own, as SQLAlchemy 2.0 knows no storage parameters in CREATE TABLE. The name is
    # quoted by a dialect that leaves percent signs alone: DDL() sees to those.
    table = sa.Table("partition_offset", sa.MetaData(), schema=schema)
    name = _plain.identifier_preparer.format_table(table)
    op.execute(
        sa.DDL(  # type: ignore[no-untyped-call]
            "ALTER TABLE %(name)s SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, "
            "autovacuum_vacuum_threshold = 1000)",
            context={"name": name},
        )
    )


def _lost_range(schema: str) -> None:
    op.create_table(
        "lost_range",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Uuid, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("from_offset", sa.BigInteger, nullable=False),
        sa.Column("to_offset", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        _now("at"),
        sa.PrimaryKeyConstraint("id", name=op.f("lost_range_pkey")),
        _group_key("lost_range", schema),
        schema=schema,
    )
    op.create_index(
        op.f("lost_range_consumer_group_topic_partition_idx"),
        "lost_range",
        ["consumer_group", "topic", "partition"],
        schema=schema,
    )


def _admin_action(schema: str) -> None:
    op.create_table(
        "admin_action",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("topic", sa.Text),
        sa.Column("partition", sa.Integer),
        sa.Column("from_offset", sa.BigInteger),
        sa.Column("to_offset", sa.BigInteger),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        _now("at"),
        sa.PrimaryKeyConstraint("id", name=op.f("admin_action_pkey")),
        _group_key("admin_action", schema),
        schema=schema,
    )
    op.create_index(op.f("admin_action_consumer_group_at_idx"), "admin_action", ["consumer_group", "at"], schema=schema)


def _now(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp())


def _group_key(table: str, schema: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["consumer_group"], [f"{schema}.consumer_group.name"], name=op.f(f"{table}_consumer_group_fkey")
    )
