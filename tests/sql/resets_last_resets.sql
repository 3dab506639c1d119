SELECT seekpoint.admin_action.topic, seekpoint.admin_action.partition, max(seekpoint.admin_action.id) AS id
FROM seekpoint.admin_action
WHERE seekpoint.admin_action.consumer_group = %(group)s::VARCHAR AND seekpoint.admin_action.action = 'reset' GROUP BY seekpoint.admin_action.topic, seekpoint.admin_action.partition;
