"""What is left of a request for a replay that its worker has handed back: another worker continues there.

And the view of groups reads the workers once, not once for each group: those that ended are kept for a day. A worker's
row says what its trouble is. Additive: no row is rewritten.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from seekpoint.schema import run_in_schema, step

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# As in 0007, but for how workers are counted.
_GROUP_STATUS = """
CREATE OR REPLACE VIEW {schema}.group_status AS
SELECT g.name AS consumer_group, g.version, g.paused, g.paused_by, g.paused_reason,
       count(l.topic) AS partitions, count(l.owner) AS owned, count(l.stop_kind) AS stopped,
       count(l.topic) - count(l.lag_records) AS unknown_lag,
       CASE WHEN count(l.lag_records) = count(l.topic) THEN sum(l.lag_records)::bigint END AS lag_records,
       CASE WHEN count(l.lag_seconds) = count(l.topic) THEN max(l.lag_seconds) END AS lag_seconds,
       min(l.headroom_records) AS headroom_records, min(l.headroom_seconds) AS headroom_seconds,
       max(l.sample_age) AS sample_age, coalesce(sum(l.dead_letters), 0)::bigint AS dead_letters,
       max(l.committed_at) AS committed_at,
       {workers} AS workers
FROM {schema}.consumer_group g LEFT JOIN {schema}.lag l ON l.consumer_group = g.name
{join}WHERE g.forgotten IS NULL
GROUP BY g.name
"""
_EACH = """(SELECT count(*) FROM {schema}.worker w WHERE w.consumer_group = g.name AND w.state <> 'ended'
               AND w.seen_at > statement_timestamp() - interval '1 minute')"""
_JOIN = """LEFT JOIN (
    SELECT w.consumer_group, count(*) AS workers FROM {schema}.worker w
    WHERE w.state <> 'ended' AND w.seen_at > statement_timestamp() - interval '1 minute' GROUP BY w.consumer_group
) seen ON seen.consumer_group = g.name
"""
_NOW = _GROUP_STATUS.replace("{workers}", "coalesce(max(seen.workers), 0)").replace("{join}", _JOIN)
_BEFORE = _GROUP_STATUS.replace("{workers}", _EACH).replace("{join}", "")


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        comment = "ids that are left, where a worker has handed it back"
        op.add_column(
            "replay_request", sa.Column("remaining", postgresql.ARRAY(sa.BigInteger), comment=comment), schema=schema
        )
        comment = "what is wrong, or why it waits"
        op.add_column("worker", sa.Column("trouble", sa.Text, comment=comment), schema=schema)
        comment = "why, as the operator has said"
        op.add_column("lost_range", sa.Column("operator_reason", sa.Text, comment=comment), schema=schema)
        comment = "why the first ones were refused"
        op.add_column(
            "replay_request", sa.Column("refusals", postgresql.ARRAY(sa.Text), comment=comment), schema=schema
        )
        run_in_schema(schema, _NOW)


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        run_in_schema(schema, _BEFORE)
        op.drop_column("worker", "trouble", schema=schema)
        op.drop_column("lost_range", "operator_reason", schema=schema)
        op.drop_column("replay_request", "refusals", schema=schema)
        op.drop_column("replay_request", "remaining", schema=schema)
