SELECT before.topic, before.partition, before.topic_id, before.next_offset
FROM unnest((SELECT %(asked_topic)s::TEXT[] AS anon_1), (SELECT %(asked_partition)s::INTEGER[] AS anon_2)) AS asked(topic, partition) JOIN LATERAL (SELECT seekpoint.position_sample.topic AS topic, seekpoint.position_sample.partition AS partition, seekpoint.position_sample.topic_id AS topic_id, seekpoint.position_sample.next_offset AS next_offset
FROM seekpoint.position_sample
WHERE seekpoint.position_sample.consumer_group = %(group)s::VARCHAR AND seekpoint.position_sample.topic = asked.topic AND seekpoint.position_sample.partition = asked.partition AND seekpoint.position_sample.at <= %(moment)s::TIMESTAMP WITH TIME ZONE ORDER BY seekpoint.position_sample.at DESC
 LIMIT 1) AS before ON %(param_1)s;
