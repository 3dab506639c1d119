-- Runs of reloads and batches, their positions, and what they staged.

-- name: unhurried
-- A step may take longer than the application's statements may, and a task waits for Kafka in its transaction.
SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true);

-- name: share_groups
-- Held while a run is inserted. A worker looks for a run to its version under its group's lock before it raises the
-- group's version.
SELECT name, cluster_id, version, tables, paused, paused_reason, paused_by, created_at, declared, forgotten
FROM seekpoint.consumer_group
WHERE name = ANY (%(groups)s::text[])
ORDER BY name COLLATE "C"
FOR SHARE;

-- name: insert_run
INSERT INTO seekpoint.reload_run
    (id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch, driver, staging_schema,
     actor, reason, archive)
VALUES (%(id)s, %(groups)s::text[], %(tables)s::text[], %(strategy)s, %(pipelines)s::text[],
        %(version_from)s::integer[], %(version_to)s::integer[], %(state)s, %(driver_epoch)s, %(driver)s,
        %(staging_schema)s, %(actor)s, %(reason)s, %(archive)s);

-- name: insert_position
INSERT INTO seekpoint.reload_position
    (run, consumer_group, topic, partition, topic_id, first_offset, end_offset, next_offset, epoch, resets)
VALUES (%(run)s, %(consumer_group)s, %(topic)s, %(partition)s, %(topic_id)s, %(first_offset)s, %(end_offset)s,
        %(next_offset)s, %(epoch)s, %(resets)s);

-- name: open_runs
SELECT id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch, driver, staging_schema,
       swept, diff_xid, actor, reason, error, archive, opened_at, changed_at, differences
FROM seekpoint.reload_run
WHERE state NOT IN ('verified', 'cut_over', 'aborted', 'failed')
ORDER BY opened_at;

-- name: all_runs
SELECT id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch, driver, staging_schema,
       swept, diff_xid, actor, reason, error, archive, opened_at, changed_at, differences
FROM seekpoint.reload_run
ORDER BY opened_at DESC, id;

-- name: get_run
SELECT id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch, driver, staging_schema,
       swept, diff_xid, actor, reason, error, archive, opened_at, changed_at, differences
FROM seekpoint.reload_run
WHERE id = %(run)s;

-- name: settled_run
-- After an unknown commit: waits for the transaction, if it has not ended.
SELECT id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch, driver, staging_schema,
       swept, diff_xid, actor, reason, error, archive, opened_at, changed_at, differences
FROM seekpoint.reload_run
WHERE id = %(run)s
FOR SHARE;

-- name: step
-- The first statement of each step. It locks the run's row until the step has ended, and is the driver's heartbeat.
UPDATE seekpoint.reload_run
SET changed_at = clock_timestamp()
WHERE id = %(run)s
RETURNING id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch, driver,
          staging_schema, swept, diff_xid, actor, reason, error, archive, opened_at, changed_at, differences;

-- name: take_over
UPDATE seekpoint.reload_run
SET driver_epoch = driver_epoch + 1, driver = %(driver)s, changed_at = clock_timestamp()
WHERE id = %(run)s AND state NOT IN ('verified', 'cut_over', 'aborted', 'failed')
RETURNING id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch, driver,
          staging_schema, swept, diff_xid, actor, reason, error, archive, opened_at, changed_at, differences;

-- name: transition
UPDATE seekpoint.reload_run SET state = %(state)s WHERE id = %(run)s;

-- name: diffed
UPDATE seekpoint.reload_run
SET state = 'compared',
    diff_xid = pg_snapshot_xmin(pg_current_snapshot())::text,
    differences = %(differences)s::jsonb
WHERE id = %(run)s;

-- name: close
UPDATE seekpoint.reload_run
SET state = %(state)s, error = %(error)s, changed_at = clock_timestamp()
WHERE id = %(run)s AND state NOT IN ('verified', 'cut_over', 'aborted', 'failed')
RETURNING id, groups;

-- name: swept
UPDATE seekpoint.reload_run SET swept = true WHERE id = %(run)s;

-- name: gone
-- Skips runs whose row is locked: they are in a step, so their driver is alive.
UPDATE seekpoint.reload_run
SET state = 'failed', error = 'its driver is gone: no heartbeat since ' || changed_at::text
WHERE id IN (
    SELECT id
    FROM seekpoint.reload_run
    WHERE state NOT IN ('verified', 'cut_over', 'aborted', 'failed')
      AND changed_at < clock_timestamp() - %(age)s::interval
    FOR UPDATE SKIP LOCKED
)
RETURNING id, groups;

-- name: unswept
SELECT id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch, driver, staging_schema,
       swept, diff_xid, actor, reason, error, archive, opened_at, changed_at, differences
FROM seekpoint.reload_run
WHERE NOT swept AND state IN ('verified', 'cut_over', 'aborted', 'failed')
ORDER BY opened_at;

-- name: guard
-- Near the end of every transaction that stages: a run that has ended accepts no more rows, and its state stays until
-- COMMIT. Tasks of frames stage until the cut-over; for other pipelines the driver itself reads the log once ranges
-- are staged.
SELECT 1 FROM seekpoint.reload_run WHERE id = %(run)s AND state = ANY (%(states)s::text[]) FOR SHARE;

-- name: offsets
-- Snapshot offsets: every position of all groups as of one moment, with the number of its resets.
SELECT consumer_group, topic, partition, topic_id, first_offset, next_offset, leader_epoch, token, epoch, owner,
       claimed_at, committed_at, record_time, unreleased_claims, attempt_offset, attempts, attempt_crashes,
       attempt_running, attempt_error, retry_at, attempts_allowed, attempt_policy, suspect_end, suspect_part_end,
       suspect_running, stop_kind, stop_offset, stop_message, stop_choices, stopped_at, stop_log_end,
       (SELECT count(*)
        FROM seekpoint.admin_action AS action
        WHERE action.consumer_group = o.consumer_group
          AND action.topic = o.topic
          AND action.partition = o.partition
          AND action.action = 'reset') AS resets
FROM seekpoint.partition_state AS o
WHERE consumer_group = ANY (%(groups)s::text[])
ORDER BY consumer_group, topic, partition;

-- name: lock_offsets
-- The locks of the cut-over, in the order of all transactions that lock several rows; the groups' rows are locked
-- before. Another statement reads the rows, because a sub-select of this one would see them as before the wait.
SELECT 1
FROM seekpoint.partition_offset
WHERE consumer_group = ANY (%(groups)s::text[])
ORDER BY consumer_group COLLATE "C", topic COLLATE "C", partition
FOR NO KEY UPDATE;

-- name: positions
SELECT run, consumer_group, topic, partition, topic_id, first_offset, end_offset, next_offset, epoch, resets
FROM seekpoint.reload_position
WHERE run = %(run)s
ORDER BY consumer_group, topic, partition;

-- name: advance_positions
UPDATE seekpoint.reload_position AS position
SET next_offset = moving.to_offset
FROM unnest((SELECT %(moving_consumer_group)s::text[]), (SELECT %(moving_topic)s::text[]),
            (SELECT %(moving_partition)s::integer[]), (SELECT %(moving_to_offset)s::bigint[]))
     AS moving (consumer_group, topic, partition, to_offset)
WHERE position.run = %(run)s
  AND position.consumer_group = moving.consumer_group
  AND position.topic = moving.topic
  AND position.partition = moving.partition;

-- name: disown
-- A batch job claims under its run's id. An owner that stays after the run would look like a worker.
UPDATE seekpoint.partition_offset SET owner = NULL WHERE consumer_group = %(group)s AND owner = %(run)s;

-- name: left_out
-- The group's dead letters of these ranges whose records are not applied.
SELECT dead_letter.topic, dead_letter.partition, dead_letter.record_offset
FROM unnest((SELECT %(within_topic)s::text[]), (SELECT %(within_partition)s::integer[]),
            (SELECT %(within_topic_id)s::uuid[]), (SELECT %(within_from_offset)s::bigint[]),
            (SELECT %(within_to_offset)s::bigint[]))
     AS within (topic, partition, topic_id, from_offset, to_offset)
JOIN seekpoint.dead_letter
  ON dead_letter.topic = within.topic
 AND dead_letter.topic_id = within.topic_id
 AND dead_letter.partition = within.partition
 AND dead_letter.record_offset >= within.from_offset
 AND dead_letter.record_offset < within.to_offset
WHERE dead_letter.consumer_group = %(group)s
  AND dead_letter.state IN ('dead_lettered', 'blocked', 'waiting', 'skipped', 'discarded');

-- name: edits
-- The edited values that replays have applied in these ranges in place of the log's. Runs after left_out: a record that
-- is replayed between the two statements is still left out.
SELECT dead_letter.topic, dead_letter.partition, dead_letter.record_offset, dead_letter.edited_value
FROM unnest((SELECT %(within_topic)s::text[]), (SELECT %(within_partition)s::integer[]),
            (SELECT %(within_topic_id)s::uuid[]), (SELECT %(within_from_offset)s::bigint[]),
            (SELECT %(within_to_offset)s::bigint[]))
     AS within (topic, partition, topic_id, from_offset, to_offset)
JOIN seekpoint.dead_letter
  ON dead_letter.topic = within.topic
 AND dead_letter.topic_id = within.topic_id
 AND dead_letter.partition = within.partition
 AND dead_letter.record_offset >= within.from_offset
 AND dead_letter.record_offset < within.to_offset
WHERE dead_letter.consumer_group = %(group)s
  AND dead_letter.state = 'replayed'
  AND dead_letter.edited_at IS NOT NULL;

-- name: lost
SELECT topic, topic_id, partition, from_offset, to_offset, reason, at
FROM seekpoint.lost_range
WHERE consumer_group = %(group)s
ORDER BY at, id;

-- name: resets
-- Without resets from before the group began again, or was replaced: they were of other positions. A reset that rebuilt
-- the tables has a second row after its own: the records from its target on are no longer applied.
SELECT topic, partition, from_offset, to_offset, at, action = 'take back' AS takes_back
FROM seekpoint.admin_action
WHERE consumer_group = %(group)s
  AND action IN ('reset', 'take back')
  AND id > (SELECT coalesce(max(id), 0) FROM seekpoint.admin_action
            WHERE consumer_group = %(group)s AND action IN ('begin again', 'replace'))
ORDER BY id;

-- name: first_offsets
-- The first offset of each partition before a reset has lowered it.
SELECT topic, partition, max(from_offset) AS first_offset
FROM seekpoint.admin_action
WHERE consumer_group = %(group)s
  AND action = 'lower first offset'
  AND id > (SELECT coalesce(max(id), 0) FROM seekpoint.admin_action
            WHERE consumer_group = %(group)s AND action IN ('begin again', 'replace'))
GROUP BY topic, partition;

-- name: insert_staged
INSERT INTO seekpoint.reload_staged
    (run, table_name, consumer_group, topic, partition, from_offset, to_offset, records, row_counts, dead_letters)
VALUES (%(run)s, %(table_name)s, %(consumer_group)s, %(topic)s, %(partition)s, %(from_offset)s, %(to_offset)s,
        %(records)s, %(row_counts)s::bigint[], %(dead_letters)s);

-- name: lock_range
-- Locks a partition's position, so that no two attempts at it are recorded at once. No row: the range is not the run's.
SELECT 1
FROM seekpoint.reload_position
WHERE run = %(run)s
  AND consumer_group = %(group)s
  AND topic = %(topic)s
  AND partition = %(partition)s
  AND first_offset <= %(from_offset)s
  AND end_offset >= %(to_offset)s
FOR NO KEY UPDATE;

-- name: overlapping
-- A separate statement, because a sub-select of lock_range would see the attempts as before the wait.
SELECT run, table_name, consumer_group, topic, partition, from_offset, to_offset, records, row_counts, dead_letters,
       staged_at
FROM seekpoint.reload_staged
WHERE run = %(run)s
  AND consumer_group = %(group)s
  AND topic = %(topic)s
  AND partition = %(partition)s
  AND from_offset < %(to_offset)s
  AND to_offset > %(from_offset)s
ORDER BY from_offset
LIMIT 1;

-- name: staged
SELECT run, table_name, consumer_group, topic, partition, from_offset, to_offset, records, row_counts, dead_letters,
       staged_at
FROM seekpoint.reload_staged
WHERE run = %(run)s
ORDER BY consumer_group, topic, partition, from_offset, table_name;

-- name: raise_version
UPDATE seekpoint.consumer_group SET version = %(version)s WHERE name = %(group)s;
