SELECT seekpoint.group_topic.consumer_group, seekpoint.group_topic.topic, seekpoint.group_topic.version, seekpoint.group_topic.tables, seekpoint.group_topic.replaced, seekpoint.group_topic.changed_at
FROM seekpoint.group_topic
WHERE seekpoint.group_topic.consumer_group = %(group)s::VARCHAR ORDER BY seekpoint.group_topic.topic;
