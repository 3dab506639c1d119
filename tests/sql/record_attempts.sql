WITH ordered AS MATERIALIZED
(SELECT %(group)s::VARCHAR AS consumer_group, noted.topic AS topic, noted.partition AS partition, noted.token AS token, noted."offset" AS "offset", noted.number AS number, noted.error AS error, noted.wait AS wait, noted.allowed AS allowed, noted.policy AS policy
FROM unnest((SELECT %(noted_topic)s::TEXT[] AS anon_1), (SELECT %(noted_partition)s::INTEGER[] AS anon_2), (SELECT %(noted_token)s::UUID[] AS anon_3), (SELECT %(noted_offset)s::BIGINT[] AS anon_4), (SELECT %(noted_number)s::INTEGER[] AS anon_5), (SELECT %(noted_error)s::TEXT[] AS anon_6), (SELECT %(noted_wait)s::DOUBLE PRECISION[] AS anon_7), (SELECT %(noted_allowed)s::INTEGER[] AS anon_8), (SELECT %(noted_policy)s::TEXT[] AS anon_9)) AS noted(topic, partition, token, "offset", number, error, wait, allowed, policy) JOIN LATERAL (SELECT 1 AS one
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = noted.topic AND seekpoint.partition_offset.partition = noted.partition AND seekpoint.partition_offset.token = noted.token FOR NO KEY UPDATE) AS tried ON true),
written AS
(UPDATE seekpoint.partition_offset SET attempt_offset=ordered."offset", attempts=ordered.number, attempt_crashes=CASE WHEN (seekpoint.partition_offset.attempt_offset = ordered."offset") THEN seekpoint.partition_offset.attempt_crashes ELSE 0 END, attempt_running=(ordered.error IS NULL), attempt_error=coalesce(ordered.error, CASE WHEN (seekpoint.partition_offset.attempt_offset = ordered."offset") THEN seekpoint.partition_offset.attempt_error END), retry_at=CASE WHEN (ordered.error IS NULL AND seekpoint.partition_offset.attempt_offset = ordered."offset") THEN seekpoint.partition_offset.retry_at ELSE clock_timestamp() + ordered.wait * interval '1 second' END, attempts_allowed=ordered.allowed, attempt_policy=ordered.policy FROM ordered WHERE seekpoint.partition_offset.consumer_group = ordered.consumer_group AND seekpoint.partition_offset.topic = ordered.topic AND seekpoint.partition_offset.partition = ordered.partition AND seekpoint.partition_offset.token = ordered.token RETURNING 1 AS one),
rows AS
(SELECT count(*) AS n
FROM written)
 SELECT CASE WHEN (rows.n = %(expected)s::INTEGER) THEN rows.n ELSE CAST('seekpoint: the claim is not the expected one; attempts noted: ' || CAST(rows.n AS TEXT) AS INTEGER) END AS noted
FROM rows;
