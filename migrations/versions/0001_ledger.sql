-- The ledger: its tables, indexes and views; no function, no trigger. The name of the schema takes the place of
-- `seekpoint`. A test compares it with ledger/tables.py.

-- The row that statements about the whole group lock first, and whose FOR SHARE lock every claim and reset takes.
CREATE TABLE seekpoint.consumer_group (
    name text NOT NULL,
    cluster_id text,
    version integer NOT NULL DEFAULT 1,
    tables text[] NOT NULL DEFAULT '{}',
    paused boolean NOT NULL DEFAULT false,
    paused_reason text,
    paused_by text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    declared jsonb,
    forgotten jsonb,
    PRIMARY KEY (name)
);
COMMENT ON COLUMN seekpoint.consumer_group.cluster_id IS 'Kafka cluster the offsets belong to';
COMMENT ON COLUMN seekpoint.consumer_group.version IS 'handler version';
COMMENT ON COLUMN seekpoint.consumer_group.tables IS 'tables the group writes';
COMMENT ON COLUMN seekpoint.consumer_group.declared IS 'what its pipeline declares, by topic, for display';
COMMENT ON COLUMN seekpoint.consumer_group.forgotten IS
    'who forgot the group, when and why, and its positions; NULL: it is not forgotten';

-- One row per partition; the hot row of every commit. No further index, and half of each page stays free so that the
-- new version fits beside the old one (HOT); vacuum comes by the count of dead rows, however many live ones there are.
CREATE TABLE seekpoint.partition_offset (
    consumer_group text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    topic_id uuid NOT NULL,
    first_offset bigint NOT NULL,
    next_offset bigint NOT NULL,
    leader_epoch integer,
    token uuid NOT NULL,
    epoch bigint NOT NULL,
    owner uuid,
    claimed_at timestamptz,
    committed_at timestamptz,
    record_time timestamptz,
    PRIMARY KEY (consumer_group, topic, partition),
    FOREIGN KEY (consumer_group) REFERENCES seekpoint.consumer_group (name),
    CONSTRAINT partition_offset_next_offset_check CHECK (next_offset >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

COMMENT ON COLUMN seekpoint.partition_offset.topic_id IS 'the topic''s id when the offset was first stored';
COMMENT ON COLUMN seekpoint.partition_offset.first_offset IS 'the first position ever applied';
COMMENT ON COLUMN seekpoint.partition_offset.next_offset IS 'position to read next; never last processed';
COMMENT ON COLUMN seekpoint.partition_offset.leader_epoch IS 'epoch of the last applied record; NULL: none is known';
COMMENT ON COLUMN seekpoint.partition_offset.token IS 'fencing token, drawn by every claim and every reset';
COMMENT ON COLUMN seekpoint.partition_offset.epoch IS 'counts the tokens, for people and for order';
COMMENT ON COLUMN seekpoint.partition_offset.owner IS 'process that claimed it, for display; NULL after a release';
COMMENT ON COLUMN seekpoint.partition_offset.record_time IS 'timestamp of the last applied record';

-- A row only while something is wrong with a partition: its owners crashed, a record is tried again, records may crash
-- their process, or it is stopped. Written and read by a statement after the one that has locked the row above.
CREATE TABLE seekpoint.partition_trouble (
    consumer_group text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    unreleased_claims integer NOT NULL DEFAULT 0,
    attempt_offset bigint,
    attempts integer NOT NULL DEFAULT 0,
    attempt_crashes integer NOT NULL DEFAULT 0,
    attempt_running boolean NOT NULL DEFAULT false,
    attempt_error text,
    retry_at timestamptz,
    attempts_allowed integer,
    attempt_policy text,
    suspect_end bigint,
    suspect_part_end bigint,
    suspect_running boolean NOT NULL DEFAULT false,
    stop_kind text,
    stop_offset bigint,
    stop_message text,
    stop_choices text[],
    stopped_at timestamptz,
    stop_log_end bigint,
    PRIMARY KEY (consumer_group, topic, partition),
    FOREIGN KEY (consumer_group, topic, partition)
        REFERENCES seekpoint.partition_offset (consumer_group, topic, partition) ON DELETE CASCADE
);

COMMENT ON COLUMN seekpoint.partition_trouble.unreleased_claims IS 'owners in a row that ended without a release';
COMMENT ON COLUMN seekpoint.partition_trouble.attempt_error IS 'NULL: the process that tried it never came back';
COMMENT ON COLUMN seekpoint.partition_trouble.attempt_policy IS 'what follows the last attempt';
COMMENT ON COLUMN seekpoint.partition_trouble.suspect_end IS 'end of the range that may hold a crashing record';
COMMENT ON COLUMN seekpoint.partition_trouble.suspect_part_end IS 'end of the part that is tried, or saw a crash';
COMMENT ON COLUMN seekpoint.partition_trouble.stop_kind IS 'why the partition is stopped; NULL: it is not';
COMMENT ON COLUMN seekpoint.partition_trouble.stop_offset IS 'where it stopped';
COMMENT ON COLUMN seekpoint.partition_trouble.stop_choices IS 'what an operator can do';
COMMENT ON COLUMN seekpoint.partition_trouble.stop_log_end IS 'where the log ended when it stopped with OffsetLost';

-- Which tables the records of a topic are written to: two pipelines under one group name must not divide a topic.
CREATE TABLE seekpoint.group_topic (
    consumer_group text NOT NULL,
    topic text NOT NULL,
    version integer NOT NULL,
    tables text[],
    replaced integer NOT NULL DEFAULT 0,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_group, topic),
    FOREIGN KEY (consumer_group) REFERENCES seekpoint.consumer_group (name)
);
COMMENT ON COLUMN seekpoint.group_topic.version IS 'handler version that declared them';
COMMENT ON COLUMN seekpoint.group_topic.tables IS 'where records of the topic go; NULL: not known';
COMMENT ON COLUMN seekpoint.group_topic.replaced IS 'counts accepted declarations';

-- Every record that was passed and not applied, whole (I1, I4), and what became of it.
CREATE TABLE seekpoint.dead_letter (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    consumer_group text NOT NULL,
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    record_offset bigint NOT NULL,
    leader_epoch integer,
    timestamp_ms bigint,
    key bytea,
    value bytea,
    header_names bytea[] NOT NULL,
    header_values bytea[] NOT NULL,
    state text NOT NULL,
    cause text NOT NULL,
    error text NOT NULL,
    traceback text,
    sqlstate text,
    attempts integer NOT NULL,
    version integer NOT NULL,
    dead_lettered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    dead_lettered_by uuid,
    replays integer NOT NULL DEFAULT 0,
    replayed_at timestamptz,
    replay_error text,
    replay_traceback text,
    closed_at timestamptz,
    closed_by text,
    closed_reason text,
    error_line text,
    edited_value bytea,
    edited_at timestamptz,
    edited_by text,
    edited_reason text,
    retry_at timestamptz,
    crashes integer NOT NULL DEFAULT 0,
    PRIMARY KEY (id),
    FOREIGN KEY (consumer_group) REFERENCES seekpoint.consumer_group (name),
    CONSTRAINT dead_letter_record_key UNIQUE (consumer_group, topic_id, partition, record_offset),
    CONSTRAINT dead_letter_state_check CHECK (
        state IN ('dead_lettered', 'blocked', 'waiting', 'skipped', 'replayed', 'discarded', 'superseded')
    ),
    CONSTRAINT dead_letter_headers_check CHECK (cardinality(header_names) = cardinality(header_values)),
    CONSTRAINT dead_letter_edit_check CHECK (
        num_nonnulls(edited_value, edited_at, edited_by, edited_reason) IN (0, 4)
    ),
    CONSTRAINT dead_letter_retry_check CHECK (state <> 'waiting' OR retry_at IS NOT NULL)
);
CREATE INDEX dead_letter_key_idx
    ON seekpoint.dead_letter (consumer_group, topic_id, partition, sha256(key), record_offset)
    WHERE state IN ('dead_lettered', 'blocked', 'waiting') AND key IS NOT NULL;
CREATE INDEX dead_letter_open_idx
    ON seekpoint.dead_letter (consumer_group, topic, partition, record_offset)
    WHERE state IN ('dead_lettered', 'blocked', 'waiting');
CREATE INDEX dead_letter_waiting_idx
    ON seekpoint.dead_letter (consumer_group, topic, partition, retry_at)
    WHERE state = 'waiting';
COMMENT ON COLUMN seekpoint.dead_letter.value IS 'NULL also where the record was skipped';
COMMENT ON COLUMN seekpoint.dead_letter.version IS 'handler version';
COMMENT ON COLUMN seekpoint.dead_letter.dead_lettered_by IS 'process that dead-lettered it';
COMMENT ON COLUMN seekpoint.dead_letter.error_line IS
    'innermost line of the user''s own code in the error''s traceback';
COMMENT ON COLUMN seekpoint.dead_letter.edited_value IS 'what a replay applies in place of value';
COMMENT ON COLUMN seekpoint.dead_letter.retry_at IS 'when a waiting record is due';
COMMENT ON COLUMN seekpoint.dead_letter.crashes IS
    'retries of a waiting record that have begun, and whose end is not known';

-- Lost ranges: retention, truncation, a recreated topic, skipped by an operator (I4).
CREATE TABLE seekpoint.lost_range (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    consumer_group text NOT NULL,
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    from_offset bigint NOT NULL,
    to_offset bigint,
    reason text NOT NULL,
    decision text NOT NULL,
    actor text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    operator_reason text,
    PRIMARY KEY (id),
    FOREIGN KEY (consumer_group) REFERENCES seekpoint.consumer_group (name)
);
CREATE INDEX lost_range_consumer_group_topic_partition_idx
    ON seekpoint.lost_range (consumer_group, topic, partition);
COMMENT ON COLUMN seekpoint.lost_range.operator_reason IS 'why, as the operator has said';

-- Who reset what, from where to where, why and when (I5).
CREATE TABLE seekpoint.admin_action (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    consumer_group text NOT NULL,
    action text NOT NULL,
    topic text,
    partition integer,
    from_offset bigint,
    to_offset bigint,
    actor text NOT NULL,
    reason text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id),
    FOREIGN KEY (consumer_group) REFERENCES seekpoint.consumer_group (name)
);
CREATE INDEX admin_action_consumer_group_at_idx ON seekpoint.admin_action (consumer_group, at);
CREATE INDEX admin_action_reset_idx
    ON seekpoint.admin_action (consumer_group, topic, partition, id)
    WHERE action = 'reset';

-- One reload: the tables of the groups that write them, built again beside the live ones. Its driver holds this row's
-- lock through each step; a driver that comes later raises the epoch, and the earlier one's next step fails.
CREATE TABLE seekpoint.reload_run (
    id uuid NOT NULL,
    groups text[] NOT NULL,
    tables text[] NOT NULL,
    strategy text NOT NULL,
    pipelines text[] NOT NULL,
    version_from integer[] NOT NULL,
    version_to integer[] NOT NULL,
    state text NOT NULL,
    driver_epoch bigint NOT NULL,
    driver text NOT NULL,
    staging_schema text NOT NULL,
    swept boolean NOT NULL DEFAULT false,
    diff_xid text,
    actor text NOT NULL,
    reason text NOT NULL,
    error text,
    archive text,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    differences jsonb,
    PRIMARY KEY (id),
    CONSTRAINT reload_run_state_check CHECK (
        state IN ('opened', 'staging', 'staged', 'indexed', 'catching_up', 'compared', 'verified', 'cut_over',
                  'aborted', 'failed')
    ),
    CONSTRAINT reload_run_strategy_check CHECK (strategy IN ('merge', 'swap', 'verify', 'batch', 'reprocess'))
);
COMMENT ON COLUMN seekpoint.reload_run.pipelines IS 'as module:name, one per group';
COMMENT ON COLUMN seekpoint.reload_run.version_from IS 'of each group, at the opening';
COMMENT ON COLUMN seekpoint.reload_run.version_to IS 'of each group''s pipeline';
COMMENT ON COLUMN seekpoint.reload_run.driver_epoch IS 'an older driver''s next step fails';
COMMENT ON COLUMN seekpoint.reload_run.driver IS 'host and process, for people';
COMMENT ON COLUMN seekpoint.reload_run.staging_schema IS 'where the rebuilt tables are';
COMMENT ON COLUMN seekpoint.reload_run.swept IS 'nothing is left there';
COMMENT ON COLUMN seekpoint.reload_run.diff_xid IS 'oldest transaction that the prepared difference did not see';
COMMENT ON COLUMN seekpoint.reload_run.error IS 'why it failed or was aborted';
COMMENT ON COLUMN seekpoint.reload_run.archive IS 'of what the logs have no more, as the export names it';
COMMENT ON COLUMN seekpoint.reload_run.differences IS 'rows of each table, as the comparison counted them, for display';

-- The rebuild's position, which moves in the transactions that add rows to it (I1, of the staged tables).
CREATE TABLE seekpoint.reload_position (
    run uuid NOT NULL,
    consumer_group text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    topic_id uuid NOT NULL,
    first_offset bigint NOT NULL,
    end_offset bigint NOT NULL,
    next_offset bigint NOT NULL,
    epoch bigint NOT NULL,
    resets bigint NOT NULL,
    PRIMARY KEY (run, consumer_group, topic, partition),
    FOREIGN KEY (run) REFERENCES seekpoint.reload_run (id)
);
COMMENT ON COLUMN seekpoint.reload_position.first_offset IS 'where the rebuild begins';
COMMENT ON COLUMN seekpoint.reload_position.end_offset IS 'the group''s position when the run was opened';
COMMENT ON COLUMN seekpoint.reload_position.next_offset IS 'position of what is staged';
COMMENT ON COLUMN seekpoint.reload_position.epoch IS 'of the offset''s row at the opening';
COMMENT ON COLUMN seekpoint.reload_position.resets IS 'resets by operators, as known at the opening';

-- What one attempt at one range has committed, in the same transaction as the rows of its own tables.
CREATE TABLE seekpoint.reload_staged (
    run uuid NOT NULL,
    table_name text NOT NULL,
    consumer_group text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    from_offset bigint NOT NULL,
    to_offset bigint NOT NULL,
    records bigint NOT NULL,
    row_counts bigint[] NOT NULL,
    dead_letters bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run, table_name),
    FOREIGN KEY (run) REFERENCES seekpoint.reload_run (id)
);
COMMENT ON COLUMN seekpoint.reload_staged.table_name IS 'in the run''s staging schema';
COMMENT ON COLUMN seekpoint.reload_staged.row_counts IS 'of each sink''s table';

-- A file of an export exists from its row's commit on. Rows of one topic id and partition follow each other without a
-- gap, so that they can stand in for what the log has lost.
CREATE TABLE seekpoint.export_manifest (
    archive text NOT NULL,
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    from_offset bigint NOT NULL,
    to_offset bigint NOT NULL,
    records bigint NOT NULL,
    bytes bigint NOT NULL,
    file text NOT NULL,
    format text NOT NULL,
    consumer_group text NOT NULL,
    run uuid NOT NULL,
    actor text NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    sha256 text,
    PRIMARY KEY (archive, topic, topic_id, partition, from_offset),
    CONSTRAINT export_manifest_range_check CHECK (to_offset > from_offset)
);
COMMENT ON COLUMN seekpoint.export_manifest.archive IS 'where the files are: a folder, or a URL';
COMMENT ON COLUMN seekpoint.export_manifest.file IS 'below the archive';
COMMENT ON COLUMN seekpoint.export_manifest.format IS 'parquet or delta';
COMMENT ON COLUMN seekpoint.export_manifest.consumer_group IS 'whose position bounded it';
COMMENT ON COLUMN seekpoint.export_manifest.run IS 'of the export that wrote it';
COMMENT ON COLUMN seekpoint.export_manifest.sha256 IS 'of the file''s bytes, in hexadecimal digits';

-- Noted before an export writes its first file, whose name has the id: files of other ids are other databases'.
CREATE TABLE seekpoint.export_run (
    id uuid NOT NULL,
    archive text NOT NULL,
    consumer_group text NOT NULL,
    actor text NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id)
);
COMMENT ON COLUMN seekpoint.export_run.archive IS 'where its files are: a folder, or a URL';
COMMENT ON COLUMN seekpoint.export_run.consumer_group IS 'whose position bounded it';

-- The records that a reprocess could not apply, whole.
CREATE TABLE seekpoint.reprocess_dead_letter (
    run uuid NOT NULL,
    record_offset bigint NOT NULL,
    leader_epoch integer,
    timestamp_ms bigint,
    key bytea,
    value bytea,
    header_names bytea[] NOT NULL,
    header_values bytea[] NOT NULL,
    state text NOT NULL,
    cause text NOT NULL,
    error text NOT NULL,
    traceback text,
    sqlstate text,
    dead_lettered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run, record_offset),
    FOREIGN KEY (run) REFERENCES seekpoint.reload_run (id)
);

-- Dead letters that a running worker of the group is to replay. One worker takes the request, and commits that before
-- it applies a record: a request whose worker has crashed is not run again by itself.
CREATE TABLE seekpoint.replay_request (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    consumer_group text NOT NULL,
    version integer NOT NULL,
    dead_letters bigint[] NOT NULL,
    state text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    worker uuid,
    replayed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    refused bigint NOT NULL DEFAULT 0,
    error text,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    seen_at timestamptz,
    ended_at timestamptz,
    remaining bigint[],
    refusals text[],
    PRIMARY KEY (id),
    FOREIGN KEY (consumer_group) REFERENCES seekpoint.consumer_group (name),
    CONSTRAINT replay_request_state_check CHECK (state IN ('requested', 'started', 'done', 'failed'))
);
CREATE INDEX replay_request_consumer_group_id_idx ON seekpoint.replay_request (consumer_group, id);
COMMENT ON COLUMN seekpoint.replay_request.version IS 'handler version that is to replay them';
COMMENT ON COLUMN seekpoint.replay_request.dead_letters IS 'ids';
COMMENT ON COLUMN seekpoint.replay_request.worker IS 'process that has started it';
COMMENT ON COLUMN seekpoint.replay_request.replayed IS 'were applied';
COMMENT ON COLUMN seekpoint.replay_request.failed IS 'failed again';
COMMENT ON COLUMN seekpoint.replay_request.error IS 'why the request failed';
COMMENT ON COLUMN seekpoint.replay_request.seen_at IS 'when its worker last said so';
COMMENT ON COLUMN seekpoint.replay_request.remaining IS 'ids that are left, where a worker has handed it back';
COMMENT ON COLUMN seekpoint.replay_request.refusals IS 'why the first ones were refused';

-- For display, as the two below: no decision uses them. A worker inside a long handler is not seen, and works.
CREATE TABLE seekpoint.worker (
    owner uuid NOT NULL,
    consumer_group text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    client_id text,
    version integer NOT NULL,
    library text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    state text NOT NULL,
    trouble text,
    PRIMARY KEY (owner)
);
COMMENT ON COLUMN seekpoint.worker.owner IS 'as in partition_offset';
COMMENT ON COLUMN seekpoint.worker.client_id IS 'of its Kafka client; NULL: the client''s default';
COMMENT ON COLUMN seekpoint.worker.version IS 'handler version';
COMMENT ON COLUMN seekpoint.worker.library IS 'version of Seekpoint';
COMMENT ON COLUMN seekpoint.worker.state IS 'running, paused, trouble or ended';
COMMENT ON COLUMN seekpoint.worker.trouble IS 'what is wrong, why it waits, or the error that ended it';

-- Where a position and its log were: each minute for a day, each hour for a month.
CREATE TABLE seekpoint.position_sample (
    consumer_group text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    topic_id uuid NOT NULL,
    next_offset bigint NOT NULL,
    log_start bigint NOT NULL,
    log_end bigint NOT NULL,
    PRIMARY KEY (consumer_group, topic, partition, at)
);
COMMENT ON COLUMN seekpoint.position_sample.topic_id IS 'whose log it is';
COMMENT ON COLUMN seekpoint.position_sample.next_offset IS 'the stored position';
COMMENT ON COLUMN seekpoint.position_sample.log_start IS 'first offset that is still in the log';
COMMENT ON COLUMN seekpoint.position_sample.log_end IS 'after the last record that can be read';

-- The newest sample of a partition, as long as it is not older than three minutes, says where its log begins and ends.
-- A sample of an earlier life of the topic is of another log: that is compared after LIMIT, so that the planner reads
-- the index backwards. The age of the next record is interpolated between the two samples around the time when the
-- log's end was the position; before the first sample, the last applied record's age is known. The log's start is
-- extrapolated over at most a day. The last columns are for the exporter, which asks brokers where the log begins and
-- ends now: they are there, too, where the last sample is old, since the worker is dead.
-- A partition as people and operators see it: its position, and its trouble, if it has any.
CREATE VIEW seekpoint.partition_state AS
SELECT o.consumer_group, o.topic, o.partition, o.topic_id, o.first_offset, o.next_offset, o.leader_epoch, o.token,
       o.epoch, o.owner, o.claimed_at, o.committed_at, o.record_time,
       coalesce(t.unreleased_claims, 0) AS unreleased_claims, t.attempt_offset, coalesce(t.attempts, 0) AS attempts,
       coalesce(t.attempt_crashes, 0) AS attempt_crashes, coalesce(t.attempt_running, false) AS attempt_running,
       t.attempt_error, t.retry_at, t.attempts_allowed, t.attempt_policy, t.suspect_end, t.suspect_part_end,
       coalesce(t.suspect_running, false) AS suspect_running, t.stop_kind, t.stop_offset, t.stop_message,
       t.stop_choices, t.stopped_at, t.stop_log_end
FROM seekpoint.partition_offset o
LEFT JOIN seekpoint.partition_trouble t
       ON t.consumer_group = o.consumer_group AND t.topic = o.topic AND t.partition = o.partition;

CREATE VIEW seekpoint.lag AS
SELECT o.consumer_group, o.topic, o.partition, o.next_offset, o.committed_at, o.record_time, o.owner,
       w.host, w.pid, o.stop_kind, o.stop_offset, o.stopped_at, coalesce(d.dead_letters, 0) AS dead_letters,
       coalesce(d.blocked, 0) AS blocked, coalesce(d.waiting, 0) AS waiting,
       extract(epoch FROM statement_timestamp() - r.since)::float8 AS oldest_waiting_seconds,
       CASE WHEN r.due < statement_timestamp() THEN extract(epoch FROM statement_timestamp() - r.due)::float8
            END AS overdue_seconds,
       coalesce(r.postponed, 0) AS postponed,
       s.at AS sampled_at, statement_timestamp() - s.at AS sample_age, s.log_start, s.log_end,
       fresh.lag AS lag_records,
       CASE WHEN fresh.lag = 0 THEN 0
            WHEN fresh.lag > 0 AND came.at IS NOT NULL
                THEN extract(epoch FROM statement_timestamp() - came.at)::float8
            WHEN fresh.lag > 0 AND o.record_time IS NOT NULL  -- greatest() leaves NULL out
                THEN greatest(extract(epoch FROM statement_timestamp() - o.record_time)::float8, 0)
       END AS lag_seconds,
       fresh.headroom AS headroom_records,
       CASE WHEN fresh.headroom IS NOT NULL AND s.log_start > past.log_start THEN greatest(fresh.headroom, 0)
            / ((s.log_start - past.log_start) / extract(epoch FROM s.at - past.at)::float8) END AS headroom_seconds,
       (w.state <> 'ended' AND w.seen_at > statement_timestamp() - interval '1 minute') IS TRUE AS owned,
       came.at AS next_record_at, before.at AS reached_at, before.log_end AS reached_end,
       coalesce(past.at, s.at) AS log_start_since, coalesce(past.log_start, s.log_start) AS past_log_start
FROM seekpoint.partition_state o
LEFT JOIN seekpoint.worker w ON w.owner = o.owner
LEFT JOIN (
    SELECT consumer_group, topic, partition, count(*) FILTER (WHERE state <> 'waiting') AS dead_letters,
           count(*) FILTER (WHERE state = 'blocked') AS blocked, count(*) FILTER (WHERE state = 'waiting') AS waiting
    FROM seekpoint.dead_letter
    WHERE state IN ('dead_lettered', 'blocked', 'waiting') GROUP BY consumer_group, topic, partition
) d ON d.consumer_group = o.consumer_group AND d.topic = o.topic AND d.partition = o.partition
LEFT JOIN (
    SELECT consumer_group, topic, partition, min(dead_lettered_at) AS since,
           -- A record that waits for another one of its key is due from the beginning.
           coalesce(min(retry_at) FILTER (WHERE cause <> 'blocked'), min(retry_at)) AS due,
           count(*) FILTER (WHERE replay_error IS NOT NULL AND replayed_at IS NULL) AS postponed
    FROM seekpoint.dead_letter
    WHERE state = 'waiting' GROUP BY consumer_group, topic, partition
) r ON r.consumer_group = o.consumer_group AND r.topic = o.topic AND r.partition = o.partition
LEFT JOIN LATERAL (
    SELECT p.at, p.topic_id, p.next_offset, p.log_start, p.log_end FROM seekpoint.position_sample p
    WHERE p.consumer_group = o.consumer_group AND p.topic = o.topic AND p.partition = o.partition
    ORDER BY p.at DESC LIMIT 1
) s ON s.topic_id = o.topic_id
LEFT JOIN LATERAL (
    SELECT CASE WHEN s.next_offset <= s.log_end THEN greatest(s.log_end - o.next_offset, 0) END AS lag,
           o.next_offset - s.log_start AS headroom
    WHERE s.at > statement_timestamp() - interval '3 minutes'
) fresh ON true
LEFT JOIN LATERAL (
    SELECT p.at, p.topic_id, p.log_end FROM seekpoint.position_sample p
    WHERE p.consumer_group = o.consumer_group AND p.topic = o.topic AND p.partition = o.partition
          AND p.log_end <= o.next_offset
    ORDER BY p.at DESC LIMIT 1
) before ON before.topic_id = o.topic_id
LEFT JOIN LATERAL (
    SELECT p.at, p.log_end FROM seekpoint.position_sample p
    WHERE p.consumer_group = o.consumer_group AND p.topic = o.topic AND p.partition = o.partition
          AND p.at > before.at AND p.log_end > o.next_offset
    ORDER BY p.at LIMIT 1
) after ON true
LEFT JOIN LATERAL (
    SELECT before.at + (after.at - before.at)
           * ((o.next_offset - before.log_end)::float8 / (after.log_end - before.log_end)) AS at
) came ON true
LEFT JOIN LATERAL (
    SELECT p.at, p.topic_id, p.log_start FROM seekpoint.position_sample p
    WHERE p.consumer_group = o.consumer_group AND p.topic = o.topic AND p.partition = o.partition
          AND p.at > statement_timestamp() - interval '1 day' AND p.at < s.at
    ORDER BY p.at LIMIT 1
) past ON past.topic_id = o.topic_id;

-- What is not known of one partition is not known of the group: a sum over the others would look healthy.
-- Forgotten groups are left out.
CREATE VIEW seekpoint.group_status AS
SELECT g.name AS consumer_group, g.version, g.paused, g.paused_by, g.paused_reason,
       count(l.topic) AS partitions, count(l.owner) AS owned, count(l.stop_kind) AS stopped,
       count(l.topic) - count(l.lag_records) AS unknown_lag,
       CASE WHEN count(l.lag_records) = count(l.topic) THEN sum(l.lag_records)::bigint END AS lag_records,
       CASE WHEN count(l.lag_seconds) = count(l.topic) THEN max(l.lag_seconds) END AS lag_seconds,
       min(l.headroom_records) AS headroom_records, min(l.headroom_seconds) AS headroom_seconds,
       max(l.sample_age) AS sample_age, coalesce(sum(l.dead_letters), 0)::bigint AS dead_letters,
       coalesce(sum(l.blocked), 0)::bigint AS blocked, coalesce(sum(l.waiting), 0)::bigint AS waiting,
       max(l.oldest_waiting_seconds) AS oldest_waiting_seconds, max(l.committed_at) AS committed_at,
       coalesce(max(seen.workers), 0) AS workers
FROM seekpoint.consumer_group g LEFT JOIN seekpoint.lag l ON l.consumer_group = g.name
LEFT JOIN (
    SELECT w.consumer_group, count(*) AS workers FROM seekpoint.worker w
    WHERE w.state <> 'ended' AND w.seen_at > statement_timestamp() - interval '1 minute' GROUP BY w.consumer_group
) seen ON seen.consumer_group = g.name
WHERE g.forgotten IS NULL
GROUP BY g.name;
