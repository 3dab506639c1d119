-- Forgets a group, or restores it. All statements run under the lock of the group's row.

-- name: count_dead_letters
SELECT state, count(*) AS n
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s
GROUP BY state
ORDER BY state;

-- name: count_losses
SELECT count(*) FROM seekpoint.lost_range WHERE consumer_group = %(group)s;

-- name: count_run_dead_letters
SELECT count(*)
FROM seekpoint.reprocess_dead_letter
WHERE run IN (SELECT id FROM seekpoint.reload_run WHERE groups = ARRAY[%(group)s::text]);

-- name: count_requests
SELECT count(*) FROM seekpoint.replay_request WHERE consumer_group = %(group)s;

-- name: count_positions
SELECT count(*) FROM seekpoint.partition_offset WHERE consumer_group = %(group)s;

-- name: every_dead_letter
-- In the order of their records. The caller streams the result, which may have many megabytes.
SELECT id, topic, topic_id, partition, record_offset, leader_epoch, timestamp_ms, key, value,
       octet_length(value) AS size, header_names, header_values, state, cause, error, traceback, sqlstate, attempts,
       version, dead_lettered_at, dead_lettered_by, replays, replayed_at, replay_error, replay_traceback, closed_at,
       closed_by, closed_reason, error_line, edited_value, edited_at, edited_by, edited_reason, retry_at, crashes
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s
ORDER BY topic, partition, record_offset, id;

-- name: every_run_dead_letter
SELECT position.topic, position.partition, position.topic_id, run.version_to[1] AS version,
       dead_letter.run, dead_letter.record_offset,
       dead_letter.leader_epoch, dead_letter.timestamp_ms, dead_letter.key, dead_letter.value,
       dead_letter.header_names, dead_letter.header_values, dead_letter.state, dead_letter.cause,
       dead_letter.error, dead_letter.traceback, dead_letter.sqlstate, dead_letter.dead_lettered_at
FROM seekpoint.reprocess_dead_letter AS dead_letter
JOIN seekpoint.reload_run AS run ON run.id = dead_letter.run
JOIN seekpoint.reload_position AS position ON position.run = run.id
WHERE run.groups = ARRAY[%(group)s::text]
ORDER BY dead_letter.run, dead_letter.record_offset;

-- name: lock_positions
-- In the order of workers' locks, because a worker may be releasing its partitions.
SELECT topic, partition, topic_id, first_offset, next_offset, leader_epoch, epoch, committed_at, record_time
FROM seekpoint.partition_offset
WHERE consumer_group = %(group)s
ORDER BY topic COLLATE "C", partition
FOR UPDATE;

-- name: topics
SELECT topic, version, tables, replaced
FROM seekpoint.group_topic
WHERE consumer_group = %(group)s
ORDER BY topic;

-- name: delete_positions
DELETE FROM seekpoint.partition_offset WHERE consumer_group = %(group)s;

-- name: delete_topics
DELETE FROM seekpoint.group_topic WHERE consumer_group = %(group)s;

-- name: delete_dead_letters
DELETE FROM seekpoint.dead_letter WHERE consumer_group = %(group)s;

-- name: delete_losses
DELETE FROM seekpoint.lost_range WHERE consumer_group = %(group)s;

-- name: delete_run_dead_letters
DELETE FROM seekpoint.reprocess_dead_letter
WHERE run IN (SELECT id FROM seekpoint.reload_run WHERE groups = ARRAY[%(group)s::text]);

-- name: delete_requests
DELETE FROM seekpoint.replay_request WHERE consumer_group = %(group)s;

-- name: delete_samples
DELETE FROM seekpoint.position_sample WHERE consumer_group = %(group)s;

-- name: delete_workers
DELETE FROM seekpoint.worker WHERE consumer_group = %(group)s;

-- name: forget
UPDATE seekpoint.consumer_group SET forgotten = %(forgotten)s::jsonb WHERE name = %(group)s;

-- name: forgotten
SELECT name, forgotten FROM seekpoint.consumer_group WHERE forgotten IS NOT NULL ORDER BY name;

-- name: restore_position
-- Each with a token that no worker has ever had (I5).
INSERT INTO seekpoint.partition_offset
    (consumer_group, topic, partition, topic_id, first_offset, next_offset, leader_epoch, token, epoch, committed_at,
     record_time)
VALUES (%(group)s, %(topic)s, %(partition)s, %(topic_id)s, %(first_offset)s, %(next_offset)s, %(leader_epoch)s,
        gen_random_uuid(), %(epoch)s, %(committed_at)s, %(record_time)s);

-- name: restore_topic
INSERT INTO seekpoint.group_topic (consumer_group, topic, version, tables, replaced)
VALUES (%(group)s, %(topic)s, %(version)s, %(tables)s, %(replaced)s);

-- name: remember
UPDATE seekpoint.consumer_group SET forgotten = NULL WHERE name = %(group)s;

-- name: begin_again
-- Resets the row to that of a group that has never run. `tables` stays, because they may have rows of the group.
UPDATE seekpoint.consumer_group
SET forgotten = NULL,
    version = %(to_version)s,
    cluster_id = NULL,
    paused = false,
    paused_by = NULL,
    paused_reason = NULL,
    declared = NULL
WHERE name = %(group)s;

-- name: last_begin
-- The last action after which the positions are others: the group began again, or was replaced. Undoing a forget
-- restores the positions, so earlier actions still count.
SELECT coalesce(max(id), 0)
FROM seekpoint.admin_action
WHERE consumer_group = %(group)s AND action IN ('begin again', 'replace');
