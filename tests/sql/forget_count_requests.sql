SELECT count(*) AS count_1
FROM seekpoint.replay_request
WHERE seekpoint.replay_request.consumer_group = %(group)s::VARCHAR;
