"""Groups that operators have forgotten: their positions, kept for an undo; the view of groups leaves them out.

Additive: no row is rewritten, and the lock lasts for a moment, so workers of the release before continue while it is
applied.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from seekpoint.schema import refuse_losing, run_in_schema, step

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# As in 0006, but for the WHERE.
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
       (SELECT count(*) FROM {schema}.worker w WHERE w.consumer_group = g.name AND w.state <> 'ended'
               AND w.seen_at > statement_timestamp() - interval '1 minute') AS workers
FROM {schema}.consumer_group g LEFT JOIN {schema}.lag l ON l.consumer_group = g.name
{where}GROUP BY g.name
"""


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        comment = "who forgot the group, when and why, and its positions; NULL: it is not forgotten"
        op.add_column("consumer_group", sa.Column("forgotten", postgresql.JSONB, comment=comment), schema=schema)
        run_in_schema(schema, _GROUP_STATUS.replace("{where}", "WHERE g.forgotten IS NULL\n"))


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        refuse_losing(
            schema,
            "consumer_group",
            what="the positions of forgotten groups",
            then="a worker that starts under such a name would apply every record again",
            where="forgotten IS NOT NULL",
            named="name",
        )
        run_in_schema(schema, _GROUP_STATUS.replace("{where}", ""))
        op.drop_column("consumer_group", "forgotten", schema=schema)
