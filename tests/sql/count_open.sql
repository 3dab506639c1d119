SELECT seekpoint.dead_letter.topic, seekpoint.dead_letter.partition, count(*) AS n
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR AND seekpoint.dead_letter.state IN ('dead_lettered', 'blocked') GROUP BY seekpoint.dead_letter.topic, seekpoint.dead_letter.partition ORDER BY seekpoint.dead_letter.topic, seekpoint.dead_letter.partition;
