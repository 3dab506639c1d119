SELECT seekpoint.group_topic.topic, seekpoint.group_topic.version, seekpoint.group_topic.tables, seekpoint.group_topic.replaced
FROM seekpoint.group_topic
WHERE seekpoint.group_topic.consumer_group = %(group)s::VARCHAR AND seekpoint.group_topic.topic = any(%(declared_topic)s::TEXT[]);
