SELECT seekpoint.dead_letter.topic, seekpoint.dead_letter.partition
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR AND seekpoint.dead_letter.id = %(id)s::BIGINT;
