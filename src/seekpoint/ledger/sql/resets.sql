-- Planned resets: the data for a plan, the locks under which it is carried out, and the history.

-- name: last_resets
-- The id of each partition's last reset: a plan is refused if the partition was reset after the plan was made.
SELECT topic, partition, max(id) AS id
FROM seekpoint.admin_action
WHERE consumer_group = %(group)s AND action = 'reset'
GROUP BY topic, partition;

-- name: last_action
-- The id of the group's last action of these kinds: a later one outdates a plan.
SELECT max(id) FROM seekpoint.admin_action WHERE consumer_group = %(group)s AND action = ANY (%(actions)s);

-- name: last_forget
-- The id of the last forgetting: after it the group may have begun again, and its positions mean something else.
SELECT max(id) FROM seekpoint.admin_action WHERE consumer_group = %(group)s AND action = 'forget';

-- name: time_limit
SELECT set_config('statement_timeout', %(timeout)s, true);

-- name: lock_rows
-- In the order of the arrays, which callers sort: the order of workers' locks.
SELECT o.*
FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[])) AS asked (topic, partition)
CROSS JOIN LATERAL (
    SELECT topic, partition, topic_id, next_offset
    FROM seekpoint.partition_offset
    WHERE consumer_group = %(group)s AND topic = asked.topic AND partition = asked.partition
    FOR NO KEY UPDATE
) AS o;

-- name: free_rows
-- The rows that no other session has locked.
SELECT o.topic, o.partition
FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[])) AS asked (topic, partition)
CROSS JOIN LATERAL (
    SELECT topic, partition
    FROM seekpoint.partition_offset
    WHERE consumer_group = %(group)s AND topic = asked.topic AND partition = asked.partition
    FOR NO KEY UPDATE SKIP LOCKED
) AS o;

-- name: locked_since
-- Since when a session has locked a row, found as in abandoned (groups.sql); no time if this login may not see other
-- sessions.
SELECT activity.application_name, activity.xact_start
FROM seekpoint.partition_offset AS blocked
JOIN pg_stat_activity AS activity
  ON activity.backend_xid = blocked.xmax
  OR (activity.backend_xid IS NOT NULL
      AND starts_with(activity.application_name, 'seekpoint ' || left(blocked.owner::text, 8) || ' '))
WHERE blocked.consumer_group = %(group)s AND blocked.topic = %(topic)s AND blocked.partition = %(partition)s
ORDER BY activity.xact_start
LIMIT 1;

-- name: samples_before
-- The last sample before a moment, so that a reset passes no record that may not have been applied by then.
SELECT before.topic, before.partition, before.topic_id, before.next_offset
FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[])) AS asked (topic, partition)
CROSS JOIN LATERAL (
    SELECT topic, partition, topic_id, next_offset
    FROM seekpoint.position_sample
    WHERE consumer_group = %(group)s
      AND topic = asked.topic
      AND partition = asked.partition
      AND at <= %(moment)s::timestamptz
    ORDER BY at DESC
    LIMIT 1
) AS before;

-- name: open_runs_of_group
SELECT id, state, strategy, driver
FROM seekpoint.reload_run
WHERE array_position(groups, %(group)s::text) IS NOT NULL
  AND state NOT IN ('verified', 'cut_over', 'aborted', 'failed')
ORDER BY opened_at;

-- name: dead_letters_from
-- How many dead letters a reset supersedes, by state.
SELECT dead_letter.state, count(*) AS n
FROM unnest((SELECT %(moved_topic_id)s::uuid[]), (SELECT %(moved_partition)s::integer[]),
            (SELECT %(moved_to_offset)s::bigint[])) AS moved (topic_id, partition, to_offset)
JOIN seekpoint.dead_letter
  ON dead_letter.topic_id = moved.topic_id
 AND dead_letter.partition = moved.partition
 AND dead_letter.record_offset >= moved.to_offset
WHERE dead_letter.consumer_group = %(group)s AND dead_letter.state <> 'superseded'
GROUP BY dead_letter.state
ORDER BY dead_letter.state;

-- name: history
SELECT id, consumer_group, action, topic, partition, from_offset, to_offset, actor, reason, at
FROM seekpoint.admin_action
WHERE consumer_group = %(group)s
  AND (%(topics)s::text[] IS NULL OR topic = ANY (%(topics)s::text[]))
  AND (%(partition)s::integer IS NULL OR partition = %(partition)s::integer)
  AND (%(action)s::text IS NULL OR action = %(action)s::text)
  AND (%(actor)s::text IS NULL OR actor = %(actor)s::text)
  AND (%(before_id)s::bigint IS NULL OR id < %(before_id)s::bigint)
ORDER BY id DESC
LIMIT %(most)s;

-- name: recent_actions
-- Of all groups.
SELECT id, consumer_group, action, topic, partition, from_offset, to_offset, actor, reason, at
FROM seekpoint.admin_action
WHERE (%(action)s::text IS NULL OR action = %(action)s::text)
  AND (%(actor)s::text IS NULL OR actor = %(actor)s::text)
  AND (%(before_id)s::bigint IS NULL OR id < %(before_id)s::bigint)
ORDER BY id DESC
LIMIT %(most)s;
