SELECT coalesce(max(seekpoint.admin_action.id), 0) AS coalesce_1
FROM seekpoint.admin_action
WHERE seekpoint.admin_action.consumer_group = %(group)s::VARCHAR AND seekpoint.admin_action.action = %(param_1)s::VARCHAR;
