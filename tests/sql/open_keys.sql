WITH RECURSIVE step(topic, partition, topic_id, key, hash, first) AS
(SELECT asked.topic AS topic, asked.partition AS partition, today.topic_id AS topic_id, CAST(NULL AS BYTEA) AS key, CAST('' AS BYTEA) AS hash, CAST(NULL AS BIGINT) AS first
FROM unnest((SELECT %(asked_topic)s::TEXT[] AS anon_1), (SELECT %(asked_partition)s::INTEGER[] AS anon_2)) AS asked(topic, partition) JOIN LATERAL (SELECT seekpoint.partition_offset.topic_id AS topic_id
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = asked.topic AND seekpoint.partition_offset.partition = asked.partition
 LIMIT 1) AS today ON true UNION ALL SELECT step.topic AS topic, step.partition AS partition, step.topic_id AS topic_id, next.key AS key, next.hash AS hash, next.record_offset AS record_offset
FROM step JOIN LATERAL (SELECT seekpoint.dead_letter.consumer_group AS consumer_group, seekpoint.dead_letter.topic_id AS topic_id, seekpoint.dead_letter.partition AS partition, seekpoint.dead_letter.key AS key, sha256(seekpoint.dead_letter.key) AS hash, seekpoint.dead_letter.record_offset AS record_offset
FROM seekpoint.dead_letter
WHERE (seekpoint.dead_letter.consumer_group, seekpoint.dead_letter.topic_id, seekpoint.dead_letter.partition, sha256(seekpoint.dead_letter.key)) > (%(group)s::VARCHAR, step.topic_id, step.partition, step.hash) AND seekpoint.dead_letter.key IS NOT NULL AND seekpoint.dead_letter.state IN ('dead_lettered', 'blocked') ORDER BY seekpoint.dead_letter.consumer_group, seekpoint.dead_letter.topic_id, seekpoint.dead_letter.partition, sha256(seekpoint.dead_letter.key), seekpoint.dead_letter.record_offset
 LIMIT 1) AS next ON true
WHERE next.consumer_group = %(group)s::VARCHAR AND next.topic_id = step.topic_id AND next.partition = step.partition)
 SELECT step.topic, step.partition, step.key, step.first
FROM step
WHERE step.key IS NOT NULL;
