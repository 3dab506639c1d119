"""What operators look at: running workers, samples of positions and logs, declarations, the views of lag and groups.

With them, what the comparison of a reload counted, and where the log of a stopped partition ended, which decides about
what was lost.

Additive: no row is rewritten, and each lock lasts for a moment, so workers of the release before continue while it is
applied. The new tables are for display: no row of them is needed for the offsets, and a downgrade drops them unasked.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from seekpoint.schema import run_in_schema, step

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# The newest sample of a partition, as long as it is not older than three minutes, says where its log begins and ends.
# A sample of an earlier life of the topic is of another log: that is compared after LIMIT, so that the planner reads
# the index backwards. The age of the next record is interpolated between the two samples around the time when the log's
# end was the position; before the first sample, the last applied record's age is known. The log's start is
# extrapolated over at most a day. The last columns are for the exporter, which asks brokers where the log begins and
# ends now: they are there, too, where the last sample is old, since the worker is dead.
_LAG = """
CREATE VIEW {schema}.lag AS
SELECT o.consumer_group, o.topic, o.partition, o.next_offset, o.committed_at, o.record_time, o.owner,
       w.host, w.pid, o.stop_kind, o.stop_offset, o.stopped_at, coalesce(d.dead_letters, 0) AS dead_letters,
       s.at AS sampled_at, statement_timestamp() - s.at AS sample_age, s.log_start, s.log_end,
       fresh.lag AS lag_records,
       CASE WHEN fresh.lag = 0 THEN 0
            WHEN fresh.lag > 0 AND came.at IS NOT NULL
                THEN extract(epoch FROM statement_timestamp() - came.at)::float8
            WHEN fresh.lag > 0 AND o.record_time IS NOT NULL  -- greatest() leaves NULL out
                THEN greatest(extract(epoch FROM statement_timestamp() - o.record_time)::float8, 0)
       END AS lag_seconds,
       fresh.headroom AS headroom_records,
       CASE WHEN fresh.headroom IS NOT NULL AND s.log_start > past.log_start THEN greatest(fresh.headroom, 0)
            / ((s.log_start - past.log_start) / extract(epoch FROM s.at - past.at)::float8) END AS headroom_seconds,
       (w.state <> 'ended' AND w.seen_at > statement_timestamp() - interval '1 minute') IS TRUE AS owned,
       came.at AS next_record_at, before.at AS reached_at, before.log_end AS reached_end,
       coalesce(past.at, s.at) AS log_start_since, coalesce(past.log_start, s.log_start) AS past_log_start
FROM {schema}.partition_offset o
LEFT JOIN {schema}.worker w ON w.owner = o.owner
LEFT JOIN (
    SELECT consumer_group, topic, partition, count(*) AS dead_letters FROM {schema}.dead_letter
    WHERE state IN ('dead_lettered', 'blocked') GROUP BY consumer_group, topic, partition
) d ON d.consumer_group = o.consumer_group AND d.topic = o.topic AND d.partition = o.partition
LEFT JOIN LATERAL (
    SELECT p.at, p.topic_id, p.next_offset, p.log_start, p.log_end FROM {schema}.position_sample p
    WHERE p.consumer_group = o.consumer_group AND p.topic = o.topic AND p.partition = o.partition
    ORDER BY p.at DESC LIMIT 1
) s ON s.topic_id = o.topic_id
LEFT JOIN LATERAL (
    SELECT CASE WHEN s.next_offset <= s.log_end THEN greatest(s.log_end - o.next_offset, 0) END AS lag,
           o.next_offset - s.log_start AS headroom
    WHERE s.at > statement_timestamp() - interval '3 minutes'
) fresh ON true
LEFT JOIN LATERAL (
    SELECT p.at, p.topic_id, p.log_end FROM {schema}.position_sample p
    WHERE p.consumer_group = o.consumer_group AND p.topic = o.topic AND p.partition = o.partition
          AND p.log_end <= o.next_offset
    ORDER BY p.at DESC LIMIT 1
) before ON before.topic_id = o.topic_id
LEFT JOIN LATERAL (
    SELECT p.at, p.log_end FROM {schema}.position_sample p
    WHERE p.consumer_group = o.consumer_group AND p.topic = o.topic AND p.partition = o.partition
          AND p.at > before.at AND p.log_end > o.next_offset
    ORDER BY p.at LIMIT 1
) after ON true
LEFT JOIN LATERAL (
    SELECT before.at + (after.at - before.at)
           * ((o.next_offset - before.log_end)::float8 / (after.log_end - before.log_end)) AS at
) came ON true
LEFT JOIN LATERAL (
    SELECT p.at, p.topic_id, p.log_start FROM {schema}.position_sample p
    WHERE p.consumer_group = o.consumer_group AND p.topic = o.topic AND p.partition = o.partition
          AND p.at > statement_timestamp() - interval '1 day' AND p.at < s.at
    ORDER BY p.at LIMIT 1
) past ON past.topic_id = o.topic_id
"""
# What is not known of one partition is not known of the group: a sum over the others would look healthy.
_GROUP_STATUS = """
CREATE VIEW {schema}.group_status AS
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
GROUP BY g.name
"""


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        op.add_column(
            "consumer_group",
            sa.Column("declared", postgresql.JSONB, comment="what its pipeline declares, by topic, for display"),
            schema=schema,
        )
        comment = "rows of each table, as the comparison counted them, for display"
        op.add_column("reload_run", sa.Column("differences", postgresql.JSONB, comment=comment), schema=schema)
        comment = "where the log ended when it stopped with OffsetLost"
        op.add_column("partition_offset", sa.Column("stop_log_end", sa.BigInteger, comment=comment), schema=schema)
        op.create_table("worker", *_worker(), schema=schema)
        op.create_table("position_sample", *_position_sample(), schema=schema)
        run_in_schema(schema, _LAG)
        run_in_schema(schema, _GROUP_STATUS)


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        run_in_schema(schema, "DROP VIEW {schema}.group_status")
        run_in_schema(schema, "DROP VIEW {schema}.lag")
        op.drop_table("position_sample", schema=schema)
        op.drop_table("worker", schema=schema)
        op.drop_column("reload_run", "differences", schema=schema)
        op.drop_column("partition_offset", "stop_log_end", schema=schema)
        op.drop_column("consumer_group", "declared", schema=schema)


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp())


def _worker() -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("owner", sa.Uuid, nullable=False, comment="as in partition_offset"),
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("client_id", sa.Text, comment="of its Kafka client; NULL: the client's default"),
        sa.Column("version", sa.Integer, nullable=False, comment="handler version"),
        sa.Column("library", sa.Text, nullable=False, comment="version of Seekpoint"),
        _time("started_at"),
        _time("seen_at"),
        sa.Column("state", sa.Text, nullable=False, comment="running, paused, trouble or ended"),
        sa.PrimaryKeyConstraint("owner", name=op.f("worker_pkey")),
    ]


def _position_sample() -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        _time("at"),
        sa.Column("topic_id", sa.Uuid, nullable=False, comment="whose log it is"),
        sa.Column("next_offset", sa.BigInteger, nullable=False, comment="the stored position"),
        sa.Column("log_start", sa.BigInteger, nullable=False, comment="first offset that is still in the log"),
        sa.Column("log_end", sa.BigInteger, nullable=False, comment="after the last record that can be read"),
        sa.PrimaryKeyConstraint("consumer_group", "topic", "partition", "at", name=op.f("position_sample_pkey")),
    ]
