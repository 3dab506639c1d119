WITH ordered AS MATERIALIZED
(SELECT %(group)s::VARCHAR AS consumer_group, released.topic AS topic, released.partition AS partition, released.claim AS claim
FROM unnest((SELECT %(released_topic)s::TEXT[] AS anon_1), (SELECT %(released_partition)s::INTEGER[] AS anon_2), (SELECT %(released_claim)s::UUID[] AS anon_3)) AS released(topic, partition, claim) JOIN LATERAL (SELECT 1 AS one
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = released.topic AND seekpoint.partition_offset.partition = released.partition AND seekpoint.partition_offset.claim = released.claim FOR NO KEY UPDATE) AS mine ON %(param_1)s)
 UPDATE seekpoint.partition_offset SET owner=NULL, attempts=CASE WHEN seekpoint.partition_offset.attempt_running THEN seekpoint.partition_offset.attempts - %(attempts_1)s::INTEGER ELSE seekpoint.partition_offset.attempts END, attempt_running=false FROM ordered WHERE seekpoint.partition_offset.consumer_group = ordered.consumer_group AND seekpoint.partition_offset.topic = ordered.topic AND seekpoint.partition_offset.partition = ordered.partition AND seekpoint.partition_offset.claim = ordered.claim;
