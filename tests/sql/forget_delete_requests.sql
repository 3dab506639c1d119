DELETE FROM seekpoint.replay_request WHERE seekpoint.replay_request.consumer_group = %(group)s::VARCHAR;
