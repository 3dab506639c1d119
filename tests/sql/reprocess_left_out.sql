SELECT seekpoint.dead_letter.record_offset, seekpoint.dead_letter.state
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR AND seekpoint.dead_letter.topic = %(topic)s::VARCHAR AND seekpoint.dead_letter.partition = %(partition)s::INTEGER AND seekpoint.dead_letter.topic_id = %(its_topic_id)s::UUID AND seekpoint.dead_letter.record_offset >= %(from_offset)s::BIGINT AND seekpoint.dead_letter.record_offset < %(to_offset)s::BIGINT AND seekpoint.dead_letter.state IN ('dead_lettered', 'blocked', 'skipped', 'discarded');
