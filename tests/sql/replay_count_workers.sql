SELECT count(*) AS count_1
FROM seekpoint.worker
WHERE seekpoint.worker.consumer_group = %(group)s::VARCHAR AND seekpoint.worker.version = %(its_version)s::INTEGER AND seekpoint.worker.state != 'ended' AND seekpoint.worker.seen_at > clock_timestamp() - interval '1 minute';
