WITH rows AS
(SELECT count(*) AS n
FROM unnest((SELECT %(held_topic)s::TEXT[] AS anon_1), (SELECT %(held_partition)s::INTEGER[] AS anon_2), (SELECT %(held_token)s::UUID[] AS anon_3), (SELECT %(held_from_offset)s::BIGINT[] AS anon_4)) AS held(topic, partition, token, from_offset) JOIN LATERAL (SELECT 1 AS one
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = held.topic AND seekpoint.partition_offset.partition = held.partition AND seekpoint.partition_offset.token = held.token AND seekpoint.partition_offset.next_offset = held.from_offset FOR NO KEY UPDATE) AS locked ON true)
 SELECT CASE WHEN (rows.n = %(expected)s::INTEGER) THEN rows.n ELSE CAST('seekpoint: claim or position is not the expected one; rows held: ' || CAST(rows.n AS TEXT) AS INTEGER) END AS held, CAST(pg_current_xact_id() AS TEXT) AS transaction, set_config('application_name', %(application_name)s::VARCHAR, true) AS application_name, set_config('synchronous_commit', %(synchronous_commit)s::VARCHAR, true) AS synchronous_commit, set_config('idle_in_transaction_session_timeout', %(idle_in_transaction_session_timeout)s::VARCHAR, true) AS idle_in_transaction_session_timeout
FROM rows;
