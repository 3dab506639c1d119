SELECT DISTINCT activity.pid
FROM unnest((SELECT %(asked_topic)s::TEXT[] AS anon_1), (SELECT %(asked_partition)s::INTEGER[] AS anon_2)) AS asked(topic, partition) JOIN seekpoint.partition_offset AS blocked ON blocked.consumer_group = %(group)s::VARCHAR AND blocked.topic = asked.topic AND blocked.partition = asked.partition JOIN pg_stat_activity AS activity ON activity.backend_xid = blocked.xmax
WHERE (activity.application_name LIKE %(application_name_1)s::VARCHAR || '%%') AND activity.xact_start < clock_timestamp() - CAST(%(age)s AS INTERVAL);
