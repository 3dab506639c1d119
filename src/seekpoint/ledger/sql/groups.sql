-- Whole groups: their rows, versions and tables; pauses, resets, abandoned sessions; actions and lost ranges.

-- name: read
SELECT name, cluster_id, version, tables, paused, paused_reason, paused_by, created_at, declared, forgotten
FROM seekpoint.consumer_group
WHERE name = %(group)s;

-- name: share
SELECT name, cluster_id, version, tables, paused, paused_reason, paused_by, created_at, declared, forgotten
FROM seekpoint.consumer_group
WHERE name = %(group)s
FOR SHARE;

-- name: lock
-- Not FOR UPDATE, which would conflict with the foreign key's lock (FOR KEY SHARE): a worker that inserts a dead letter
-- while it holds its rows would wait for a pause that waits for the worker.
SELECT name, cluster_id, version, tables, paused, paused_reason, paused_by, created_at, declared, forgotten
FROM seekpoint.consumer_group
WHERE name = %(group)s
FOR NO KEY UPDATE;

-- name: insert
INSERT INTO seekpoint.consumer_group (name, version) VALUES (%(group)s, %(version)s) ON CONFLICT DO NOTHING;

-- name: update
UPDATE seekpoint.consumer_group
SET version = %(version)s, cluster_id = %(cluster_id)s, tables = %(tables)s::text[]
WHERE name = %(group)s;

-- name: pause
UPDATE seekpoint.consumer_group
SET paused = %(paused)s, paused_reason = %(reason)s, paused_by = %(actor)s
WHERE name = %(group)s;

-- name: redraw
-- Draws new tokens for the whole group, which fences its workers (I5): for a pause, a resume, a higher version, other
-- tables, a replacement and a reload's cut-over. The rows are locked in order first: workers hold them in that order at
-- the same time. The group's row is locked already, so no claim inserts a position meanwhile.
WITH ordered AS (
    SELECT topic, partition
    FROM seekpoint.partition_offset
    WHERE consumer_group = %(group)s
    ORDER BY topic COLLATE "C", partition
    FOR NO KEY UPDATE
)
UPDATE seekpoint.partition_offset AS o
SET token = gen_random_uuid(), epoch = o.epoch + 1
FROM ordered
WHERE o.consumer_group = %(group)s AND o.topic = ordered.topic AND o.partition = ordered.partition;

-- name: open_reloads
-- Runs to a newer version than the group's: workers of that version wait as standbys.
SELECT run.id, run.state, run.driver, run.staging_schema,
       run.version_to[array_position(run.groups, %(group)s::text)] AS version
FROM seekpoint.reload_run AS run
JOIN seekpoint.consumer_group AS its_group ON its_group.name = %(group)s
WHERE run.state NOT IN ('verified', 'cut_over', 'aborted', 'failed')
  AND run.strategy IN ('merge', 'swap')
  AND run.version_to[array_position(run.groups, %(group)s::text)] > its_group.version
ORDER BY run.opened_at;

-- name: outcome_of_run
SELECT state, error FROM seekpoint.reload_run WHERE id = %(run)s;

-- name: tables_of_topics
SELECT topic, version, tables, replaced
FROM seekpoint.group_topic
WHERE consumer_group = %(group)s AND topic = ANY (%(topics)s::text[]);

-- name: store_tables
INSERT INTO seekpoint.group_topic AS stored (consumer_group, topic, version, tables)
VALUES (%(group)s, %(topic)s, %(version)s, %(tables)s::text[])
ON CONFLICT (consumer_group, topic) DO UPDATE
SET version = excluded.version,
    tables = excluded.tables,
    replaced = stored.replaced + %(replacements)s,
    changed_at = clock_timestamp();

-- name: qualified
-- From the catalog, because `orders` and `public.orders` may be one table. Needs no privilege on the schemas. A name
-- with a dot already has its schema, unless a table is named so; a table that does not exist gets the schema in which
-- CREATE TABLE would create it.
SELECT named.name,
       coalesce(
           (SELECT n.nspname || '.' || c.relname
            FROM pg_catalog.pg_class AS c
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE c.relname = named.name
              AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
              AND c.relpersistence <> 't'
              AND pg_catalog.pg_table_is_visible(c.oid)),
           CASE WHEN strpos(named.name, '.') = 0 THEN current_schema() || '.' || named.name END,
           named.name
       ) AS qualified
FROM unnest(%(names)s::text[]) AS named (name);

-- name: abandoned
-- The sessions that hold these rows' locks now. Each is found by its transaction id, which is the row's xmax; but if a
-- row was locked before a savepoint and written under it, xmax stands for both ids. So a session of the row's owner
-- that has locked or written anything counts, too.
SELECT DISTINCT activity.pid
FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[])) AS asked (topic, partition)
JOIN seekpoint.partition_offset AS blocked
  ON blocked.consumer_group = %(group)s AND blocked.topic = asked.topic AND blocked.partition = asked.partition
JOIN pg_stat_activity AS activity
  ON activity.backend_xid = blocked.xmax
  OR (activity.backend_xid IS NOT NULL
      AND starts_with(activity.application_name, 'seekpoint ' || left(blocked.owner::text, 8) || ' '))
WHERE starts_with(activity.application_name, 'seekpoint ')
  AND activity.xact_start < clock_timestamp() - %(age)s::interval;

-- name: terminate
SELECT pg_terminate_backend(%(pid)s);

-- name: positions
SELECT consumer_group, topic, partition, topic_id, first_offset, next_offset, leader_epoch, token, epoch, owner,
       claimed_at, committed_at, record_time, unreleased_claims, attempt_offset, attempts, attempt_crashes,
       attempt_running, attempt_error, retry_at, attempts_allowed, attempt_policy, suspect_end, suspect_part_end,
       suspect_running, stop_kind, stop_offset, stop_message, stop_choices, stopped_at, stop_log_end
FROM seekpoint.partition_state
WHERE consumer_group = %(group)s
ORDER BY topic, partition;

-- name: lock_position
SELECT topic_id, next_offset
FROM seekpoint.partition_offset
WHERE consumer_group = %(group)s AND topic = %(topic)s AND partition = %(partition)s
FOR NO KEY UPDATE;

-- name: reset
-- Keeps the owner: only the position has changed (I5). first_offset becomes the new position if the topic id is another
-- one, because none of its records was applied, or if the new position is lower. leader_epoch is NULL: no record was
-- applied at this position, and an old epoch would report a truncation that did not happen.
UPDATE seekpoint.partition_offset
SET first_offset = CASE WHEN topic_id <> %(topic_id)s::uuid THEN %(to_offset)s::bigint
                        ELSE least(first_offset, %(to_offset)s::bigint) END,
    next_offset = %(to_offset)s::bigint,
    topic_id = %(topic_id)s::uuid,
    leader_epoch = NULL,
    token = %(token)s::uuid,
    epoch = epoch + 1
WHERE consumer_group = %(group)s AND topic = %(topic)s AND partition = %(partition)s;

-- name: end_trouble
-- A reset ends the trouble, because what is stored is about records at the old position.
DELETE FROM seekpoint.partition_trouble
WHERE consumer_group = %(group)s AND topic = %(topic)s AND partition = %(partition)s;

-- name: supersede
-- A dead letter's offset is before the position. If a reset puts the position at or before it, the record is read
-- again, and that result counts.
UPDATE seekpoint.dead_letter
SET state = 'superseded', closed_at = clock_timestamp(), closed_by = %(actor)s, closed_reason = %(reason)s
WHERE consumer_group = %(group)s
  AND topic_id = %(topic_id)s
  AND partition = %(partition)s
  AND record_offset >= %(to_offset)s
  AND state <> 'superseded';

-- name: record_action
INSERT INTO seekpoint.admin_action (consumer_group, action, topic, partition, from_offset, to_offset, actor, reason)
VALUES (%(group)s, %(action)s, %(topic)s, %(partition)s, %(from_offset)s, %(to_offset)s, %(actor)s, %(reason)s);

-- name: last_reset
-- Resets from before the group began again, or was replaced, were of another position and do not count.
SELECT from_offset, to_offset, actor, reason, at
FROM seekpoint.admin_action
WHERE consumer_group = %(group)s AND action = 'reset' AND topic = %(topic)s AND partition = %(partition)s
  AND id > (SELECT coalesce(max(id), 0) FROM seekpoint.admin_action
            WHERE consumer_group = %(group)s AND action IN ('begin again', 'replace'))
ORDER BY id DESC
LIMIT 1;

-- name: record_loss
INSERT INTO seekpoint.lost_range
    (consumer_group, topic, topic_id, partition, from_offset, to_offset, reason, decision, actor, operator_reason)
VALUES (%(group)s, %(topic)s, %(topic_id)s, %(partition)s, %(from_offset)s, %(to_offset)s, %(reason)s, %(decision)s,
        %(actor)s, %(operator_reason)s);

-- name: alone
-- Locks a name until the transaction ends, for one session at a time: there may be no row yet to lock.
SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 0));
