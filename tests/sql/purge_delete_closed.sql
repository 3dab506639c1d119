WITH deleted AS
(DELETE FROM seekpoint.dead_letter WHERE seekpoint.dead_letter.id IN (SELECT seekpoint.dead_letter.id
FROM seekpoint.dead_letter
WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR AND (seekpoint.dead_letter.state NOT IN ('dead_lettered', 'blocked')) AND coalesce(seekpoint.dead_letter.closed_at, seekpoint.dead_letter.dead_lettered_at) < %(before)s::TIMESTAMP WITH TIME ZONE AND seekpoint.dead_letter.state = any(%(states)s::TEXT[]) FOR UPDATE SKIP LOCKED) RETURNING seekpoint.dead_letter.state)
 SELECT deleted.state, count(*) AS n
FROM deleted GROUP BY deleted.state ORDER BY deleted.state;
