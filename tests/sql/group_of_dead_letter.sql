SELECT seekpoint.dead_letter.consumer_group
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.id = %(id)s::BIGINT;
