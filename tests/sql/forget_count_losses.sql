SELECT count(*) AS count_1
FROM seekpoint.lost_range
WHERE seekpoint.lost_range.consumer_group = %(group)s::VARCHAR;
