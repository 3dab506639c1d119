SELECT count(*) AS count_1
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR AND seekpoint.dead_letter.state IN ('dead_lettered', 'blocked') AND seekpoint.dead_letter.key IS NOT NULL AND seekpoint.dead_letter.topic_id = any(%(topic_ids)s::UUID[]);
