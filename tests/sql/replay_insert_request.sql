INSERT INTO seekpoint.replay_request (consumer_group, version, dead_letters, state, actor, reason) SELECT seekpoint.consumer_group.name, seekpoint.consumer_group.version, %(its_dead_letters)s::BIGINT[] AS anon_1, 'requested', %(its_actor)s::VARCHAR AS anon_2, %(its_reason)s::VARCHAR AS anon_3
FROM seekpoint.consumer_group
WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR RETURNING seekpoint.replay_request.id;
