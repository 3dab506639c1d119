SELECT max(seekpoint.admin_action.id) AS max_1
FROM seekpoint.admin_action
WHERE seekpoint.admin_action.consumer_group = %(group)s::VARCHAR AND seekpoint.admin_action.action = any(%(actions)s::TEXT[]);
