-- What operators look at: running workers, samples of positions and logs, what pipelines declare.
-- None of these rows is needed for the offsets, and no statement here locks a row of partition_offset.

-- name: configure
-- Statements for display do not wait long, and their writes need not survive a crash of the server.
SELECT set_config('statement_timeout', %(timeout)s, true),
       set_config('lock_timeout', %(timeout)s, true),
       set_config('synchronous_commit', 'off', true),
       set_config('application_name', %(application_name)s, true);

-- name: worker_seen
INSERT INTO seekpoint.worker AS seen
    (owner, consumer_group, host, pid, client_id, version, library, state, trouble)
VALUES (%(owner)s, %(group)s, %(host)s, %(pid)s, %(client)s, %(version)s, %(library)s, %(state)s, %(trouble)s)
ON CONFLICT (owner) DO UPDATE
SET seen_at = clock_timestamp(), state = excluded.state, trouble = excluded.trouble;

-- name: delete_unseen
-- Every worker deletes them, and skips rows that another one has locked.
DELETE FROM seekpoint.worker
WHERE owner IN (
    SELECT owner FROM seekpoint.worker WHERE seen_at < clock_timestamp() - interval '1 day' FOR UPDATE SKIP LOCKED
);

-- name: insert_samples
-- The stored position, written only by its owner: if two workers both believe that they have a partition, one writes.
INSERT INTO seekpoint.position_sample
    (consumer_group, topic, partition, topic_id, next_offset, log_start, log_end)
SELECT o.consumer_group, o.topic, o.partition, o.topic_id, o.next_offset, sampled.log_start, sampled.log_end
FROM unnest((SELECT %(sampled_topic)s::text[]), (SELECT %(sampled_partition)s::integer[]),
            (SELECT %(sampled_log_start)s::bigint[]), (SELECT %(sampled_log_end)s::bigint[]))
     AS sampled (topic, partition, log_start, log_end)
JOIN seekpoint.partition_offset AS o
  ON o.consumer_group = %(group)s AND o.topic = sampled.topic AND o.partition = sampled.partition
WHERE o.owner = %(owner)s;

-- name: prune_samples
-- Of samples older than a day, the first one of each hour is kept, for a month. Rows are found by their address, in one
-- pass, because comparing each row with the earlier ones is quadratic if the server has no statistics yet.
DELETE FROM seekpoint.position_sample AS sample
WHERE sample.ctid = ANY (ARRAY(
    SELECT old.ctid
    FROM (
        SELECT s.ctid, s.at,
               row_number() OVER (PARTITION BY s.topic, s.partition, date_trunc('hour', s.at) ORDER BY s.at) AS place
        FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[]))
             AS pruned (topic, partition)
        JOIN seekpoint.position_sample AS s
          ON s.consumer_group = %(group)s AND s.topic = pruned.topic AND s.partition = pruned.partition
        WHERE s.at < clock_timestamp() - interval '1 day'
    ) AS old
    WHERE old.place > 1 OR old.at < clock_timestamp() - interval '30 days'
));

-- name: store_declared
-- By topic, and only from workers of the group's version: an older worker is refused, and its declaration is not the
-- group's. A process of the same version does not remove the sums of a table that it writes in another way, because
-- both kinds run during a rolling deploy, and a reset must know of the sums (I1). The row is not locked if nothing
-- changes; a test by containment would not notice a member that an array has lost.
UPDATE seekpoint.consumer_group
SET declared = coalesce(declared, '{}') || (
    SELECT coalesce(jsonb_object_agg(new.key, new.value), '{}')
    FROM jsonb_each(%(declared)s::jsonb) AS new
    WHERE NOT EXISTS (
        SELECT
        FROM jsonb_path_query(declared -> new.key, '$.sinks[*] ? (@.aggregates == true).tables[*]') AS sums (name)
        WHERE new.value -> 'version' = declared -> new.key -> 'version'
          AND (jsonb_path_query_array(new.value, '$.sinks[*].tables[*]') || (new.value -> 'writes')) @> sums.name
          AND NOT jsonb_path_query_array(new.value, '$.sinks[*] ? (@.aggregates == true).tables[*]') @> sums.name))
WHERE name = %(group)s
  AND version = %(version)s
  AND declared IS DISTINCT FROM coalesce(declared, '{}') || (
    SELECT coalesce(jsonb_object_agg(new.key, new.value), '{}')
    FROM jsonb_each(%(declared)s::jsonb) AS new
    WHERE NOT EXISTS (
        SELECT
        FROM jsonb_path_query(declared -> new.key, '$.sinks[*] ? (@.aggregates == true).tables[*]') AS sums (name)
        WHERE new.value -> 'version' = declared -> new.key -> 'version'
          AND (jsonb_path_query_array(new.value, '$.sinks[*].tables[*]') || (new.value -> 'writes')) @> sums.name
          AND NOT jsonb_path_query_array(new.value, '$.sinks[*] ? (@.aggregates == true).tables[*]') @> sums.name));

-- name: groups
SELECT name, cluster_id, version, tables, paused, paused_reason, paused_by, created_at, declared, forgotten
FROM seekpoint.consumer_group
ORDER BY name;

-- name: group_status
SELECT consumer_group, version, paused, paused_by, paused_reason, partitions, owned, stopped, unknown_lag, lag_records,
       lag_seconds, headroom_records, headroom_seconds, sample_age, dead_letters, blocked, waiting,
       oldest_waiting_seconds, committed_at, workers
FROM seekpoint.group_status
ORDER BY consumer_group;

-- name: positions
SELECT consumer_group, topic, partition, topic_id, first_offset, next_offset, leader_epoch, token, epoch, owner,
       claimed_at, committed_at, record_time, unreleased_claims, attempt_offset, attempts, attempt_crashes,
       attempt_running, attempt_error, retry_at, attempts_allowed, attempt_policy, suspect_end, suspect_part_end,
       suspect_running, stop_kind, stop_offset, stop_message, stop_choices, stopped_at, stop_log_end
FROM seekpoint.partition_state
WHERE consumer_group = ANY (%(names)s)
ORDER BY consumer_group, topic, partition;

-- name: lag_of_all
SELECT consumer_group, topic, partition, next_offset, committed_at, record_time, owner, host, pid, stop_kind,
       stop_offset, stopped_at, dead_letters, blocked, waiting, oldest_waiting_seconds, overdue_seconds, postponed,
       sampled_at, sample_age, log_start, log_end, lag_records, lag_seconds, headroom_records, headroom_seconds,
       owned, next_record_at, reached_at, reached_end, log_start_since, past_log_start, statement_timestamp() AS now
FROM seekpoint.lag
ORDER BY consumer_group, topic, partition;

-- name: lag
-- Group by group, because the view would count the dead letters of all groups for a list of names.
SELECT l.*
FROM unnest(%(names)s::text[]) AS asked (name)
CROSS JOIN LATERAL (
    SELECT consumer_group, topic, partition, next_offset, committed_at, record_time, owner, host, pid, stop_kind,
           stop_offset, stopped_at, dead_letters, blocked, waiting, oldest_waiting_seconds, overdue_seconds, postponed,
           sampled_at, sample_age, log_start, log_end, lag_records, lag_seconds, headroom_records, headroom_seconds,
           owned, next_record_at, reached_at, reached_end, log_start_since, past_log_start, statement_timestamp() AS now
    FROM seekpoint.lag
    WHERE consumer_group = asked.name
    OFFSET 0 -- planned by itself, with the name as a constant
) AS l;

-- name: topic_ids
SELECT consumer_group, topic, partition, topic_id FROM seekpoint.partition_offset;

-- name: workers
-- is_live counts as the view group_status does; it is only for display, because a row may be written late.
SELECT owner, consumer_group, host, pid, client_id, version, library, started_at, seen_at, state, trouble,
       state <> 'ended' AND seen_at > clock_timestamp() - interval '1 minute' AS is_live
FROM seekpoint.worker
WHERE consumer_group = ANY (%(names)s)
ORDER BY consumer_group, started_at, owner;

-- name: silent_drivers
SELECT id, state, extract(epoch FROM clock_timestamp() - changed_at)::double precision AS silent
FROM seekpoint.reload_run
WHERE state NOT IN ('verified', 'cut_over', 'aborted', 'failed');

-- name: lost_ranges
-- The newest first: a page shows the last ones.
SELECT id, consumer_group, topic, topic_id, partition, from_offset, to_offset, reason, decision, actor, at,
       operator_reason
FROM seekpoint.lost_range
WHERE consumer_group = ANY (%(names)s)
  AND (%(topic)s::text IS NULL OR (topic = %(topic)s::text AND partition = %(partition)s::integer))
ORDER BY id DESC
LIMIT %(most)s;

-- name: open_runs
SELECT id, strategy, state, driver, groups, pipelines, version_to, staging_schema,
       clock_timestamp() - changed_at AS silence
FROM seekpoint.reload_run
WHERE state NOT IN ('verified', 'cut_over', 'aborted', 'failed')
ORDER BY opened_at;

-- name: samples
-- An hour has sixty samples of each partition, a month hundreds.
SELECT s.consumer_group, s.topic, s.partition, s.at, s.topic_id, s.next_offset, s.log_start, s.log_end
FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[]))
     AS asked (topic, partition)
JOIN seekpoint.position_sample AS s
  ON s.consumer_group = %(group)s AND s.topic = asked.topic AND s.partition = asked.partition
WHERE s.at >= clock_timestamp() - %(since)s::interval
ORDER BY s.topic, s.partition, s.at;

-- name: runs
SELECT run.id, run.groups, run.tables, run.strategy, run.pipelines, run.version_from, run.version_to, run.state,
       run.driver_epoch, run.driver, run.staging_schema, run.swept, run.diff_xid, run.actor, run.reason, run.error,
       run.archive, run.opened_at, run.changed_at, run.differences,
       coalesce(sum(p.next_offset - p.first_offset), 0)::bigint AS read,
       coalesce(sum(p.end_offset - p.first_offset), 0)::bigint AS wanted
FROM seekpoint.reload_run AS run
LEFT JOIN seekpoint.reload_position AS p ON p.run = run.id
WHERE NOT %(only_open)s OR run.state NOT IN ('verified', 'cut_over', 'aborted', 'failed')
GROUP BY run.id
ORDER BY run.opened_at DESC, run.id
LIMIT %(most)s;
