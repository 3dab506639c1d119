-- Purges of closed dead letters.

-- name: clock
SELECT clock_timestamp();

-- name: count_closed
-- The dead letter of a skipped record was never open, so it has no closed_at.
SELECT state, count(*) AS n
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s
  AND state NOT IN ('dead_lettered', 'blocked', 'waiting')
  AND NOT (state = 'replayed' AND edited_at IS NOT NULL) -- the log has another value than the one that was applied
  AND coalesce(closed_at, dead_lettered_at) < %(before)s::timestamptz
GROUP BY state
ORDER BY state;

-- name: count_run_dead_letters
-- Those of reprocesses: no purge deletes them.
SELECT count(*)
FROM seekpoint.reprocess_dead_letter AS dead_letter
JOIN seekpoint.reload_run AS run ON run.id = dead_letter.run
WHERE run.groups = ARRAY[%(group)s::text]
  AND dead_letter.dead_lettered_at < %(before)s::timestamptz;

-- name: delete_closed
-- A dead letter that another session has locked may be opened again there, and is left to the next purge.
WITH deleted AS (
    DELETE FROM seekpoint.dead_letter
    WHERE id IN (
        SELECT id
        FROM seekpoint.dead_letter
        WHERE consumer_group = %(group)s
          AND state NOT IN ('dead_lettered', 'blocked', 'waiting')
          AND NOT (state = 'replayed' AND edited_at IS NOT NULL)
          AND state = ANY (%(states)s)
          AND coalesce(closed_at, dead_lettered_at) < %(before)s::timestamptz
        FOR UPDATE SKIP LOCKED
    )
    RETURNING state
)
SELECT state, count(*) AS n FROM deleted GROUP BY state ORDER BY state;
