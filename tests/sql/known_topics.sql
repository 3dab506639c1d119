SELECT known.topic
FROM unnest((SELECT %(named_topic)s::TEXT[] AS anon_1)) AS named(topic) JOIN LATERAL (SELECT seekpoint.partition_offset.topic AS topic
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = named.topic ORDER BY seekpoint.partition_offset.partition
 LIMIT 1) AS known ON %(param_1)s;
