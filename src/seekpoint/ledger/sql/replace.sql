-- One group takes the place of another, with its tables: the comparison, the locks of both, and the exchange.

-- name: groups
SELECT name, cluster_id, version, paused, paused_by, paused_reason, declared, forgotten
FROM seekpoint.consumer_group
WHERE name IN (%(old_group)s, %(new_group)s)
ORDER BY name;

-- name: positions
SELECT consumer_group, topic, partition, topic_id, first_offset, next_offset, attempt_offset, attempts, stop_kind,
       stop_offset
FROM seekpoint.partition_state
WHERE consumer_group IN (%(old_group)s, %(new_group)s)
ORDER BY consumer_group, topic, partition;

-- name: lock_groups
-- The order of all locks: groups by name, then their positions. Not FOR UPDATE, which would conflict with the foreign
-- key's lock of a worker that inserts a dead letter.
SELECT name, cluster_id, version, paused, paused_by, paused_reason, declared, forgotten
FROM seekpoint.consumer_group
WHERE name IN (%(old_group)s, %(new_group)s)
ORDER BY name COLLATE "C"
FOR NO KEY UPDATE;

-- name: lock_positions
-- Waits for the open batches of both groups: what the next statement reads is final (I2).
SELECT 1
FROM seekpoint.partition_offset
WHERE consumer_group IN (%(old_group)s, %(new_group)s)
ORDER BY consumer_group COLLATE "C", topic COLLATE "C", partition
FOR NO KEY UPDATE;

-- name: tables
-- The tables of all groups, because a third group may write a table of the two.
SELECT consumer_group, topic, tables FROM seekpoint.group_topic ORDER BY consumer_group, topic;

-- name: dead_letters_of_one
-- The open dead letters that only one of the groups has, in the order of their records.
SELECT dead_letter.consumer_group, dead_letter.id, dead_letter.topic, dead_letter.partition, dead_letter.record_offset
FROM seekpoint.dead_letter
WHERE dead_letter.consumer_group IN (%(old_group)s, %(new_group)s)
  AND dead_letter.state IN ('dead_lettered', 'blocked', 'waiting')
  AND NOT EXISTS (
      SELECT
      FROM seekpoint.dead_letter AS same
      WHERE same.consumer_group IN (%(old_group)s, %(new_group)s)
        AND same.consumer_group <> dead_letter.consumer_group
        AND same.topic_id = dead_letter.topic_id
        AND same.partition = dead_letter.partition
        AND same.record_offset = dead_letter.record_offset
        AND same.state IN ('dead_lettered', 'blocked', 'waiting'))
ORDER BY dead_letter.consumer_group, dead_letter.topic, dead_letter.partition, dead_letter.record_offset;

-- name: open_work
-- Jobs and requests that write rows or dead letters in the name of a group, and have not ended.
SELECT consumer_group, 'request' AS kind, id::text AS id
FROM seekpoint.replay_request
WHERE consumer_group IN (%(old_group)s, %(new_group)s) AND state IN ('requested', 'started')
UNION ALL
SELECT named.name, run.strategy, run.id::text
FROM seekpoint.reload_run AS run
CROSS JOIN LATERAL unnest(run.groups) AS named (name)
WHERE named.name IN (%(old_group)s, %(new_group)s)
  AND run.state NOT IN ('verified', 'cut_over', 'aborted', 'failed');

-- name: exchange_positions
-- Each position goes with the tables whose rows it accounts for (I1). Draws new tokens, because the tables that workers
-- of either group have written are in another schema now (I5).
UPDATE seekpoint.partition_offset AS own
SET first_offset = other.first_offset,
    next_offset = other.next_offset,
    leader_epoch = other.leader_epoch,
    committed_at = other.committed_at,
    record_time = other.record_time,
    token = gen_random_uuid(),
    epoch = own.epoch + 1
FROM seekpoint.partition_offset AS other
WHERE own.consumer_group IN (%(old_group)s, %(new_group)s)
  AND other.consumer_group = CASE own.consumer_group WHEN %(old_group)s THEN %(new_group)s ELSE %(old_group)s END
  AND other.topic = own.topic
  AND other.partition = own.partition;

-- name: end_trouble
-- Attempts and stops belong to one handler: after the exchange, the record at the position is tried again.
DELETE FROM seekpoint.partition_trouble WHERE consumer_group IN (%(old_group)s, %(new_group)s);

-- name: dead_letters_aside
-- Dead letters go with the tables that lack their records (I4). In three statements, because both groups may have one
-- of the same record, and a unique key is checked row by row: meanwhile the new group's are at partitions below 0.
UPDATE seekpoint.dead_letter SET partition = -1 - partition WHERE consumer_group = %(new_group)s;

-- name: dead_letters_to_new
UPDATE seekpoint.dead_letter SET consumer_group = %(new_group)s WHERE consumer_group = %(old_group)s;

-- name: dead_letters_to_old
UPDATE seekpoint.dead_letter
SET consumer_group = %(old_group)s, partition = -1 - partition
WHERE consumer_group = %(new_group)s AND partition < 0;

-- name: exchange_losses
UPDATE seekpoint.lost_range
SET consumer_group = CASE consumer_group WHEN %(old_group)s THEN %(new_group)s ELSE %(old_group)s END
WHERE consumer_group IN (%(old_group)s, %(new_group)s);

-- name: copy_resets
-- Resets go with their positions, because the tables' rows depend on which records were skipped or read again (I4).
-- The new group itself was never reset. The copies get ids after its 'replace' row, and keep the times of the resets.
INSERT INTO seekpoint.admin_action (consumer_group, action, topic, partition, from_offset, to_offset, actor, reason, at)
SELECT %(new_group)s, action, topic, partition, from_offset, to_offset, actor,
       'of ' || consumer_group || ': ' || reason, at
FROM seekpoint.admin_action
WHERE consumer_group = %(old_group)s
  AND action IN ('reset', 'take back', 'lower first offset')
  AND id > (SELECT coalesce(max(id), 0) FROM seekpoint.admin_action
            WHERE consumer_group = %(old_group)s AND action IN ('begin again', 'replace'))
ORDER BY id;

-- name: set_group
-- Pauses the group or lets its workers continue, at a handler version, with the declaration of that version.
UPDATE seekpoint.consumer_group
SET version = %(to_version)s,
    declared = %(declared)s::jsonb,
    paused = %(to_paused)s,
    paused_by = %(actor)s::text,
    paused_reason = %(reason)s::text
WHERE name = %(group)s;
