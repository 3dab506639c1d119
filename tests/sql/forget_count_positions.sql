SELECT count(*) AS count_1
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR;
