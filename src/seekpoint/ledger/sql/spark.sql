-- What Spark's source reads of the ledger's own tables: one DataFrame each, with the types of these columns.

-- name: ledger
-- Each group's positions, and why a partition is stopped. Without the claim's token, which only its worker may know.
SELECT consumer_group, topic, partition, topic_id::text AS topic_id, first_offset, next_offset, leader_epoch, epoch,
       owner::text AS owner, claimed_at, committed_at, record_time, attempt_offset, attempts, attempt_error, retry_at,
       stop_kind, stop_offset, stop_message, stopped_at
FROM seekpoint.partition_state
ORDER BY consumer_group, topic, partition;

-- name: dead_letters
-- Whole records, in every state; headers as Kafka's columns have them.
SELECT id, consumer_group, topic, topic_id::text AS topic_id, partition, record_offset AS "offset", timestamp_ms, key,
       value, header_names, header_values, state, cause, error, traceback, sqlstate, attempts, version,
       dead_lettered_at, replays, replayed_at, replay_error, closed_at, closed_by, closed_reason,
       edited_value, edited_at, edited_by, edited_reason
FROM seekpoint.dead_letter
ORDER BY id;

-- name: runs
-- Reloads, verifications, batches and reprocesses, open and ended.
SELECT id::text AS id, strategy, state, groups, tables, pipelines, version_from, version_to, driver, driver_epoch,
       staging_schema, actor, reason, error, differences::text AS differences, opened_at, changed_at
FROM seekpoint.reload_run
ORDER BY opened_at, id;
