SELECT count(*) AS count_1
FROM seekpoint.reprocess_run
WHERE seekpoint.reprocess_run.consumer_group = %(group)s::VARCHAR;
