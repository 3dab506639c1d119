-- A worker's statements on its positions: hold, advance, claim, release, and what it stores about attempts and stops.
--
-- Rows are always locked in the order (topic COLLATE "C", partition), which is how Python sorts: callers sort the
-- arrays, and the scans keep that order.
-- Arrays come through a sub-select, so that the planner does not see their lengths and assumes ten elements: it looks
-- each row up by the primary key, for one partition and for a thousand, and never scans the table. If an UPDATE joins
-- the arrays, the planner must not see the group's name as a constant either: without statistics it expects a group to
-- have only a few rows, and would read all of them.
-- A refusal is raised inside SQL, by casting a text that is not a number (22P02 quotes it), because in a pipeline
-- COMMIT is sent before a caller could compare a count.

-- name: hold
-- The first statement of each transaction. Locks the rows of all active partitions where claim and position are as
-- expected, or raises: only the holder of the current claim (I2), and only from the exact position that was read (I3),
-- writes anything. A lateral lock for each row keeps the plan a loop over the primary key, whatever the statistics say.
-- The transaction's settings are sent along, to save a round trip; transaction_timeout came with Postgres 17. Returns
-- the transaction's id. After an error, even one that is rolled back to a savepoint, Postgres no longer applies
-- transaction_timeout; it applies the idle timeout only if that is the shorter one. So a worker that stands still is
-- ended in any case. An age of 0 sets neither.
SELECT CASE WHEN rows.n = %(expected)s::integer THEN rows.n
            ELSE ('seekpoint: claim or position is not the expected one; rows held: ' || rows.n)::integer END AS held,
       pg_current_xact_id()::text AS transaction,
       set_config('application_name', %(application_name)s, true) AS application_name,
       set_config('synchronous_commit', %(synchronous_commit)s, true) AS synchronous_commit,
       set_config('idle_in_transaction_session_timeout', (%(transaction_age)s::integer)::text, true) AS idle,
       CASE WHEN current_setting('server_version_num')::integer >= 170000
            THEN set_config('transaction_timeout',
                            (%(transaction_age)s::integer + least(%(transaction_age)s::integer, 1))::text, true)
            END AS age
FROM (
    SELECT count(*) AS n
    FROM unnest((SELECT %(held_topic)s::text[]), (SELECT %(held_partition)s::integer[]),
                (SELECT %(held_token)s::uuid[]), (SELECT %(held_from_offset)s::bigint[]))
         AS held (topic, partition, token, from_offset)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM seekpoint.partition_offset
        WHERE consumer_group = %(group)s AND topic = held.topic AND partition = held.partition
          AND token = held.token
          AND next_offset = held.from_offset
        FOR NO KEY UPDATE
    ) AS locked
) AS rows;

-- name: advance
-- Moves the positions that hold has locked, or raises: under the same claim (I2), from the same position (I3), and in
-- the same transaction: after a COMMIT in between, rows and offset would not be committed together (I1). If both are
-- sent in one round trip, nothing can come in between, and the transaction is NULL. Returns how many of the partitions
-- have a row in partition_trouble.
WITH moving AS MATERIALIZED (
    SELECT %(group)s::text AS consumer_group, given.*
    FROM unnest((SELECT %(moving_topic)s::text[]), (SELECT %(moving_partition)s::integer[]),
                (SELECT %(moving_token)s::uuid[]), (SELECT %(moving_from_offset)s::bigint[]),
                (SELECT %(moving_to_offset)s::bigint[]), (SELECT %(moving_leader_epoch)s::integer[]),
                (SELECT %(moving_record_time)s::timestamptz[]))
         AS given (topic, partition, token, from_offset, to_offset, leader_epoch, record_time)
),
moved AS (
    UPDATE seekpoint.partition_offset AS o
    SET next_offset = moving.to_offset,
        leader_epoch = moving.leader_epoch,
        record_time = coalesce(moving.record_time, o.record_time),
        committed_at = clock_timestamp()
    FROM moving
    WHERE o.consumer_group = moving.consumer_group AND o.topic = moving.topic AND o.partition = moving.partition
      AND o.token = moving.token
      AND o.next_offset = moving.from_offset
    RETURNING 1
)
SELECT CASE WHEN rows.n <> %(expected)s::integer
            THEN ('seekpoint: claim or position is not the expected one; rows advanced: ' || rows.n)::integer
            WHEN pg_current_xact_id()::text <> %(transaction)s::text
            THEN ('seekpoint: the transaction that held the rows has ended; rows: ' || rows.n)::integer
            ELSE rows.n END AS moved,
       (SELECT count(*)
        FROM moving
        JOIN seekpoint.partition_trouble AS t
          ON t.consumer_group = moving.consumer_group AND t.topic = moving.topic AND t.partition = moving.partition
       ) AS troubled
FROM (SELECT count(*) AS n FROM moved) AS rows;

-- name: end_trouble
-- Follows advance if a partition has a row in partition_trouble: what was stored for the old position no longer
-- applies. After a single-record attempt, or a part of a suspect range, later records may still crash the process: the
-- next owner has to apply them in parts, too, up to the range's end. Only in that case the row stays.
WITH passed AS MATERIALIZED (
    SELECT %(group)s::text AS consumer_group, given.*
    FROM unnest((SELECT %(passed_topic)s::text[]), (SELECT %(passed_partition)s::integer[]),
                (SELECT %(passed_to_offset)s::bigint[])) AS given (topic, partition, to_offset)
),
ended AS (
    DELETE FROM seekpoint.partition_trouble AS t
    USING passed
    WHERE t.consumer_group = passed.consumer_group AND t.topic = passed.topic AND t.partition = passed.partition
      AND NOT ((t.attempt_running OR t.suspect_running)
               AND (t.suspect_end IS NULL OR t.suspect_end > passed.to_offset))
)
UPDATE seekpoint.partition_trouble AS t
SET suspect_part_end = CASE WHEN NOT t.suspect_running THEN t.suspect_part_end END,
    suspect_running = false,
    attempt_offset = NULL,
    attempts = 0,
    attempt_crashes = 0,
    attempt_running = false,
    attempt_error = NULL,
    retry_at = NULL,
    attempts_allowed = NULL,
    attempt_policy = NULL,
    stop_kind = NULL,
    stop_offset = NULL,
    stop_message = NULL,
    stop_choices = NULL,
    stopped_at = NULL,
    stop_log_end = NULL
FROM passed
WHERE t.consumer_group = passed.consumer_group AND t.topic = passed.topic AND t.partition = passed.partition
  AND (t.attempt_running OR t.suspect_running)
  AND (t.suspect_end IS NULL OR t.suspect_end > passed.to_offset);

-- name: lock_claimed
-- Runs before a statement on partition_trouble: locks the partitions' rows if the claims are current (I2), or raises;
-- this transaction may have advanced the position. The next statement then sees what the lock's last holder committed.
SELECT CASE WHEN rows.n = %(expected)s::integer THEN rows.n
            ELSE ('seekpoint: the claim is not the expected one; rows locked: ' || rows.n)::integer END AS locked
FROM (
    SELECT count(*) AS n
    FROM unnest((SELECT %(claimed_topic)s::text[]), (SELECT %(claimed_partition)s::integer[]),
                (SELECT %(claimed_token)s::uuid[])) AS claimed (topic, partition, token)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM seekpoint.partition_offset
        WHERE consumer_group = %(group)s AND topic = claimed.topic AND partition = claimed.partition
          AND token = claimed.token
        FOR NO KEY UPDATE
    ) AS locked
) AS rows;

-- name: record_attempts
-- An attempt at the record at the position. An attempt that is about to begin has no error yet; the error and time of
-- the previous one are kept until its outcome is known.
INSERT INTO seekpoint.partition_trouble AS t
    (consumer_group, topic, partition, attempt_offset, attempts, attempt_running, attempt_error, retry_at,
     attempts_allowed, attempt_policy)
SELECT %(group)s, noted.topic, noted.partition, noted."offset", noted.number, noted.error IS NULL, noted.error,
       clock_timestamp() + noted.wait * interval '1 second', noted.allowed, noted.policy
FROM unnest((SELECT %(noted_topic)s::text[]), (SELECT %(noted_partition)s::integer[]),
            (SELECT %(noted_offset)s::bigint[]), (SELECT %(noted_number)s::integer[]),
            (SELECT %(noted_error)s::text[]), (SELECT %(noted_wait)s::double precision[]),
            (SELECT %(noted_allowed)s::integer[]), (SELECT %(noted_policy)s::text[]))
     AS noted (topic, partition, "offset", number, error, wait, allowed, policy)
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET attempt_offset = excluded.attempt_offset,
    attempts = excluded.attempts,
    attempt_crashes = CASE WHEN t.attempt_offset = excluded.attempt_offset THEN t.attempt_crashes ELSE 0 END,
    attempt_running = excluded.attempt_running,
    attempt_error = coalesce(excluded.attempt_error,
                             CASE WHEN t.attempt_offset = excluded.attempt_offset THEN t.attempt_error END),
    retry_at = CASE WHEN excluded.attempt_running AND t.attempt_offset = excluded.attempt_offset THEN t.retry_at
                    ELSE excluded.retry_at END,
    attempts_allowed = excluded.attempts_allowed,
    attempt_policy = excluded.attempt_policy;

-- name: record_suspects
-- A suspect range, whose end is stored once, and the part of it that is about to be tried, if any. Without an end, the
-- range is deleted.
INSERT INTO seekpoint.partition_trouble AS t
    (consumer_group, topic, partition, suspect_end, suspect_part_end, suspect_running)
SELECT %(group)s, suspected.topic, suspected.partition,
       CASE WHEN suspected.end_offset IS NOT NULL AND known.suspect_end > known.next_offset THEN known.suspect_end
            ELSE suspected.end_offset END,
       suspected.part_end, suspected.part_end IS NOT NULL
FROM unnest((SELECT %(suspected_topic)s::text[]), (SELECT %(suspected_partition)s::integer[]),
            (SELECT %(suspected_end_offset)s::bigint[]), (SELECT %(suspected_part_end)s::bigint[]))
     AS suspected (topic, partition, end_offset, part_end)
CROSS JOIN LATERAL (
    SELECT next_offset, suspect_end
    FROM seekpoint.partition_state
    WHERE consumer_group = %(group)s AND topic = suspected.topic AND partition = suspected.partition
    LIMIT 1
) AS known
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET suspect_end = excluded.suspect_end,
    suspect_part_end = excluded.suspect_part_end,
    suspect_running = excluded.suspect_running,
    unreleased_claims = CASE WHEN excluded.suspect_end IS NULL THEN 0 ELSE t.unreleased_claims END;

-- name: configure
-- Claims and resets are durable even if batches are not, and their waits are bounded, also the wait for a process that
-- is frozen or cut off: it may have locked the group, and then nobody could claim. TimeZone is UTC because Python
-- cannot hold a record's time near year 1 or 9999 in another zone. A generic plan would expect a group of the usual
-- size, and read all dead letters of a large one for each page.
SELECT set_config('synchronous_commit', 'on', true) AS synchronous_commit,
       set_config('plan_cache_mode', 'force_custom_plan', true) AS plan_cache_mode,
       set_config('lock_timeout', %(lock_timeout)s, true) AS lock_timeout,
       set_config('idle_in_transaction_session_timeout', %(idle)s, true) AS idle,
       set_config('application_name', %(application_name)s, true) AS application_name,
       set_config('TimeZone', 'UTC', true) AS timezone;

-- name: known_topics
-- The topics that have a row of the group.
SELECT known.topic
FROM unnest((SELECT %(named_topic)s::text[])) AS named (topic)
CROSS JOIN LATERAL (
    SELECT topic
    FROM seekpoint.partition_offset
    WHERE consumer_group = %(group)s AND topic = named.topic
    ORDER BY partition
    LIMIT 1
) AS known;

-- name: insert_positions
-- For topics that have no row yet. The server draws random tokens, so that they are unique across failovers (I5).
INSERT INTO seekpoint.partition_offset
    (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)
SELECT %(group)s, new.topic, new.partition, new.topic_id, new.start, new.start, gen_random_uuid(), 0
FROM unnest((SELECT %(new_topic)s::text[]), (SELECT %(new_partition)s::integer[]),
            (SELECT %(new_topic_id)s::uuid[]), (SELECT %(new_start)s::bigint[]))
     AS new (topic, partition, topic_id, start)
ORDER BY new.topic COLLATE "C", new.partition;

-- name: lock_wanted
-- Waits for the transactions in flight on the rows, in the order of locks, so that later statements see the positions
-- and the trouble that these have committed (I3).
SELECT 1
FROM unnest((SELECT %(wanted_topic)s::text[]), (SELECT %(wanted_partition)s::integer[])) AS wanted (topic, partition)
CROSS JOIN LATERAL (
    SELECT 1
    FROM seekpoint.partition_offset
    WHERE consumer_group = %(group)s AND topic = wanted.topic AND partition = wanted.partition
    FOR NO KEY UPDATE
) AS locked;

-- name: note_crashes
-- If the previous owner is this process, or has released the partition, an attempt that has not ended was cancelled and
-- is not counted. Any other owner counts as crashed in it. A stop ends: the next read finds its cause again, if there
-- still is one. By then a truncated log may be longer again, so stop_log_end is kept.
INSERT INTO seekpoint.partition_trouble AS t (consumer_group, topic, partition, unreleased_claims)
SELECT %(group)s, wanted.topic, wanted.partition, CASE WHEN o.owner <> %(owner)s::uuid THEN 1 ELSE 0 END
FROM unnest((SELECT %(wanted_topic)s::text[]), (SELECT %(wanted_partition)s::integer[]),
            (SELECT %(wanted_topic_id)s::uuid[])) AS wanted (topic, partition, topic_id)
JOIN seekpoint.partition_offset AS o
  ON o.consumer_group = %(group)s AND o.topic = wanted.topic AND o.partition = wanted.partition
 AND o.topic_id = wanted.topic_id
LEFT JOIN seekpoint.partition_trouble AS known
  ON known.consumer_group = %(group)s AND known.topic = wanted.topic AND known.partition = wanted.partition
WHERE o.owner <> %(owner)s::uuid OR known.topic IS NOT NULL
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET unreleased_claims = t.unreleased_claims + excluded.unreleased_claims,
    attempts = t.attempts - CASE WHEN t.attempt_running AND excluded.unreleased_claims = 0 THEN 1 ELSE 0 END,
    attempt_crashes = t.attempt_crashes + CASE WHEN t.attempt_running THEN excluded.unreleased_claims ELSE 0 END,
    attempt_error = CASE WHEN t.attempt_running AND excluded.unreleased_claims = 1 THEN NULL ELSE t.attempt_error END,
    attempt_running = false,
    suspect_part_end = CASE WHEN t.suspect_running AND excluded.unreleased_claims = 0 THEN NULL
                            ELSE t.suspect_part_end END,
    suspect_running = false,
    stop_kind = NULL,
    stop_offset = NULL,
    stop_message = NULL,
    stop_choices = NULL,
    stopped_at = NULL;

-- name: claim
-- Inserts or updates, in the order of locks. If the topic has rows but this partition has none, the partition was added
-- and is read from offset 0. A row with another topic id is not changed.
INSERT INTO seekpoint.partition_offset AS o
    (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch, owner, claimed_at)
SELECT %(group)s, wanted.topic, wanted.partition, wanted.topic_id, 0, 0, gen_random_uuid(), 1, %(owner)s::uuid,
       clock_timestamp()
FROM unnest((SELECT %(wanted_topic)s::text[]), (SELECT %(wanted_partition)s::integer[]),
            (SELECT %(wanted_topic_id)s::uuid[])) AS wanted (topic, partition, topic_id)
ORDER BY wanted.topic COLLATE "C", wanted.partition
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET token = excluded.token,
    epoch = o.epoch + 1,
    owner = excluded.owner,
    claimed_at = excluded.claimed_at
WHERE o.topic_id = excluded.topic_id;

-- name: claimed
-- The rows that claim has claimed.
SELECT o.topic, o.partition, o.token, o.epoch, o.next_offset, o.leader_epoch, o.unreleased_claims,
       CASE WHEN o.suspect_end > o.next_offset THEN o.suspect_end END AS suspect_end,
       CASE WHEN o.suspect_part_end > o.next_offset THEN o.suspect_part_end END AS suspect_part_end,
       -- At or past the position: compaction may have taken the records between the two.
       CASE WHEN o.attempts > 0 AND o.attempt_offset >= o.next_offset THEN o.attempt_offset END AS attempt_offset,
       o.attempts,
       o.attempt_error,
       CASE WHEN o.retry_at IS NOT NULL -- greatest() would overlook the NULL
            THEN greatest(extract(epoch FROM o.retry_at - clock_timestamp())::double precision, 0) END AS wait,
       o.attempts_allowed,
       o.attempt_policy,
       o.attempt_crashes
FROM unnest((SELECT %(wanted_topic)s::text[]), (SELECT %(wanted_partition)s::integer[]),
            (SELECT %(wanted_topic_id)s::uuid[])) AS wanted (topic, partition, topic_id)
CROSS JOIN LATERAL (
    SELECT *
    FROM seekpoint.partition_state
    WHERE consumer_group = %(group)s AND topic = wanted.topic AND partition = wanted.partition
      AND topic_id = wanted.topic_id
    LIMIT 1
) AS o;

-- name: lock_stopped
-- The row must still have the token under which the worker stopped (I2): a later claim or reset has ended the stop.
SELECT 1
FROM seekpoint.partition_offset
WHERE consumer_group = %(group)s AND topic = %(topic)s AND partition = %(partition)s AND token = %(token)s
FOR NO KEY UPDATE;

-- name: stop
-- A stop, and its choices. One statement for each row, because arrays of choices differ in length. If the new log end
-- is NULL, the stored one stays: the log has grown since, but was truncated there.
INSERT INTO seekpoint.partition_trouble AS t
    (consumer_group, topic, partition, stop_kind, stop_offset, stop_message, stop_choices, stopped_at, stop_log_end)
VALUES (%(group)s, %(topic)s, %(partition)s, %(kind)s, %(offset)s, %(message)s, %(choices)s::text[], clock_timestamp(),
        %(log_end)s::bigint)
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET stop_kind = excluded.stop_kind,
    stop_offset = excluded.stop_offset,
    stop_message = excluded.stop_message,
    stop_choices = excluded.stop_choices,
    stopped_at = CASE WHEN t.stop_kind = excluded.stop_kind AND t.stop_offset = excluded.stop_offset THEN t.stopped_at
                      ELSE excluded.stopped_at END,
    stop_log_end = least(excluded.stop_log_end, t.stop_log_end);

-- name: positions
-- The limit keeps it a lookup for each row.
SELECT o.*
FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[])) AS asked (topic, partition)
CROSS JOIN LATERAL (
    SELECT consumer_group, topic, partition, topic_id, first_offset, next_offset, leader_epoch, token, epoch, owner,
           claimed_at, committed_at, record_time, unreleased_claims, attempt_offset, attempts, attempt_crashes,
           attempt_running, attempt_error, retry_at, attempts_allowed, attempt_policy, suspect_end, suspect_part_end,
           suspect_running, stop_kind, stop_offset, stop_message, stop_choices, stopped_at, stop_log_end
    FROM seekpoint.partition_state
    WHERE consumer_group = %(group)s AND topic = asked.topic AND partition = asked.partition
    LIMIT 1
) AS o;

-- name: settle
-- Waits for the transactions in flight on these rows, so that the next statement reads what they have committed.
SELECT 1
FROM unnest((SELECT %(asked_topic)s::text[]), (SELECT %(asked_partition)s::integer[])) AS asked (topic, partition)
CROSS JOIN LATERAL (
    SELECT 1
    FROM seekpoint.partition_offset
    WHERE consumer_group = %(group)s AND topic = asked.topic AND partition = asked.partition
    FOR SHARE
) AS settled;

-- name: release
-- A row is ours by its token, or by its owner if a reset drew another token and kept the owner (I5). Each process has
-- its own owner id, so rows that another one has claimed since match neither (I2). The rows are locked in order first,
-- because the successor may claim them at the same time.
WITH released AS MATERIALIZED (
    SELECT %(group)s::text AS consumer_group, given.*
    FROM unnest((SELECT %(released_topic)s::text[]), (SELECT %(released_partition)s::integer[]),
                (SELECT %(released_token)s::uuid[])) AS given (topic, partition, token)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM seekpoint.partition_offset
        WHERE consumer_group = %(group)s AND topic = given.topic AND partition = given.partition
          AND (token = given.token OR owner = %(owner)s::uuid)
        FOR NO KEY UPDATE
    ) AS locked
)
UPDATE seekpoint.partition_offset AS o
SET owner = NULL
FROM released
WHERE o.consumer_group = released.consumer_group AND o.topic = released.topic AND o.partition = released.partition
  AND (o.token = released.token OR o.owner = %(owner)s::uuid);

-- name: cancel_attempts
-- An attempt that has not ended when its partition is released was cancelled: its record did not crash this process.
WITH released AS MATERIALIZED (
    SELECT %(group)s::text AS consumer_group, given.*
    FROM unnest((SELECT %(released_topic)s::text[]), (SELECT %(released_partition)s::integer[]),
                (SELECT %(released_token)s::uuid[])) AS given (topic, partition, token)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM seekpoint.partition_offset
        WHERE consumer_group = %(group)s AND topic = given.topic AND partition = given.partition
          AND token = given.token
        LIMIT 1
    ) AS ours
)
UPDATE seekpoint.partition_trouble AS t
SET attempts = t.attempts - CASE WHEN t.attempt_running THEN 1 ELSE 0 END,
    attempt_running = false,
    suspect_part_end = CASE WHEN NOT t.suspect_running THEN t.suspect_part_end END,
    suspect_running = false
FROM released
WHERE t.consumer_group = released.consumer_group AND t.topic = released.topic AND t.partition = released.partition
  AND (t.attempt_running OR t.suspect_running);
