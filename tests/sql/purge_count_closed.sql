SELECT seekpoint.dead_letter.state, count(*) AS n
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR AND (seekpoint.dead_letter.state NOT IN ('dead_lettered', 'blocked')) AND coalesce(seekpoint.dead_letter.closed_at, seekpoint.dead_letter.dead_lettered_at) < %(before)s::TIMESTAMP WITH TIME ZONE GROUP BY seekpoint.dead_letter.state ORDER BY seekpoint.dead_letter.state;
