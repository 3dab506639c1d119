-- Records that the position moved past without applying them.

-- name: insert
-- Run once for each record, in a pipeline, because an array of values of many megabytes could exceed the largest
-- message, and arrays of headers differ in length. A record that is dead-lettered already (the position was reset, or a
-- failover lost commits) opens its dead letter again: earlier decisions were about another reading of it.
INSERT INTO seekpoint.dead_letter
    (consumer_group, topic, topic_id, partition, record_offset, leader_epoch, timestamp_ms, key, value, header_names,
     header_values, state, cause, error, traceback, sqlstate, attempts, version, dead_lettered_by, error_line,
     retry_at)
VALUES (%(group)s, %(topic)s, %(topic_id)s, %(partition)s, %(record_offset)s, %(leader_epoch)s, %(timestamp_ms)s,
        %(key)s::bytea, %(value)s::bytea, %(header_names)s::bytea[], %(header_values)s::bytea[], %(state)s, %(cause)s,
        %(error)s, %(traceback)s, %(sqlstate)s, %(attempts)s, %(version)s, %(dead_lettered_by)s, %(error_line)s,
        clock_timestamp() + %(wait)s::double precision * interval '1 second')
ON CONFLICT ON CONSTRAINT dead_letter_record_key DO UPDATE
SET topic = excluded.topic,
    topic_id = excluded.topic_id,
    partition = excluded.partition,
    record_offset = excluded.record_offset,
    leader_epoch = excluded.leader_epoch,
    timestamp_ms = excluded.timestamp_ms,
    key = excluded.key,
    value = excluded.value,
    header_names = excluded.header_names,
    header_values = excluded.header_values,
    state = excluded.state,
    cause = excluded.cause,
    error = excluded.error,
    traceback = excluded.traceback,
    sqlstate = excluded.sqlstate,
    attempts = excluded.attempts,
    version = excluded.version,
    dead_lettered_by = excluded.dead_lettered_by,
    error_line = excluded.error_line,
    dead_lettered_at = clock_timestamp(),
    replays = 0,
    replayed_at = NULL,
    replay_error = NULL,
    replay_traceback = NULL,
    closed_at = NULL,
    closed_by = NULL,
    closed_reason = NULL,
    edited_value = NULL,
    edited_at = NULL,
    edited_by = NULL,
    edited_reason = NULL,
    retry_at = excluded.retry_at,
    crashes = 0;

-- name: open_keys
-- The keys that have an open dead letter under the topic's current id: dead letters of an earlier topic block nothing.
-- Skips from key to key along dead_letter_key_idx, one descent each: of a key that blocks 300,000 records, one is read.
-- Each step takes the index's next entry of any partition, and then checks that it is of this one: with the partition
-- among the conditions, a planner without statistics would find all of its dead letters first, and sort them.
WITH RECURSIVE step (topic, partition, topic_id, key, hash, first, state) AS (
    SELECT asked.topic, asked.partition, today.topic_id, NULL::bytea, ''::bytea, -- '' is before all hashes
           NULL::bigint, NULL::text
    FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[])) AS asked (topic, partition)
    CROSS JOIN LATERAL (
        SELECT topic_id
        FROM seekpoint.partition_offset
        WHERE consumer_group = %(group)s AND topic = asked.topic AND partition = asked.partition
        LIMIT 1 -- keeps it a lookup for each row
    ) AS today
    UNION ALL
    SELECT step.topic, step.partition, step.topic_id, next.key, next.hash, next.record_offset, next.state
    FROM step
    CROSS JOIN LATERAL (
        SELECT consumer_group, topic_id, partition, key, sha256(key) AS hash, record_offset, state
        FROM seekpoint.dead_letter
        WHERE (consumer_group, topic_id, partition, sha256(key))
              > (%(group)s::text, step.topic_id, step.partition, step.hash)
          AND key IS NOT NULL
          AND state IN ('dead_lettered', 'blocked', 'waiting')
        ORDER BY consumer_group, topic_id, partition, sha256(key), record_offset
        LIMIT 1
    ) AS next
    WHERE next.consumer_group = %(group)s AND next.topic_id = step.topic_id AND next.partition = step.partition
)
SELECT topic, partition, key, first, state FROM step WHERE key IS NOT NULL;

-- name: count_open
SELECT topic, partition, count(*) AS n
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s AND state IN ('dead_lettered', 'blocked', 'waiting')
GROUP BY topic, partition
ORDER BY topic, partition;

-- name: get
SELECT id, topic, topic_id, partition, record_offset, leader_epoch, timestamp_ms, key, value,
       octet_length(value) AS size, header_names, header_values, state, cause, error, traceback, sqlstate, attempts,
       version, dead_lettered_at, dead_lettered_by, replays, replayed_at, replay_error, replay_traceback, closed_at,
       closed_by, closed_reason, error_line, edited_value, edited_at, edited_by, edited_reason, retry_at, crashes
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s AND id = %(id)s;

-- name: lock
SELECT id, topic, topic_id, partition, record_offset, leader_epoch, timestamp_ms, key, value,
       octet_length(value) AS size, header_names, header_values, state, cause, error, traceback, sqlstate, attempts,
       version, dead_lettered_at, dead_lettered_by, replays, replayed_at, replay_error, replay_traceback, closed_at,
       closed_by, closed_reason, error_line, edited_value, edited_at, edited_by, edited_reason, retry_at, crashes
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s AND id = %(id)s
FOR UPDATE;

-- name: find
SELECT topic, partition FROM seekpoint.dead_letter WHERE consumer_group = %(group)s AND id = %(id)s;

-- name: group_of
-- Ids are unique among all groups, so that people need not type the group's name.
SELECT consumer_group FROM seekpoint.dead_letter WHERE id = %(id)s;

-- name: chosen
-- Without their values.
SELECT id, topic, topic_id, partition, record_offset, leader_epoch, timestamp_ms, key, NULL::bytea AS value,
       octet_length(value) AS size, header_names, header_values, state, cause, error, traceback, sqlstate, attempts,
       version, dead_lettered_at, dead_lettered_by, replays, replayed_at, replay_error, replay_traceback, closed_at,
       closed_by, closed_reason, error_line, NULL::bytea AS edited_value, edited_at, edited_by, edited_reason,
       retry_at, crashes
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s AND id = ANY (%(ids)s::bigint[])
ORDER BY topic, partition, record_offset, id;

-- name: list
-- A page begins after topic, partition, offset and id, because the last dead letter of the previous page may have been
-- deleted meanwhile. An error's text begins with the exception's type: `type: message`, `type`, or `type (note)`.
SELECT id, topic, topic_id, partition, record_offset, leader_epoch, timestamp_ms, key,
       CASE WHEN %(with_values)s::boolean THEN value END AS value,
       octet_length(value) AS size, header_names, header_values, state, cause, error, traceback, sqlstate, attempts,
       version, dead_lettered_at, dead_lettered_by, replays, replayed_at, replay_error, replay_traceback, closed_at,
       closed_by, closed_reason, error_line,
       CASE WHEN %(with_values)s::boolean THEN edited_value END AS edited_value, edited_at, edited_by, edited_reason,
       retry_at, crashes
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s
  AND (%(topic)s::text IS NULL OR topic = %(topic)s::text)
  AND (%(partition)s::integer IS NULL OR partition = %(partition)s::integer)
  AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
  AND (%(cause)s::text IS NULL OR cause = %(cause)s::text)
  AND (%(from_offset)s::bigint IS NULL OR record_offset >= %(from_offset)s::bigint)
  AND (%(to_offset)s::bigint IS NULL OR record_offset < %(to_offset)s::bigint)
  AND (%(error)s::text IS NULL OR strpos(error, %(error)s::text) > 0)
  AND (%(exception)s::text IS NULL OR substring(error, '^[^\s:]+(?=:|$| \()') = %(exception)s::text)
  AND (%(error_line)s::text IS NULL OR error_line = %(error_line)s::text)
  AND (%(key)s::bytea IS NULL OR key = %(key)s::bytea)
  AND (%(since)s::timestamptz IS NULL OR dead_lettered_at >= %(since)s::timestamptz)
  AND (%(after_id)s::bigint IS NULL
       OR ((topic, partition, record_offset)
           >= (%(after_topic)s::text, %(after_partition)s::integer, %(after_record_offset)s::bigint)
           AND ((topic, partition, record_offset)
                <> (%(after_topic)s::text, %(after_partition)s::integer, %(after_record_offset)s::bigint)
                OR id > %(after_id)s::bigint)))
ORDER BY topic, partition, record_offset, id
LIMIT %(most)s;

-- name: by_cause
SELECT cause, exception, error_line, count(*) AS count, array_agg(DISTINCT topic) AS topics,
       min(dead_lettered_at) AS first_at, max(dead_lettered_at) AS last_at, min(id) AS first_id, min(error) AS error
FROM (
    SELECT cause, substring(error, '^[^\s:]+(?=:|$| \()') AS exception, error_line, topic, id, dead_lettered_at, error
    FROM seekpoint.dead_letter
    WHERE consumer_group = %(group)s
      AND (%(topic)s::text IS NULL OR topic = %(topic)s::text)
      AND (%(partition)s::integer IS NULL OR partition = %(partition)s::integer)
      AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
      AND (%(cause)s::text IS NULL OR cause = %(cause)s::text)
      AND (%(from_offset)s::bigint IS NULL OR record_offset >= %(from_offset)s::bigint)
      AND (%(to_offset)s::bigint IS NULL OR record_offset < %(to_offset)s::bigint)
      AND (%(error)s::text IS NULL OR strpos(error, %(error)s::text) > 0)
      AND (%(exception)s::text IS NULL OR substring(error, '^[^\s:]+(?=:|$| \()') = %(exception)s::text)
      AND (%(error_line)s::text IS NULL OR error_line = %(error_line)s::text)
      AND (%(key)s::bytea IS NULL OR key = %(key)s::bytea)
      AND (%(since)s::timestamptz IS NULL OR dead_lettered_at >= %(since)s::timestamptz)
) AS failed
GROUP BY cause, exception, error_line
ORDER BY count(*) DESC, min(id);

-- name: first_of_key
-- With the dead letter's topic id, because a key's order does not continue in a recreated topic. Grouped, so that the
-- planner does not look for the least offset by walking over all keys.
SELECT min(record_offset)
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s
  AND topic_id = %(topic_id)s
  AND partition = %(partition)s
  AND sha256(key) = sha256(%(key)s::bytea)
  AND key = %(key)s::bytea
  AND state IN ('dead_lettered', 'blocked', 'waiting')
GROUP BY key;

-- name: close
UPDATE seekpoint.dead_letter
SET state = %(state)s,
    closed_at = clock_timestamp(),
    closed_by = %(actor)s,
    closed_reason = %(reason)s,
    replays = replays + CASE WHEN %(replayed)s::boolean THEN 1 ELSE 0 END,
    replayed_at = CASE WHEN %(replayed)s::boolean THEN clock_timestamp() ELSE replayed_at END
WHERE consumer_group = %(group)s AND id = %(id)s AND state IN ('dead_lettered', 'blocked', 'waiting');

-- name: failed_again
UPDATE seekpoint.dead_letter
SET replays = replays + 1,
    replayed_at = clock_timestamp(),
    replay_error = %(error)s,
    replay_traceback = %(traceback)s
WHERE consumer_group = %(group)s AND id = %(id)s AND state IN ('dead_lettered', 'blocked', 'waiting');

-- name: edit
-- Without a value: the edit is undone.
UPDATE seekpoint.dead_letter
SET edited_value = %(value)s::bytea,
    edited_at = CASE WHEN %(value)s::bytea IS NOT NULL THEN clock_timestamp() END,
    edited_by = CASE WHEN %(value)s::bytea IS NOT NULL THEN %(actor)s::text END,
    edited_reason = CASE WHEN %(value)s::bytea IS NOT NULL THEN %(reason)s::text END
WHERE consumer_group = %(group)s AND id = %(id)s AND state IN ('dead_lettered', 'blocked', 'waiting');

-- name: count_waiting
SELECT asked.topic, asked.partition, counted.n
FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[])) AS asked (topic, partition)
CROSS JOIN LATERAL (
    SELECT count(*) AS n
    FROM seekpoint.dead_letter
    WHERE consumer_group = %(group)s AND topic = asked.topic AND partition = asked.partition AND state = 'waiting'
) AS counted;

-- name: waiting
-- The waiting records of these partitions that are due first; with key order, only the first one of each key. A record
-- that waits because of its key alone keeps its place, also after the pipeline no longer keeps key order.
SELECT first.id, first.topic, first.partition, first.wait
FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[])) AS asked (topic, partition)
CROSS JOIN LATERAL (
    SELECT own.id, own.topic, own.partition,
           greatest(extract(epoch FROM own.retry_at - clock_timestamp())::double precision, 0) AS wait
    FROM seekpoint.dead_letter AS own
    WHERE own.consumer_group = %(group)s
      AND own.topic = asked.topic
      AND own.partition = asked.partition
      AND own.state = 'waiting'
      AND NOT ((%(keeps_order)s::boolean OR own.cause = 'blocked') AND own.key IS NOT NULL AND EXISTS (
          SELECT
          FROM seekpoint.dead_letter AS earlier
          WHERE earlier.consumer_group = own.consumer_group
            AND earlier.topic_id = own.topic_id
            AND earlier.partition = own.partition
            AND sha256(earlier.key) = sha256(own.key)
            AND earlier.key = own.key
            AND earlier.record_offset < own.record_offset
            AND earlier.state = 'waiting'))
    ORDER BY own.retry_at
    LIMIT %(most)s
) AS first
ORDER BY first.wait, first.id;

-- name: begin_retry
-- Committed before the record is tried, because it may crash the process.
UPDATE seekpoint.dead_letter
SET crashes = crashes + CASE WHEN %(is_again)s::boolean THEN 0 ELSE 1 END
WHERE consumer_group = %(group)s AND id = %(id)s AND state = 'waiting';

-- name: end_retry
-- The record failed again: it waits for its next attempt, or becomes a dead letter after the last one. While it waits,
-- dead_lettered_at is when it began to. The error of an attempt that did not count is over; that of a person's replay
-- stays.
UPDATE seekpoint.dead_letter
SET state = %(state)s,
    cause = %(cause)s,
    error = %(error)s,
    traceback = %(traceback)s,
    sqlstate = %(sqlstate)s,
    error_line = %(error_line)s,
    attempts = %(attempts)s,
    version = %(version)s,
    dead_lettered_by = %(owner)s,
    dead_lettered_at = CASE WHEN %(state)s = 'waiting' THEN dead_lettered_at ELSE clock_timestamp() END,
    replay_error = CASE WHEN replayed_at IS NOT NULL THEN replay_error END,
    replay_traceback = CASE WHEN replayed_at IS NOT NULL THEN replay_traceback END,
    retry_at = clock_timestamp() + %(wait)s::double precision * interval '1 second',
    crashes = 0
WHERE consumer_group = %(group)s AND id = %(id)s AND state = 'waiting';

-- name: postpone_retry
-- An error that may not be the record's fault is no attempt.
UPDATE seekpoint.dead_letter
SET replay_error = %(error)s,
    replay_traceback = %(traceback)s,
    retry_at = clock_timestamp() + %(wait)s::double precision * interval '1 second',
    crashes = 0
WHERE consumer_group = %(group)s AND id = %(id)s AND state = 'waiting';

-- name: block_waiting
-- The records of a key that wait for one that an operator has to decide about.
UPDATE seekpoint.dead_letter
SET state = 'blocked'
WHERE consumer_group = %(group)s
  AND topic_id = %(topic_id)s
  AND partition = %(partition)s
  AND sha256(key) = sha256(%(key)s::bytea)
  AND key = %(key)s::bytea
  AND record_offset >= %(from_offset)s
  AND state = 'waiting';
