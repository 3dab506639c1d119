-- Runs that apply a bounded range of a partition again.
-- A run's row is locked after the group's and the partition's. Nothing here changes a row of partition_offset.

-- name: last_run
-- The newest over exactly this range.
SELECT id, consumer_group, topic, partition, topic_id, from_offset, to_offset, next_offset, version,
       records, dead_letters, state, actor, reason, opened_at, changed_at
FROM seekpoint.reprocess_run
WHERE consumer_group = %(group)s
  AND topic = %(topic)s
  AND partition = %(partition)s
  AND topic_id = %(topic_id)s
  AND from_offset = %(from_offset)s
  AND to_offset = %(to_offset)s
ORDER BY opened_at DESC, id
LIMIT 1;

-- name: insert_run
INSERT INTO seekpoint.reprocess_run
    (consumer_group, state, id, topic, partition, topic_id, from_offset, to_offset, next_offset, version,
     actor, reason)
VALUES (%(group)s, 'open', %(id)s, %(topic)s, %(partition)s, %(topic_id)s, %(from_offset)s, %(to_offset)s,
        %(next_offset)s, %(version)s, %(actor)s, %(reason)s);

-- name: abandon_run
UPDATE seekpoint.reprocess_run
SET state = 'abandoned', changed_at = clock_timestamp()
WHERE id = %(run)s AND state = 'open';

-- name: get_run
SELECT id, consumer_group, topic, partition, topic_id, from_offset, to_offset, next_offset, version,
       records, dead_letters, state, actor, reason, opened_at, changed_at
FROM seekpoint.reprocess_run
WHERE id = %(run)s;

-- name: lock_run
SELECT id, consumer_group, topic, partition, topic_id, from_offset, to_offset, next_offset, version,
       records, dead_letters, state, actor, reason, opened_at, changed_at
FROM seekpoint.reprocess_run
WHERE id = %(run)s
FOR UPDATE;

-- name: advance_run
-- In the transaction that has written the rows. It changes no row where a COMMIT was sent since the transaction began,
-- or where the run is not where the records were read from (I1, I3, of the run).
UPDATE seekpoint.reprocess_run
SET next_offset = %(to_offset)s::bigint,
    records = records + %(applied)s,
    dead_letters = dead_letters + %(failed)s,
    state = CASE WHEN to_offset = %(to_offset)s::bigint THEN 'done' ELSE state END,
    changed_at = clock_timestamp()
WHERE id = %(run)s
  AND state = 'open'
  AND next_offset = %(from_offset)s
  AND pg_current_xact_id()::text = %(transaction)s;

-- name: insert_run_dead_letters
INSERT INTO seekpoint.reprocess_dead_letter
    (run, record_offset, leader_epoch, timestamp_ms, key, value, header_names, header_values, state, cause, error,
     traceback, sqlstate)
VALUES (%(run)s, %(record_offset)s, %(leader_epoch)s, %(timestamp_ms)s, %(key)s::bytea, %(value)s::bytea,
        %(header_names)s::bytea[], %(header_values)s::bytea[], %(state)s, %(cause)s, %(error)s, %(traceback)s,
        %(sqlstate)s);

-- name: run_dead_letters
SELECT record_offset, key, state, cause, error, sqlstate
FROM seekpoint.reprocess_dead_letter
WHERE run = %(run)s
ORDER BY record_offset
LIMIT %(most)s;

-- name: blocked_keys
-- The keys that the run's own dead letters block, with the first offset of each.
SELECT key, min(record_offset) AS first
FROM seekpoint.reprocess_dead_letter
WHERE run = %(run)s AND key IS NOT NULL
GROUP BY key;

-- name: left_out
-- The group's own dead letters of a range whose records are not applied: a replay does so, or they were given up.
SELECT record_offset, state
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s
  AND topic = %(topic)s
  AND partition = %(partition)s
  AND topic_id = %(topic_id)s
  AND record_offset >= %(from_offset)s
  AND record_offset < %(to_offset)s
  AND state IN ('dead_lettered', 'blocked', 'skipped', 'discarded');
