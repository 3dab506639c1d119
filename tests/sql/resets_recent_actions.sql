SELECT seekpoint.admin_action.id, seekpoint.admin_action.consumer_group, seekpoint.admin_action.action, seekpoint.admin_action.topic, seekpoint.admin_action.partition, seekpoint.admin_action.from_offset, seekpoint.admin_action.to_offset, seekpoint.admin_action.actor, seekpoint.admin_action.reason, seekpoint.admin_action.at
FROM seekpoint.admin_action
WHERE (%(its_action)s::VARCHAR IS NULL OR seekpoint.admin_action.action = %(its_action)s::VARCHAR) AND (%(its_actor)s::VARCHAR IS NULL OR seekpoint.admin_action.actor = %(its_actor)s::VARCHAR) AND (%(before_id)s::BIGINT IS NULL OR seekpoint.admin_action.id < %(before_id)s::BIGINT) ORDER BY seekpoint.admin_action.id DESC
 LIMIT %(most)s::BIGINT;
