SELECT count(*) AS count_1
FROM seekpoint.reprocess_dead_letter JOIN seekpoint.reprocess_run ON seekpoint.reprocess_run.id = seekpoint.reprocess_dead_letter.run
WHERE seekpoint.reprocess_run.consumer_group = %(group)s::VARCHAR AND seekpoint.reprocess_run.state != 'open' AND seekpoint.reprocess_dead_letter.dead_lettered_at < %(before)s::TIMESTAMP WITH TIME ZONE;
