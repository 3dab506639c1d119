SELECT seekpoint.dead_letter.state, count(*) AS n
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR GROUP BY seekpoint.dead_letter.state ORDER BY seekpoint.dead_letter.state;
