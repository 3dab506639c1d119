SELECT activity.application_name, activity.xact_start
FROM seekpoint.partition_offset AS blocked JOIN pg_stat_activity AS activity ON activity.backend_xid = blocked.xmax
WHERE blocked.consumer_group = %(group)s::VARCHAR AND blocked.topic = %(topic)s::VARCHAR AND blocked.partition = %(partition)s::INTEGER;
