WITH moving AS MATERIALIZED
(SELECT %(group)s::VARCHAR AS consumer_group, moving.topic AS topic, moving.partition AS partition, moving.claim AS claim, moving.from_offset AS from_offset, moving.to_offset AS to_offset, moving.leader_epoch AS leader_epoch, moving.record_time AS record_time
FROM unnest((SELECT %(moving_topic)s::TEXT[] AS anon_1), (SELECT %(moving_partition)s::INTEGER[] AS anon_2), (SELECT %(moving_claim)s::UUID[] AS anon_3), (SELECT %(moving_from_offset)s::BIGINT[] AS anon_4), (SELECT %(moving_to_offset)s::BIGINT[] AS anon_5), (SELECT %(moving_leader_epoch)s::INTEGER[] AS anon_6), (SELECT %(moving_record_time)s::TIMESTAMP WITH TIME ZONE[] AS anon_7)) AS moving(topic, partition, claim, from_offset, to_offset, leader_epoch, record_time)),
moved AS
(UPDATE seekpoint.partition_offset SET next_offset=moving.to_offset, leader_epoch=moving.leader_epoch, unreleased_claims=%(param_3)s::INTEGER, attempt_offset=NULL, attempts=%(param_4)s::INTEGER, committed_at=clock_timestamp(), record_time=coalesce(moving.record_time, seekpoint.partition_offset.record_time), attempt_crashes=%(param_5)s::INTEGER, attempt_running=false, attempt_error=NULL, retry_at=NULL, attempts_allowed=NULL, attempt_policy=NULL FROM moving WHERE seekpoint.partition_offset.consumer_group = moving.consumer_group AND seekpoint.partition_offset.topic = moving.topic AND seekpoint.partition_offset.partition = moving.partition AND seekpoint.partition_offset.claim = moving.claim AND seekpoint.partition_offset.next_offset = moving.from_offset RETURNING 1 AS one),
rows AS
(SELECT count(*) AS n
FROM moved)
 SELECT CASE WHEN (rows.n = %(expected)s::INTEGER AND (%(transaction)s::VARCHAR IS NULL OR CAST(pg_current_xact_id() AS TEXT) = %(transaction)s::VARCHAR)) THEN rows.n WHEN (rows.n = %(expected)s::INTEGER) THEN CAST(%(param_1)s::VARCHAR || CAST(rows.n AS TEXT) AS INTEGER) ELSE CAST(%(param_2)s::VARCHAR || CAST(rows.n AS TEXT) AS INTEGER) END AS moved
FROM rows;
