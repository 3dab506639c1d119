SELECT EXISTS (SELECT seekpoint.replay_request.id
FROM seekpoint.replay_request
WHERE seekpoint.replay_request.consumer_group = %(group)s::VARCHAR AND (seekpoint.replay_request.state = 'requested' OR seekpoint.replay_request.state = 'started' AND seekpoint.replay_request.worker = %(its_owner)s::UUID) AND (EXISTS (SELECT seekpoint.consumer_group.name
FROM seekpoint.consumer_group
WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR AND seekpoint.consumer_group.version = seekpoint.replay_request.version AND seekpoint.consumer_group.version = %(its_version)s::INTEGER AND seekpoint.consumer_group.paused IS false)) ORDER BY seekpoint.replay_request.id
 LIMIT 1) AS is_requested, EXISTS (SELECT seekpoint.consumer_group.name
FROM seekpoint.consumer_group
WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR AND seekpoint.consumer_group.paused) AS is_paused;
