-- Polls until the position has moved past a record. Each is one lookup by primary key, outside of any transaction.

-- name: passed_yet
SELECT next_offset, topic_id, stop_kind
FROM seekpoint.partition_state
WHERE consumer_group = %(group)s AND topic = %(topic)s AND partition = %(partition)s;

-- name: became
-- Position and dead letter in one snapshot, because they become visible together (I1). With the last reset across the
-- offset: after a forward one the record was not read; after a backward one it was read again before the position could
-- pass it, and its earlier dead letter is superseded.
SELECT o.next_offset, o.topic_id, o.first_offset, crossing.id AS reset_id, crossing.forwards, crossing.actor,
       crossing.reason, dead_letter.state
FROM seekpoint.partition_offset AS o
LEFT JOIN LATERAL (
    SELECT id, actor, reason, from_offset < to_offset AS forwards
    FROM seekpoint.admin_action
    WHERE consumer_group = %(group)s
      AND action = 'reset'
      AND topic = o.topic
      AND partition = o.partition
      AND least(from_offset, to_offset) <= %(asked_offset)s
      AND greatest(from_offset, to_offset) > %(asked_offset)s
    ORDER BY id DESC
    LIMIT 1
) AS crossing ON true
LEFT JOIN seekpoint.dead_letter
  ON dead_letter.consumer_group = o.consumer_group
 AND dead_letter.topic_id = o.topic_id
 AND dead_letter.partition = o.partition
 AND dead_letter.record_offset = %(asked_offset)s
 AND dead_letter.state <> 'superseded'
WHERE o.consumer_group = %(group)s AND o.topic = %(topic)s AND o.partition = %(partition)s;

-- name: waiting
SELECT dead_letter.id, dead_letter.error, dead_letter.attempts,
       extract(epoch FROM dead_letter.retry_at - clock_timestamp()) AS retry_in
FROM seekpoint.partition_offset AS o
JOIN seekpoint.dead_letter
  ON dead_letter.consumer_group = o.consumer_group
 AND dead_letter.topic_id = o.topic_id
 AND dead_letter.partition = o.partition
 AND dead_letter.record_offset = %(asked_offset)s
 AND dead_letter.state = 'waiting'
WHERE o.consumer_group = %(group)s AND o.topic = %(topic)s AND o.partition = %(partition)s;

-- name: progress
SELECT o.consumer_group, o.topic_id, o.next_offset, o.owner, o.attempt_offset, o.attempts, o.attempts_allowed,
       o.attempt_running, o.attempt_error, o.attempt_policy, o.stop_kind, o.stop_offset, o.stop_message,
       its_group.paused, its_group.paused_reason, its_group.paused_by,
       extract(epoch FROM clock_timestamp() - o.committed_at) AS still,
       extract(epoch FROM o.retry_at - clock_timestamp()) AS retry_in
FROM seekpoint.partition_state AS o
JOIN seekpoint.consumer_group AS its_group ON its_group.name = o.consumer_group
WHERE o.consumer_group = %(group)s AND o.topic = %(topic)s AND o.partition = %(partition)s;
