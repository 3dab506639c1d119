DELETE FROM seekpoint.position_sample WHERE position_sample.ctid = any(array((SELECT "old".ctid
FROM (SELECT position_sample.ctid AS ctid, seekpoint.position_sample.at AS at, row_number() OVER (PARTITION BY seekpoint.position_sample.topic, seekpoint.position_sample.partition, date_trunc(%(param_1)s::VARCHAR, seekpoint.position_sample.at) ORDER BY seekpoint.position_sample.at) AS place
FROM seekpoint.position_sample, unnest((SELECT %(pruned_topic)s::TEXT[] AS anon_1), (SELECT %(pruned_partition)s::INTEGER[] AS anon_2)) AS pruned(topic, partition)
WHERE seekpoint.position_sample.consumer_group = %(group)s::VARCHAR AND seekpoint.position_sample.topic = pruned.topic AND seekpoint.position_sample.partition = pruned.partition AND seekpoint.position_sample.at < clock_timestamp() - CAST('1 day' AS INTERVAL)) AS "old"
WHERE "old".place > %(place_1)s::INTEGER OR "old".at < clock_timestamp() - CAST('30 days' AS INTERVAL))));
