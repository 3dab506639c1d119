SELECT seekpoint.admin_action.topic, seekpoint.admin_action.partition, seekpoint.admin_action.from_offset, seekpoint.admin_action.to_offset, seekpoint.admin_action.at
FROM seekpoint.admin_action
WHERE seekpoint.admin_action.consumer_group = %(group)s::VARCHAR AND seekpoint.admin_action.action = 'reset' AND seekpoint.admin_action.id > (SELECT coalesce(max(began.id), 0) AS coalesce_1
FROM seekpoint.admin_action AS began
WHERE began.consumer_group = %(group)s::VARCHAR AND began.action = %(param_1)s::VARCHAR) ORDER BY seekpoint.admin_action.id;
