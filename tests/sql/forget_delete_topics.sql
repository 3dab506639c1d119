DELETE FROM seekpoint.group_topic WHERE seekpoint.group_topic.consumer_group = %(group)s::VARCHAR;
