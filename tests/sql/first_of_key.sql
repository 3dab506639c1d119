SELECT min(seekpoint.dead_letter.record_offset) AS min_1
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR AND seekpoint.dead_letter.topic_id = %(topic_id)s::UUID AND seekpoint.dead_letter.partition = %(partition)s::INTEGER AND sha256(seekpoint.dead_letter.key) = sha256(%(key)s) AND seekpoint.dead_letter.key = %(key)s AND seekpoint.dead_letter.state IN ('dead_lettered', 'blocked') GROUP BY seekpoint.dead_letter.key;
