UPDATE seekpoint.replay_request SET state='failed', error=%(its_error)s::VARCHAR, ended_at=clock_timestamp() WHERE seekpoint.replay_request.consumer_group = %(group)s::VARCHAR AND seekpoint.replay_request.state = 'requested' AND (EXISTS (SELECT seekpoint.consumer_group.name
FROM seekpoint.consumer_group
WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR AND seekpoint.consumer_group.version > seekpoint.replay_request.version));
