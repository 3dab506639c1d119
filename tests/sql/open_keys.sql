SELECT asked.topic, asked.partition, open.key, open.first
FROM unnest((SELECT %(asked_topic)s::TEXT[] AS anon_1), (SELECT %(asked_partition)s::INTEGER[] AS anon_2)) AS asked(topic, partition) JOIN LATERAL (SELECT seekpoint.partition_offset.topic_id AS topic_id
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = asked.topic AND seekpoint.partition_offset.partition = asked.partition
 LIMIT 1) AS today ON true JOIN LATERAL (SELECT seekpoint.dead_letter.key AS key, min(seekpoint.dead_letter.record_offset) AS first
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR AND seekpoint.dead_letter.topic = asked.topic AND seekpoint.dead_letter.partition = asked.partition AND seekpoint.dead_letter.topic_id = today.topic_id AND seekpoint.dead_letter.key IS NOT NULL AND seekpoint.dead_letter.state IN ('parked', 'held') GROUP BY seekpoint.dead_letter.key) AS open ON true;
