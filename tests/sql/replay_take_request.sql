UPDATE seekpoint.replay_request SET state='started', worker=%(its_owner)s::UUID, started_at=clock_timestamp(), seen_at=clock_timestamp() WHERE seekpoint.replay_request.id = (SELECT seekpoint.replay_request.id
FROM seekpoint.replay_request
WHERE seekpoint.replay_request.consumer_group = %(group)s::VARCHAR AND (seekpoint.replay_request.state = 'requested' OR seekpoint.replay_request.state = 'started' AND seekpoint.replay_request.worker = %(its_owner)s::UUID) AND (EXISTS (SELECT seekpoint.consumer_group.name
FROM seekpoint.consumer_group
WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR AND seekpoint.consumer_group.version = seekpoint.replay_request.version AND seekpoint.consumer_group.version = %(its_version)s::INTEGER AND seekpoint.consumer_group.paused IS false)) ORDER BY seekpoint.replay_request.id
 LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING seekpoint.replay_request.id, coalesce(seekpoint.replay_request.remaining, seekpoint.replay_request.dead_letters) AS dead_letters, seekpoint.replay_request.actor, seekpoint.replay_request.reason, seekpoint.replay_request.replayed, seekpoint.replay_request.failed, seekpoint.replay_request.refused, seekpoint.replay_request.refusals;
