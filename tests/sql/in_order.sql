SELECT seekpoint.dead_letter.id
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR AND seekpoint.dead_letter.id = any(%(ids)s::BIGINT[]) ORDER BY seekpoint.dead_letter.topic, seekpoint.dead_letter.partition, seekpoint.dead_letter.record_offset, seekpoint.dead_letter.id;
