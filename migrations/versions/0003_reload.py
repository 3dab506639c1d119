"""Reloads: their runs, how far each has staged, what each task staged; and exported files.

The rows that a run rebuilds are in a Postgres schema of the run's own, which the run creates and drops. The way back
drops the runs' rows and leaves those schemas: abort open runs first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from seekpoint.schema import step

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        _run(schema)
        _position(schema)
        _staged(schema)
        _manifest(schema)
        _export_run(schema)


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        exports = ("export_run", "export_manifest")
        for table in (*exports, "reload_staged", "reload_position", "reload_run"):
            op.drop_table(table, schema=schema)


def _run(schema: str) -> None:
    op.create_table(
        "reload_run",
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("groups", postgresql.ARRAY(sa.Text), nullable=False),
        sa.Column("tables", postgresql.ARRAY(sa.Text), nullable=False),
        sa.Column("strategy", sa.Text, nullable=False),
        sa.Column("pipelines", postgresql.ARRAY(sa.Text), nullable=False, comment="as module:name, one per group"),
        sa.Column(
            "version_from", postgresql.ARRAY(sa.Integer), nullable=False, comment="of each group, at the opening"
        ),
        sa.Column("version_to", postgresql.ARRAY(sa.Integer), nullable=False, comment="of each group's pipeline"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("driver_epoch", sa.BigInteger, nullable=False, comment="an older driver's next step fails"),
        sa.Column("driver", sa.Text, nullable=False, comment="host and process, for people"),
        sa.Column("staging_schema", sa.Text, nullable=False, comment="where the rebuilt tables are"),
        sa.Column("swept", sa.Boolean, nullable=False, server_default=sa.false(), comment="nothing is left there"),
        sa.Column("diff_xid", sa.Text, comment="oldest transaction that the prepared difference did not see"),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("error", sa.Text, comment="why it failed or was aborted"),
        sa.Column("archive", sa.Text, comment="of what the logs have no more, as the export names it"),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint("id", name=op.f("reload_run_pkey")),
        sa.CheckConstraint(
            "state IN ('opened', 'staging', 'staged', 'indexed', 'following', 'diffed', 'cut_over', 'aborted', "
            "'failed')",
            name=op.f("reload_run_state_check"),
        ),
        sa.CheckConstraint("strategy IN ('merge', 'swap', 'verify', 'batch')", name=op.f("reload_run_strategy_check")),
        schema=schema,
    )


def _position(schema: str) -> None:
    op.create_table(
        "reload_position",
        sa.Column("run", sa.Uuid, nullable=False),
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("topic_id", sa.Uuid, nullable=False),
        sa.Column("first_offset", sa.BigInteger, nullable=False, comment="where the rebuild begins"),
        sa.Column("end_offset", sa.BigInteger, nullable=False, comment="the group's position when the run was opened"),
        sa.Column("next_offset", sa.BigInteger, nullable=False, comment="position of what is staged"),
        sa.Column("epoch", sa.BigInteger, nullable=False, comment="of the offset's row at the opening"),
        sa.Column("moves", sa.BigInteger, nullable=False, comment="by hand, as known at the opening"),
        sa.PrimaryKeyConstraint("run", "consumer_group", "topic", "partition", name=op.f("reload_position_pkey")),
        sa.ForeignKeyConstraint(["run"], [f"{schema}.reload_run.id"], name=op.f("reload_position_run_fkey")),
        schema=schema,
    )


def _staged(schema: str) -> None:
    op.create_table(
        "reload_staged",
        sa.Column("run", sa.Uuid, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False, comment="in the run's staging schema"),
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("from_offset", sa.BigInteger, nullable=False),
        sa.Column("to_offset", sa.BigInteger, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("row_counts", postgresql.ARRAY(sa.BigInteger), nullable=False, comment="of each sink's table"),
        sa.Column("dead_letters", sa.BigInteger, nullable=False),
        sa.Column("staged_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint("run", "table_name", name=op.f("reload_staged_pkey")),
        sa.ForeignKeyConstraint(["run"], [f"{schema}.reload_run.id"], name=op.f("reload_staged_run_fkey")),
        schema=schema,
    )


def _manifest(schema: str) -> None:
    op.create_table(
        "export_manifest",
        sa.Column("archive", sa.Text, nullable=False, comment="where the files are: a folder, or a URL"),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Uuid, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("from_offset", sa.BigInteger, nullable=False),
        sa.Column("to_offset", sa.BigInteger, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("file", sa.Text, nullable=False, comment="below the archive"),
        sa.Column("format", sa.Text, nullable=False, comment="parquet or delta"),
        sa.Column("consumer_group", sa.Text, nullable=False, comment="whose position bounded it"),
        sa.Column("run", sa.Uuid, nullable=False, comment="of the export that wrote it"),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint(
            "archive", "topic", "topic_id", "partition", "from_offset", name=op.f("export_manifest_pkey")
        ),
        sa.CheckConstraint("to_offset > from_offset", name=op.f("export_manifest_range_check")),
        schema=schema,
    )


def _export_run(schema: str) -> None:
    op.create_table(
        "export_run",
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("archive", sa.Text, nullable=False, comment="where its files are: a folder, or a URL"),
        sa.Column("consumer_group", sa.Text, nullable=False, comment="whose position bounded it"),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint("id", name=op.f("export_run_pkey")),
        schema=schema,
    )
