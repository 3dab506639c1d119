SELECT seekpoint.admin_action.id, seekpoint.admin_action.consumer_group, seekpoint.admin_action.action, seekpoint.admin_action.topic, seekpoint.admin_action.partition, seekpoint.admin_action.from_offset, seekpoint.admin_action.to_offset, seekpoint.admin_action.actor, seekpoint.admin_action.reason, seekpoint.admin_action.at
FROM seekpoint.admin_action
WHERE seekpoint.admin_action.consumer_group = %(group)s::VARCHAR AND (%(topics)s::TEXT[] IS NULL OR seekpoint.admin_action.topic = any(%(topics)s::TEXT[])) AND (%(its_partition)s::INTEGER IS NULL OR seekpoint.admin_action.partition = %(its_partition)s::INTEGER) ORDER BY seekpoint.admin_action.id DESC
 LIMIT %(most)s::BIGINT;
