-- Purges of closed dead letters.

-- name: clock
SELECT clock_timestamp();

-- name: count_closed
-- A skipped record's was never open: it has no time at which it was closed.
SELECT state, count(*) AS n
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s
  AND state NOT IN ('dead_lettered', 'blocked')
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
-- One that another session has locked may be opened again there, and is left to the next purge.
WITH deleted AS (
    DELETE FROM seekpoint.dead_letter
    WHERE id IN (
        SELECT id
        FROM seekpoint.dead_letter
        WHERE consumer_group = %(group)s
          AND state NOT IN ('dead_lettered', 'blocked')
          AND state = ANY (%(states)s)
          AND coalesce(closed_at, dead_lettered_at) < %(before)s::timestamptz
        FOR UPDATE SKIP LOCKED
    )
    RETURNING state
)
SELECT state, count(*) AS n FROM deleted GROUP BY state ORDER BY state;
