SELECT seekpoint.admin_action.to_offset, seekpoint.admin_action.actor, seekpoint.admin_action.reason, seekpoint.admin_action.at
FROM seekpoint.admin_action
WHERE seekpoint.admin_action.consumer_group = %(group)s::VARCHAR AND seekpoint.admin_action.topic = %(at_topic)s::VARCHAR AND seekpoint.admin_action.partition = %(at_partition)s::INTEGER AND seekpoint.admin_action.action = 'reset' ORDER BY seekpoint.admin_action.id DESC
 LIMIT 1;
