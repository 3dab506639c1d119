SELECT count(*) AS count_1
FROM seekpoint.reprocess_dead_letter
WHERE seekpoint.reprocess_dead_letter.run IN (SELECT seekpoint.reprocess_run.id
FROM seekpoint.reprocess_run
WHERE seekpoint.reprocess_run.consumer_group = %(group)s::VARCHAR);
