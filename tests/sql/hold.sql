WITH rows AS
(SELECT count(*) AS n
FROM unnest((SELECT %(held_topic)s::TEXT[] AS anon_1), (SELECT %(held_partition)s::INTEGER[] AS anon_2), (SELECT %(held_token)s::UUID[] AS anon_3), (SELECT %(held_from_offset)s::BIGINT[] AS anon_4)) AS held(topic, partition, token, from_offset) JOIN LATERAL (SELECT 1 AS one
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = held.topic AND seekpoint.partition_offset.partition = held.partition AND seekpoint.partition_offset.token = held.token AND seekpoint.partition_offset.next_offset = held.from_offset FOR NO KEY UPDATE) AS locked ON %(param_5)s)
 SELECT CASE WHEN (rows.n = %(expected)s::INTEGER) THEN rows.n ELSE CAST(%(param_1)s::VARCHAR || CAST(rows.n AS TEXT) AS INTEGER) END AS held, CAST(pg_current_xact_id() AS TEXT) AS transaction, set_config(%(param_2)s::VARCHAR, %(application_name)s::VARCHAR, %(set_config_1)s) AS application_name, set_config(%(param_3)s::VARCHAR, %(synchronous_commit)s::VARCHAR, %(set_config_2)s) AS synchronous_commit, set_config(%(param_4)s::VARCHAR, %(idle_in_transaction_session_timeout)s::VARCHAR, %(set_config_3)s) AS idle_in_transaction_session_timeout
FROM rows;
