"""A second revision, as a later release may have one: a column of the hot row, and a table with rows worth keeping.

Additive: no row is rewritten, and workers of the release before continue.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from seekpoint.schema import refuse_losing, run_in_schema, step

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with step(to=revision, since=down_revision, compatible_with="0001") as schema:
        remarks = sa.Column("remarks", sa.Integer, nullable=False, server_default=sa.text("0"))
        op.add_column("partition_offset", remarks, schema=schema)
        run_in_schema(schema, "CREATE TABLE seekpoint.note (consumer_group text NOT NULL, body text NOT NULL)")


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        refuse_losing(schema, "note", what="the notes", then="they are in no other place")
        op.drop_table("note", schema=schema)
        op.drop_column("partition_offset", "remarks", schema=schema)
