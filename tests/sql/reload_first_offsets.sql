SELECT seekpoint.admin_action.topic, seekpoint.admin_action.partition, max(seekpoint.admin_action.from_offset) AS first_offset
FROM seekpoint.admin_action
WHERE seekpoint.admin_action.consumer_group = %(group)s::VARCHAR AND seekpoint.admin_action.action = %(param_1)s::VARCHAR AND seekpoint.admin_action.id > (SELECT coalesce(max(began.id), 0) AS coalesce_1
FROM seekpoint.admin_action AS began
WHERE began.consumer_group = %(group)s::VARCHAR AND began.action = %(param_2)s::VARCHAR) GROUP BY seekpoint.admin_action.topic, seekpoint.admin_action.partition;
