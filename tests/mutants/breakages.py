"""The breakages: each takes away one line that the promise hangs on, and names the tests that must notice."""

from __future__ import annotations

from typing import NamedTuple

SECURED = "tests/postgres/test_row_security.py"
FENCE = "tests/postgres/ledger/test_fence.py"
CLAIM = "tests/postgres/ledger/test_claim.py"
ATTEMPTS = "tests/postgres/ledger/test_attempts.py"
LETTERS = "tests/postgres/test_dead_letter_store.py"
ROADS = "tests/postgres/test_write_strategies_agree.py"
VIEW = f"{ROADS}::test_a_view_is_refused_however_few_the_rows[1]"
GROUP = "tests/postgres/ledger/test_group.py"
DECLARATION = "tests/postgres/ledger/test_declaration.py"
RESET = "tests/postgres/ledger/test_reset.py"
MIRROR = "tests/kafka/test_mirror.py"
OFFSETS = "tests/kafka/test_cli_offsets.py"
FORGET = "tests/postgres/ledger/test_forget.py"
PURGE = "tests/postgres/test_purge.py"
WORKER = "tests/kafka/test_worker.py"
SMALL = "tests/postgres/test_small_batches.py"
SMALL_WORKER = "tests/kafka/test_small_batches.py"
UNIT_OF_WORK = "tests/postgres/test_unit_of_work.py"
LENT = "tests/postgres/test_handler_sessions.py"
UPSERT = "tests/postgres/test_upsert.py"
INTERLEAVINGS = "tests/kafka/test_interleavings.py"
KAFKA = "tests/kafka/test_kafka_faults.py"
TOPIC_IDS = "tests/kafka/test_topic_ids.py"
AHEAD = "tests/kafka/test_read_ahead.py"
READER = "tests/unit/test_reader.py"
HELD = "tests/kafka/test_held_partitions.py"
REBALANCE = "tests/kafka/test_rebalance.py"
LOST = "tests/kafka/test_lost_commits.py"
BATCH = "tests/unit/test_open_batch.py"
ERRORS = "tests/kafka/test_errors_of_one_record.py"
DOWNGRADE = "tests/migrations/test_downgrade.py"
LIFECYCLE = "tests/kafka/test_lifecycle.py"
GENERATIONS = "tests/jobs/reload/test_generations.py"
IMAGES = "tests/jobs/reload/test_images.py"
BOUNDS = "tests/jobs/reload/test_bounds.py"
COMPACTION = "tests/jobs/reload/test_compaction.py"
MERGE = "tests/jobs/reload/test_merge.py"
MOVED = "tests/jobs/reload/test_moved_tables.py"
SUPERVISOR = "tests/unit/test_supervisor.py"
DROPPED = f"{INTERLEAVINGS}::test_a_dropped_chunk_is_a_refusal_and_not_a_gap"
RECREATED = f"{KAFKA}::test_i4_a_topic_recreated_while_a_batch_is_applied_rolls_it_back"


class Edit(NamedTuple):
    """Replace ``old`` by ``new`` in a file of the package; it must be there exactly ``times`` times."""

    file: str
    old: str
    new: str
    times: int = 1


class Breakage(NamedTuple):
    """What is taken away, and who must notice. Most lose or double rows; some only stop progress."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def breakage(name: str, file: str, old: str, new: str, *tests: str, times: int = 1) -> Breakage:
    """One edit, and the tests that must notice."""
    return Breakage(name, (Edit(file, old, new, times),), tests)


_STATEMENTS = "ledger/sql/partition_offset.py"
_REPLAYS = "tests/postgres/test_requested_replays.py"
_REQUESTS = "tests/kafka/test_replay_requests.py"
_ADMINISTRATION = "ledger/sql/admin.py"
_TOKEN = (
    Edit(_STATEMENTS, "    offset.token == HELD.c.token,  # I2: only the holder of the current claim\n", ""),
    Edit(_STATEMENTS, "            offset.token == moving.c.token,  # I2\n", ""),
)
_POSITION = (
    Edit(
        _STATEMENTS,
        "    offset.next_offset == HELD.c.from_offset,  # I3: only from the exact position that was read\n",
        "",
    ),
    Edit(_STATEMENTS, "            offset.next_offset == moving.c.from_offset,  # I3\n", ""),
)
_COUNTER = 'func.lpad(func.to_hex(offset.epoch + 1), 32, "0").cast(Uuid)'
_NO_LOOK_BEFORE_COMMIT = Edit(
    "worker/unit_of_work.py",
    "        if mismatches := self._owner.topic_id_mismatches(identity, list(result.reads)):",
    "        if mismatches := {}:",
)

UNKNOWN = f"{KAFKA}::test_i4_nothing_of_a_topic_that_was_deleted_after_the_last_read_commits"

SETTINGS = "tests/postgres/test_session_settings.py"

BREAKAGES = (
    breakage(
        "a NULL in an array is stored as a text",
        "postgres/pooler.py",
        '    if array_nulls == "off":\n',
        "    if False:\n",
        f"{SETTINGS}::test_refused[nulls]",
    ),
    breakage(
        "half of a character is read as a backslash",
        "postgres/engine.py",
        "    elif encoding in _CLIENT_ONLY:\n",
        "    elif False:\n",
        f"{SETTINGS}::test_refused[gbk]",
    ),
    breakage(
        "the client's handle is read in any build",
        "kafka/librdkafka.py",
        "object.__basicsize__ == _HEAD and this_build() in KNOWN",
        "True",
        f"{TOPIC_IDS}::test_no_pointer_is_read_in_an_unknown_build",
    ),
    breakage(
        "a request for topic ids keeps its queue",
        "kafka/librdkafka.py",
        "            self._library.queue_destroy(self._queue)\n",
        "            pass\n",
        f"{TOPIC_IDS}::test_memory_does_not_grow_with_questions",
    ),
    breakage(
        "a queue of a request for topic ids is destroyed twice",
        "kafka/librdkafka.py",
        "        client, self._client = self._client, None\n",
        "        client = self._client\n",
        f"{TOPIC_IDS}::test_a_queue_is_destroyed_once_though_a_signal_handler_raises",
    ),
    breakage(
        "the handle of a closed client is used",
        "kafka/librdkafka.py",
        "        if (pointer := _pointer(self._client)) is None:\n",
        "        if (pointer := _pointer(self._client)) is False:\n",
        f"{TOPIC_IDS}::test_a_client_that_is_closed_while_a_question_is_open",
    ),
    breakage(
        "a request for other topics is the one that was sent last",
        "kafka/librdkafka.py",
        "        if request is None or request.asked != asked:\n",
        "        if request is None:\n",
        f"{TOPIC_IDS}::test_questions_for_other_topics_alternate",
    ),
    breakage(
        "a request for topic ids is not freed",
        "kafka/librdkafka.py",
        "            destroy(pointer)\n",
        "            pass\n",
        f"{TOPIC_IDS}::test_memory_does_not_grow_with_questions",
    ),
    breakage(
        "the queue of a closed client is polled",
        "kafka/librdkafka.py",
        "            if _pointer(self._client) is None:\n",
        "            if self._client is None:\n",
        f"{TOPIC_IDS}::test_a_client_that_is_closed_while_a_question_is_open",
    ),
    breakage(
        "a client ends before its requests for topic ids",
        "kafka/librdkafka.py",
        "        return TopicIds(library, self._client, queue)\n",
        "        return TopicIds(library, object(), queue)\n",
        f"{TOPIC_IDS}::test_an_open_question_keeps_its_client",
    ),
    breakage(
        "a request for topic ids has librdkafka's own timeout",
        "kafka/librdkafka.py",
        "        if library.set_timeout(self.options, int(timeout * 1000), refused, len(refused)):\n",
        "        if refused.value:\n",
        f"{TOPIC_IDS}::test_both_ways_raise_the_same_errors",
    ),
    breakage(
        "a timeout that librdkafka refuses is ignored",
        "kafka/librdkafka.py",
        "            raise ValueError(refused.value.decode())",
        "            pass",
        f"{TOPIC_IDS}::test_what_was_not_made_whole_ends_without_an_error",
    ),
    breakage(
        "a topic id is awaited in one call into librdkafka",
        "kafka/librdkafka.py",
        "int(min(left, _SLICE) * 1000)",
        "int(left * 1000)",
        f"{TOPIC_IDS}::test_a_signal_is_handled_while_an_answer_is_awaited",
    ),
    breakage(
        "a batch that ends without a commit makes an idle worker stale",
        "worker/loop.py",
        "                self._batch_ended()\n",
        "                pass\n",
        f"{KAFKA}::test_i4_nothing_of_a_topic_that_was_deleted_after_the_last_read_commits",
    ),
    breakage(
        "the end of a batch leaves the health board as it is",
        "worker/health.py",
        "        if not self._in_hand:",
        "        if self._in_hand:",
        "tests/unit/test_health.py::test_a_batch_that_ends_without_a_commit_leaves_no_idle_worker_stale",
    ),
    breakage(
        "a downgrade drops offsets",
        "schema.py",
        "    IF kept IS NOT NULL THEN\n",
        "    IF false THEN\n",
        f"{DOWNGRADE}::test_offsets_are_not_dropped_without_permission[seekpoint]",
    ),
    breakage(
        "a downgrade counts offsets without a lock",
        "schema.py",
        "    LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE;\n",
        "",
        f"{DOWNGRADE}::test_offsets_that_a_claim_is_about_to_store_are_not_dropped_without_permission",
    ),
    breakage(
        "a worker that was given up releases its claims",
        "worker/loop.py",
        "            self._assignment.client.close(LEAVE)\n            return\n        try:\n",
        "            self._assignment.client.close(LEAVE)\n        try:\n",
        f"{LIFECYCLE}::test_i2_a_worker_that_was_given_up_releases_no_claim_later",
    ),
    breakage(
        "a client that was made after its worker was given up stays open",
        "worker/loop.py",
        "            self._assignment.client.close(LEAVE)\n            return\n",
        "            return\n",
        f"{LIFECYCLE}::test_a_worker_given_up_before_it_joins_leaves_no_member",
    ),
    breakage(
        "a stop is stored under whichever claim",
        _STATEMENTS,
        '        offset.token == bindparam("its_token", type_=Uuid),\n',
        "",
        "tests/postgres/ledger/test_stop.py::test_a_stop_under_another_claim_is_not_stored[claim]",
    ),
    breakage(
        "what was not read of a recreated topic is no row",
        "ledger/admin_actions.py",
        "    if adopted is not None:  #",
        "    if False:  #",
        f"{RESET}::test_what_was_not_read_of_a_recreated_topic_is_a_row[0]",
    ),
    breakage(
        "what a truncation took is no row",
        "ledger/admin_actions.py",
        "    if truncated is not None:  # its offsets",
        "    if False:  # its offsets",
        f"{RESET}::test_what_a_truncation_took_is_a_row[3]",
    ),
    breakage(
        "where a truncated log ended is forgotten when it has grown",
        "ledger/admin_actions.py",
        "    ends = [known, None if log is None else log[1], row.stop_log_end]",
        "    ends = [known, None if log is None else log[1]]",
        f"{RESET}::test_what_was_truncated_is_a_row_where_the_log_has_grown_since[5-None-log0]",
    ),
    breakage(
        "a rewritten log is passed without a row",
        "ledger/admin_actions.py",
        "    if truncated is None and to >= at and is_rewritten(stored, log):",
        "    if False:",
        f"{RESET}::test_a_rewritten_log_is_not_passed_where_it_is_not_known_from_where_on",
    ),
    breakage(
        "a stop in a longer log replaces where the truncated one ended",
        _STATEMENTS,
        '        stop_log_end=func.least(bindparam("log_end", type_=BigInteger), offset.stop_log_end),',
        '        stop_log_end=bindparam("log_end", type_=BigInteger),',
        "tests/postgres/ledger/test_stop.py::test_where_a_truncated_log_ended_is_known_until_it_is_decided[claim]",
    ),
    breakage(
        "accept continues at the position in a log that has grown again",
        "admin/losses.py",
        "    ends = (end, None if at.stop is None else at.stop.log_end)",
        "    ends = (end,)",
        "tests/kafka/test_losses.py::test_i4_a_truncated_log_that_has_grown_again_continues_where_it_ended",
    ),
    breakage(
        "an unknown topic taken for the one that was claimed",
        "worker/assignment/claiming.py",
        "        if at is None or topic_id == at.claim.topic_id:",
        "        if at is None or topic_id in {None, at.claim.topic_id}:",
        UNKNOWN,
    ),
    breakage(
        "an unknown topic's part of the batch is passed",
        "worker/assignment/claiming.py",
        "            found[partition] = None",
        "            pass",
        f"{KAFKA}::test_i4_while_a_topic_is_unknown_only_the_others_commit",
    ),
    breakage(
        "an attempt that an error of the program has ended stays on record as running",
        "worker/unit_of_work.py",
        "            notes.append((result.reads[partition].claim, attempt))\n",
        "            if number:\n                notes.append((result.reads[partition].claim, attempt))\n",
        f"{ERRORS}::test_kills_of_a_worker_that_has_stopped_in_front_of_a_record_are_not_its_records[fail 1]",
    ),
    breakage(
        "a suspicion outlives the error of the program that its record met alone",
        "worker/unit_of_work.py",
        "            if failure.cause in {Cause.CRASHED, Cause.PROGRAM}:  #",
        "            if failure.cause is Cause.CRASHED:  #",
        f"{ERRORS}::test_kills_of_a_worker_that_has_stopped_in_front_of_a_record_are_not_its_records[bad]",
    ),
    breakage(
        "a COMMIT that is answered with ROLLBACK taken for one",
        "postgres/session_state.py",
        '    if ending.statusmessage not in {None, "COMMIT"}:\n',
        "    if False:\n",
        f"{LENT}::test_i1_a_commit_that_is_answered_with_rollback_is_an_error",
    ),
    Breakage(
        "another call's last argument taken for set_config's",
        (
            Edit("postgres/sent_statements.py", '            case "," if depth == 1:\n', '            case ",":\n'),
            Edit("postgres/sent_statements.py", "        if depth == 0:\n", '        if token[0] == ")":\n'),
        ),
        (f"{LENT}::test_no_call_finds_a_setting_of_the_one_before[app.n]",),
    ),
    Breakage(
        "no claim token check",
        _TOKEN,
        (f"{FENCE}::test_a_zombie_is_refused_at_hold", f"{FENCE}::test_a_zombie_is_refused_at_advance"),
    ),
    breakage(
        "statements prepared behind a pooler",
        "postgres/pooler.py",
        "    driver.prepare_threshold = None\n    connection.info[_KEY] = pooler\n",
        "    connection.info[_KEY] = pooler\n",
        "tests/kafka/test_poolers.py::test_upsert[own-unnest]",
    ),
    breakage(
        "COPY into a table with row security",
        "sinks/small_append.py",
        "by_insert=recalled(tx, path).is_secured",
        "by_insert=False",
        f"{SECURED}::test_a_row_refused_by_a_policy_is_poison[Append-200]",
    ),
    breakage(
        "a row that a policy refuses taken for a missing right",
        "postgres/sqlstates.py",
        "        return Fault.DATA\n    return fault(code)",
        "        pass\n    return fault(code)",
        f"{SECURED}::test_a_row_refused_by_a_policy_is_poison[Append-200]",
    ),
    Breakage(
        "counter instead of token",
        (
            Edit(
                _STATEMENTS,
                '        "token": _claim.excluded.token,\n',
                '        "token": func.lpad(func.to_hex(offset.epoch + 1), 32, "0").cast(Uuid),\n',
            ),
            Edit(_ADMINISTRATION, '        token=bindparam("to_token", type_=Uuid),\n', f"        token={_COUNTER},\n"),
        ),
        ("tests/postgres/ledger/test_failover.py",),
    ),
    Breakage(
        "no position check",
        _POSITION,
        (f"{FENCE}::test_another_position_is_refused",),
    ),
    Breakage(
        "from is the last commit",
        (
            Edit(
                "worker/assignment/partitions.py",
                "Read(placed.claim, placed.read_position, placed.read_position)",
                "Read(placed.claim, placed.claim.next_offset, placed.read_position)",
            ),
            Edit(
                "worker/assignment/worker_assignment.py",
                "Expected(active[p].claim, starts.get(p, active[p].position))",
                "Expected(active[p].claim, active[p].claim.next_offset)",
            ),
        ),
        (DROPPED,),
    ),
    Breakage(
        "no topic id check",
        (
            _NO_LOOK_BEFORE_COMMIT,
            Edit(_STATEMENTS, "    where=offset.topic_id == _claim.excluded.topic_id,\n", ""),
            Edit(
                "worker/assignment/claiming.py",
                "        if at is None or topic_id == at.claim.topic_id:",
                "        if True:",
            ),
        ),
        (f"{GROUP}::test_a_recreated_topic_stops_its_partitions_alone", RECREATED),
    ),
    Breakage(
        "topic id looked at in the claim only",
        (_NO_LOOK_BEFORE_COMMIT,),
        (RECREATED,),
    ),
    Breakage(
        "advance in another transaction",
        (
            Edit(
                "worker/unit_of_work.py",
                "                moved = self._ledger.advance(tx, result.moves, held) if result.moves else []\n",
                "                moved = []\n",
            ),
            Edit(
                "worker/unit_of_work.py",
                "        self._owner.accept(moved)\n",
                "        moved = moved or self._ledger.advance_alone(result.moves)\n"
                "        self._owner.accept(moved)\n",
            ),
        ),
        (f"{LOST}::test_the_connection_is_cut_at_each_statement",),
    ),
    breakage(
        "claims taken over before COMMIT",
        "worker/unit_of_work.py",
        "            self._announce(events.Advanced(spans=result.spans))\n        self._owner.accept(moved)\n",
        "            self._owner.accept(moved)\n            self._announce(events.Advanced(spans=result.spans))\n",
        f"{LOST}::test_a_commit_that_never_arrives_however_often_it_is_tried",
    ),
    breakage(
        "the lost claim of a revoked partition is forgotten",
        "worker/assignment/partitions.py",
        "            self._unreleased.append(waiting.known)\n\n",
        "            pass\n\n",
        "tests/unit/test_reconcile.py::test_a_lost_claim_of_a_revoked_partition_is_released",
    ),
    breakage(
        "a revoked partition is read again after a refusal",
        "worker/assignment/reconcile.py",
        " or partition in self._partitions.revoked:",
        ":",
        "tests/unit/test_reconcile.py::test_a_revoked_partition_is_not_read_again",
    ),
    breakage(
        "a revoked partition that was rolled back is held, and refused, without end",
        "worker/assignment/reconcile.py",
        "        if row.attempt_offset is not None or partition in self._partitions.revoked:\n",
        "        if row.attempt_offset is None and partition in self._partitions.revoked:\n"
        "            return None\n"
        "        if row.attempt_offset is not None:\n",
        "tests/unit/test_reconcile.py::test_a_revoked_partition_that_was_rolled_back_is_not_held_again",
        "tests/kafka/test_failover.py::test_a_failover_while_a_partition_is_revoked_ends_its_part_of_the_batch",
    ),
    breakage(
        "a move under a replaced claim is taken over",
        "worker/assignment/worker_assignment.py",
        " and at.claim.token == claim.token:",
        ":",
        "tests/unit/test_reconcile.py::test_a_claim_that_was_replaced_before_accept_is_not_taken_over",
    ),
    breakage(
        "an open batch is filled after a revocation",
        "worker/loop.py",
        "has_ended = self._assignment.has_revoked or self._stopping",
        "has_ended = self._stopping",
        f"{REBALANCE}::test_an_open_batch_reads_nothing_more_after_a_revocation",
    ),
    breakage(
        "a chunk of a partition that is not held enters the transaction",
        "worker/assignment/worker_assignment.py",
        "        if chunk.reads.keys() <= held:\n",
        "        if chunk.reads:\n",
        f"{HELD}::test_a_chunk_of_another_partition_closes_the_batch_and_begins_the_next",
    ),
    breakage(
        "a kept chunk is lost",
        "worker/assignment/partitions.py",
        "self.kept.put_back(part(chunk, kept))",
        "self.kept.put_back(part(chunk, {}))",
        f"{HELD}::test_a_chunk_of_another_partition_closes_the_batch_and_begins_the_next",
    ),
    breakage(
        "a kept chunk outlives its claim",
        "worker/assignment/partitions.py",
        "            self.kept.take_all(partitions)\n",
        "            pass\n",
        "tests/unit/test_assigned_partitions.py::test_what_was_kept_is_dropped_with_its_claim",
    ),
    breakage(
        "a kept chunk of a revoked partition is applied",
        "worker/assignment/partitions.py",
        " if p not in self.revoked}\n        for partition, read in reads.items():",
        "}\n        for partition, read in reads.items():",
        "tests/unit/test_assigned_partitions.py::test_what_was_kept_is_dropped_with_its_claim",
    ),
    breakage(
        "records that were read ahead are applied before the one that is tried again",
        "worker/assignment/partitions.py",
        "        placed.kept_from = None\n",
        "",
        "tests/unit/test_assigned_partitions.py::test_what_was_kept_waits_after_a_record_that_is_tried_again",
    ),
    breakage(
        "the rest of what was read ahead is not expected by hold",
        "worker/assignment/partitions.py",
        "kept_from = read.end if self.kept.has(partition) else None",
        "kept_from = None",
        "tests/unit/test_assigned_partitions.py::"
        "test_what_was_kept_of_a_partition_is_taken_in_order_and_the_position_is_that_of_the_rest",
    ),
    breakage(
        "a kept part loses what is unreadable",
        "worker/assignment/kept.py",
        "return Chunk(records, dict(reads), unreadable)",
        "return Chunk(records, dict(reads))",
        "tests/unit/test_assigned_partitions.py::test_a_part_that_is_kept_keeps_what_is_unreadable",
    ),
    breakage(
        "records that move into a backlog leave no leader epoch",
        "worker/assignment/partitions.py",
        "            placed.leader_epoch = record.leader_epoch\n        placed.kept_from = None",
        "        placed.kept_from = None",
        "tests/unit/test_assigned_partitions.py::test_what_was_kept_waits_after_a_record_that_is_tried_again",
    ),
    breakage(
        "an error of reading ahead is swallowed",
        "worker/reader.py",
        "            self._failed = error\n",
        "",
        f"{AHEAD}::test_an_error_of_the_client_is_met_by_the_next_read",
    ),
    breakage(
        "more is read ahead than a batch may have",
        "worker/reader.py",
        "kept.records + CHUNK <= limits.batch_records",
        "kept.records >= 0",
        f"{AHEAD}::test_chunks_of_the_next_batch_are_read_while_one_waits_and_are_bounded_as_a_batch_is",
    ),
    breakage(
        "the bytes of a part of a chunk that waits are not counted",
        "worker/assignment/kept.py",
        "        size = size_of(chunk.messages)\n",
        '        size = getattr(chunk.messages, "size", 0)\n',
        "tests/unit/test_assigned_partitions.py::test_what_was_kept_counts_with_its_bytes",
        f"{READER}::test_what_another_batch_left_counts_towards_the_bytes_that_may_be_read_ahead",
    ),
    breakage(
        "records are read ahead while a handler runs",
        "worker/loop.py",
        " if pipeline.handle is None else None",
        "",
        f"{AHEAD}::test_nothing_is_read_ahead_while_a_handler_runs",
    ),
    breakage(
        "one that drains in a roll gets a second signal when all drain",
        "cli/supervisor.py",
        "if child not in self._leaving:",
        "if True:",
        "tests/unit/test_supervisor.py::test_one_that_drains_in_a_roll_is_not_aborted_when_all_drain",
    ),
    breakage(
        "kept records are forgotten where the position of their partition is asked for",
        "worker/assignment/partitions.py",
        "        if self.kept_from is not None:\n            return self.kept_from\n",
        "",
        f"{HELD}::test_a_kept_chunk_survives_an_unknown_commit",
    ),
    breakage(
        "partitions that moved lately are not held",
        "worker/assignment/held.py",
        "set(first).union(*self._moved)",
        "set(first)",
        f"{HELD}::test_partitions_that_moved_lately_are_held_too",
    ),
    breakage(
        "a handler ends the transaction by its driver's connection",
        "postgres/connection.py",
        'partial(misuse, "commit()"), close',
        "partial(type(driver).commit, driver), close",
        f"{UNIT_OF_WORK}::test_ending_the_transaction_is_refused",
    ),
    breakage(
        "a handler's session outlives its transaction",
        "postgres/session.py",
        "        if self.changed:\n            self.close(broken=True)\n",
        "",
        f"{LENT}::test_a_change_of_the_session_ends_with_its_transaction",
    ),
    breakage(
        "a handler's options outlive its call",
        "postgres/connection.py",
        "            self._execution_options = self._options\n",
        "            pass\n",
        f"{LENT}::test_options_of_one_call_are_gone_in_the_next",
    ),
    breakage(
        "a handler's search_path outlives its part",
        "postgres/connection.py",
        'again = self._path_and_role if self.is_lent else ""',
        'again = ""',
        f"{LENT}::test_the_next_part_of_a_batch_finds_its_tables",
    ),
    breakage(
        "a lent connection returns to the pool",
        "postgres/connection.py",
        "        if self.was_lent:\n            self.drop()\n",
        "        if False:\n            pass\n",
        f"{LENT}::test_a_lent_connection_never_returns_to_the_hosts_pool",
    ),
    breakage(
        "work that a handler returns is thrown away",
        "worker/apply.py",
        "    if returned is not None and not isinstance(returned, StatementResult):\n",
        "    if inspect.iscoroutine(returned):\n",
        "tests/postgres/test_apply.py::test_what_a_handler_returns_is_not_thrown_away_in_silence",
    ),
    Breakage(
        "blind retry after an unknown COMMIT",
        (
            Edit(
                "worker/unit_of_work.py",
                "                    batch.drop(self._owner.reconcile(batch.buffer.starts))\n",
                "                    pass\n",
            ),
            Edit(
                "worker/unit_of_work.py",
                "                held, dead_keys = self._hold(tx, expected)\n",
                "                held, dead_keys = self._hold(tx, expected) if mode.attempt == 1 else (None, None)\n",
            ),
            Edit(
                "worker/unit_of_work.py",
                "                moved = self._ledger.advance(tx, result.moves, held) if result.moves else []\n",
                "                moved = [] if mode.attempt > 1 else self._ledger.advance(tx, result.moves, held)\n",
            ),
        ),
        (f"{LOST}::test_a_commit_that_took_effect_and_was_not_answered",),
    ),
    breakage(
        "a move that draws no token",
        _ADMINISTRATION,
        '        token=bindparam("to_token", type_=Uuid),\n',
        '        token=func.coalesce(offset.token, bindparam("to_token", type_=Uuid)),\n',
        f"{RESET}::test_a_reset_fences_the_owner",
    ),
    breakage(
        "buffered records kept after a seek",
        "worker/open_batch.py",
        "if (r.topic, r.partition) not in partitions] for records in self._kept]",
        "] for records in self._kept]",
        BATCH,
    ),
    breakage(
        "buffered records kept after a revocation",
        "worker/assignment/partitions.py",
        "offset < placed.read_position or at in self.revoked",
        "offset < placed.read_position",
        "tests/unit/test_accept_messages.py",
    ),
    breakage(
        "a buffered run kept after a revocation",
        "worker/assignment/partitions.py",
        "placed.backlog is not None or at in self.revoked",
        "placed.backlog is not None",
        "tests/unit/test_accept_messages.py",
    ),
    breakage(
        "a run is taken by its first offset",
        "worker/assignment/partitions.py",
        " or not all(map(lt, offsets, offsets[1:]))",
        "",
        "tests/unit/test_accept_messages.py",
    ),
    breakage(
        "last processed instead of next",
        "worker/assignment/partitions.py",
        "        placed.read_position = read.end = last + 1\n",
        "        placed.read_position, read.end = last + 1, last\n",
        f"{WORKER}::test_one_record_is_written_at_once_in_a_transaction_of_its_own",
    ),
    breakage(
        "a record that is made late has its leader epoch for a timestamp",
        "kafka/client.py",
        "        times, epochs = late()\n",
        "        epochs, times = late()\n",
        "tests/unit/test_lazy_records.py",
    ),
    breakage(
        "the search resumes after a part whose failing record is named",
        "worker/bisect.py",
        "        return Found(failure.named, part[low], failure.error, is_named=True)",
        "        return Found(failure.named, end, failure.error, is_named=True)",
        "tests/unit/test_bisect.py",
    ),
    breakage(
        "seek with the leader epoch left out",
        "kafka/client.py",
        "                if epoch is not None:  # only seek",
        "                if False:  # only seek",
        f"{KAFKA}::test_i4_a_truncated_log_is_noticed_by_the_stored_leader_epoch",
    ),
    Breakage(
        "release of a stranger's claim",
        (
            Edit(_STATEMENTS, ", _is_ours(RELEASED.c.token))", ")"),
            Edit(_STATEMENTS, ", _is_ours(_mine.c.token))", ")"),
        ),
        (f"{CLAIM}::test_another_owners_claim_is_not_released",),
    ),
    breakage(
        "a worker that is given up keeps its connection",
        "postgres/session.py",
        "                    self._socket.shutdown(socket.SHUT_RDWR)",
        "                    pass",
        "tests/kafka/test_lifecycle.py::test_i2_a_worker_whose_handler_never_returns_is_given_up_after_the_grace",
    ),
    breakage(
        "a worker that is given up stays in its group",
        "worker/loop.py",
        "        if is_open:\n            self._assignment.client.close(LEAVE)\n",
        "        if is_open:\n            pass\n",
        "tests/kafka/test_lifecycle.py::test_i2_a_worker_whose_handler_never_returns_is_given_up_after_the_grace",
    ),
    breakage(
        "a worker without a partition never looks at the version",
        "worker/assignment/idle_checks.py",
        "        self._ledger.check_version()\n",
        "",
        "tests/kafka/test_lifecycle.py::test_an_outdated_worker_without_a_partition_hears_of_the_new_version",
    ),
    breakage(
        "a release looks for its token alone",
        _STATEMENTS,
        'return or_(offset.token == token, offset.owner == bindparam("owner", type_=Uuid))',
        'return or_(offset.token == token, bindparam("owner", type_=Uuid).is_(None))',
        f"{CLAIM}::test_a_claim_is_released_whatever_token_a_move_has_drawn_since",
        "tests/kafka/test_lifecycle.py::test_a_stop_while_paused_is_counted_as_no_crash",
    ),
    Breakage(
        "a note under a stranger's claim",
        (
            Edit(_STATEMENTS, ", offset.token == NOTED.c.token)", ")"),
            Edit(_STATEMENTS, ", offset.token == _notable.c.token)", ")"),
        ),
        (f"{ATTEMPTS}::test_a_zombies_note_is_refused",),
    ),
    Breakage(
        "an attempt that was given up counts",
        (
            Edit(
                _STATEMENTS,
                "        attempts=case((offset.attempt_running, offset.attempts - 1), else_=offset.attempts),\n"
                "        attempt_running=false(),\n",
                "",
            ),
            Edit(
                _STATEMENTS,
                '        "attempts": case((and_(offset.attempt_running, _alive), offset.attempts - ONE), '
                "else_=offset.attempts),\n",
                "",
            ),
        ),
        (f"{ATTEMPTS}::test_an_attempt_that_was_given_up_is_taken_back",),
    ),
    breakage(
        "a move that leaves dead letters open",
        _ADMINISTRATION,
        '        dead_letter.c.record_offset >= bindparam("to_offset", type_=BigInteger),\n',
        '        dead_letter.c.record_offset < bindparam("to_offset", type_=BigInteger),\n',
        f"{LETTERS}::test_a_move_supersedes_what_will_be_read_again",
    ),
    breakage(
        "a dead letter is closed twice",
        "ledger/sql/dead_letters.py",
        '_dead_letter.id == bindparam("closing", type_=BigInteger), IS_OPEN)',
        '_dead_letter.id == bindparam("closing", type_=BigInteger))',
        f"{LETTERS}::test_two_operators_decide_once",
    ),
    breakage(
        "a dead letter loses the line that its error came from",
        "ledger/dead_letters.py",
        '"its_error_line": failure.where,',
        '"its_error_line": None,',
        "tests/postgres/test_cli_dead_letters.py"
        "::test_dead_letters_are_counted_by_exception_and_line_and_replayed_by_them",
    ),
    breakage(
        "a replay of one cause takes others",
        "ledger/sql/dead_letters.py",
        '_exception == bindparam("exception", type_=Text)',
        "_exception.is_not_distinct_from(_exception)",
        "tests/postgres/test_cli_dead_letters.py"
        "::test_dead_letters_are_counted_by_exception_and_line_and_replayed_by_them",
    ),
    breakage(
        "a request whose worker has crashed is replayed again",
        "ledger/sql/replay_request.py",
        "and_(_request.state == _started, _request.worker == _owner)",
        "_request.state == _started",
        "tests/kafka/test_replay_requests.py::test_a_request_that_a_dead_worker_has_started_fails_and_is_not_run",
    ),
    breakage(
        "a request whose taking had no answer stays where it is",
        "ledger/sql/replay_request.py",
        "or_(_request.state == _requested, and_(_request.state == _started, _request.worker == _owner))",
        "_request.state == _requested",
        f"{_REPLAYS}::test_a_commit_without_an_answer_is_no_error_of_the_worker[taking it-after_commit]",
    ),
    breakage(
        "a request that is handed back begins again",
        "worker/replay/requests.py",
        'request.remaining if request.state == "requested" else None',
        "None",
        f"{_REPLAYS}::test_a_worker_that_ends_hands_its_request_back_with_what_is_left",
    ),
    breakage(
        "a request waits for a handler version that no worker has again",
        "ledger/sql/replay_request.py",
        "consumer_group.c.version > _request.version",
        "consumer_group.c.version < _request.version",
        f"{_REPLAYS}::test_a_request_of_before_a_newer_handler_version_fails",
    ),
    breakage(
        "a requested replay keeps its worker from reading for longer than a part",
        "worker/replay/requests.py",
        "if monotonic() >= until:",
        "if monotonic() >= until + 60:",
        f"{_REPLAYS}::test_a_part_ends_after_a_hundred_dead_letters_or_a_second",
    ),
    breakage(
        "a worker that was given up commits what it replays",
        "worker/loop.py",
        "            self._requests.cut()\n",
        "",
        f"{_REQUESTS}::test_i2_nothing_is_replayed_by_a_worker_that_was_given_up[returns]",
    ),
    breakage(
        "a worker that was given up stores the error of what it replays",
        "worker/replay/replay_one.py",
        " or self._session.wire.is_cut:",
        ":",
        f"{_REQUESTS}::test_i2_nothing_is_replayed_by_a_worker_that_was_given_up[raises]",
    ),
    breakage(
        "a handler that runs for too long in a replay is live",
        "worker/replay/replay_one.py",
        "            with self._stopwatch:\n",
        "            if True:\n",
        f"{_REQUESTS}::test_live_is_false_while_a_replayed_handler_runs_for_too_long",
    ),
    breakage(
        "a failover ends a request",
        "worker/replay/requests.py",
        "if is_transient(error) and not is_timeout(error):",
        "if sqlstate(error) == LOCK_NOT_AVAILABLE:",
        f"{_REPLAYS}::test_an_error_that_may_pass_keeps_the_request_and_is_tried_again_later",
    ),
    breakage(
        "a replay that takes too long is tried for ever",
        "worker/replay/requests.py",
        " and not is_timeout(error):",
        ":",
        f"{_REPLAYS}::test_a_replay_that_takes_too_long_fails_the_request",
    ),
    breakage(
        "a worker that is to end waits to replay again",
        "postgres/backoff.py",
        "stopping.wait(backoff.wait(attempt))",
        "False",
        f"{_REPLAYS}::test_a_worker_that_is_to_end_does_not_wait_to_replay_again",
    ),
    breakage(
        "a request is taken for abandoned by our own interval alone",
        "worker/replay/requests.py",
        "max(LEAST_AGE, ABANDONED * self._interval)",
        "ABANDONED * self._interval",
        f"{_REPLAYS}::test_a_worker_is_not_taken_for_dead_by_one_with_shorter_intervals",
    ),
    breakage(
        "a worker that was given up keeps its request for ever",
        "worker/replay/requests.py",
        "        if self._wire.is_cut:\n            return\n",
        "",
        f"{_REPLAYS}::test_a_worker_is_not_taken_for_dead_by_one_with_shorter_intervals",
    ),
    breakage(
        "a worker replays on after others have failed its request",
        "worker/replay/requests.py",
        'if request.state != "started" or done.rowcount == 0:',
        'if request.state != "started":',
        f"{_REPLAYS}::test_a_request_that_others_have_failed_stays_failed",
    ),
    breakage(
        "a failed request becomes one that has started",
        "ledger/sql/replay_request.py",
        "    _request.state == _started,\n    _request.worker == _owner,\n)",
        "    _request.worker == _owner,\n)",
        f"{_REPLAYS}::test_a_request_that_others_have_failed_stays_failed",
    ),
    breakage(
        "a request whose outcome is not stored ends the worker",
        "worker/replay/requests.py",
        "            self._error, self._again_at = error, monotonic() + self._interval\n",
        "            raise\n",
        f"{_REPLAYS}::test_an_end_that_cannot_be_stored_is_reported_and_tried_again",
    ),
    breakage(
        "a worker that drains fails its request",
        "worker/loop.py",
        "self._requests.close(hand_back=not has_failed)",
        "self._requests.close(hand_back=False)",
        "tests/kafka/test_replay_requests.py::test_a_worker_that_drains_hands_its_request_to_the_next",
    ),
    breakage(
        "a worker in a long handler looks dead to a request",
        "worker/status_writer.py",
        "                self._error_of(self._poll_replay_requests)  # the worker is in a long handler, and is alive\n",
        "",
        "tests/kafka/test_replay_requests.py::test_a_partition_is_taken_while_its_dead_letter_is_replayed",
    ),
    breakage(
        "a request by a worker leaves no trace in the group's history",
        "admin/replay_requests.py",
        '        record_action(tx, "request replay", actor=by.actor, reason=said)\n',
        "",
        f"{_REPLAYS}::test_a_request_says_who_made_it_and_is_taken_by_one_worker",
    ),
    breakage(
        "a pause that shuts out foreign keys",
        _ADMINISTRATION,
        "READ_GROUP.with_for_update(key_share=True)",
        "READ_GROUP.with_for_update()",
        f"{LETTERS}::test_a_pause_and_an_insert_do_not_wait_for_each_other",
    ),
    Breakage(
        "positions cached across assignments",
        (
            Edit(
                "worker/assignment/claiming.py",
                "        self._partitions.activate(claims)\n",
                "        cached = {p: CACHE.setdefault(p, c.next_offset) for p, c in claims.items()}\n"
                "        claims = {p: replace(c, next_offset=cached[p]) for p, c in claims.items()}\n"
                "        self._partitions.activate(claims)\n",
            ),
            Edit("worker/assignment/claiming.py", "import dataclass\n", "import dataclass, replace\n"),
            Edit(
                "worker/assignment/claiming.py",
                "class Claiming:\n",
                "CACHE: dict[Partition, int] = {}\n\n\nclass Claiming:\n",
            ),
        ),
        (f"{REBALANCE}::test_members_that_join_and_leave_hand_their_partitions_over",),
    ),
    breakage(
        "a late error that the handler caught is forgotten",
        "postgres/connection.py",
        "        if self.deferred.error is not None:  # even",
        "        if status == 3 and self.deferred.error is not None:  # even",
        f"{ROADS}::test_a_deferred_error_after_a_savepoint_by_hand[True-False]",
    ),
    breakage(
        "a small batch asks for the topics' ids before its last read",
        "worker/open_batch.py",
        "not self.closed:\n            self._read_more()\n        return fits\n",
        "not self.closed:\n"
        "            self.identity = self.identity or self._ask({p.topic for p in self.reads})\n"
        "            if (chunk := None if self._full() else self._draw()) is None or not len(chunk):\n"
        "                break\n"
        "            self._keep(chunk)\n"
        "        return fits\n",
        f"{BATCH}::test_a_small_batch_asks_for_the_topics_ids_after_its_last_read",
    ),
    Breakage(
        "COMMIT sent before the answer about the topics' ids",
        (
            Edit("worker/unit_of_work.py", "            self._require_same_topics(result)\n", ""),
            Edit(
                "worker/unit_of_work.py",
                "        self._owner.accept(moved)\n",
                "        self._require_same_topics(result)\n        self._owner.accept(moved)\n",
            ),
        ),
        (RECREATED, f"{SMALL_WORKER}::test_i4_a_topic_recreated_after_the_read_rolls_it_back"),
    ),
    Breakage(
        "a small batch advances without its hold",
        (
            Edit(_STATEMENTS, "    offset.token == MOVING.c.token,  # I2\n", ""),
            Edit(_STATEMENTS, "    offset.next_offset == MOVING.c.from_offset,  # I3\n", ""),
            _TOKEN[1],
            _POSITION[1],
        ),
        (f"{SMALL}::test_a_refusal_writes_nothing",),
    ),
    Breakage(
        "a small batch advances without its token",
        (Edit(_STATEMENTS, "    offset.token == MOVING.c.token,  # I2\n", ""), _TOKEN[1]),
        (f"{SMALL}::test_a_refusal_writes_nothing[another_claim]",),
    ),
    Breakage(
        "a small batch advances without its position",
        (Edit(_STATEMENTS, "    offset.next_offset == MOVING.c.from_offset,  # I3\n", ""), _POSITION[1]),
        (f"{SMALL}::test_a_refusal_writes_nothing[another_position]",),
    ),
    Breakage(
        "a small batch's rows keep the types of before an ALTER",
        (
            Edit("sinks/small_append.py", "len(rows)))[0], values)", "len(rows)))[0], values, is_prepared=True)"),
            Edit("sinks/small_append.py", "numbered(SAME_TYPES)[0], same,", '"SELECT 1", (),'),
        ),
        (f"{SMALL}::test_a_table_altered_between_two_batches[real to float8]",),
    ),
    breakage(
        "a small batch's rows are sent by the types that the session saw first",
        "sinks/small_append.py",
        "numbered(SAME_TYPES)[0], same,",
        '"SELECT 1", (),',
        f"{SMALL}::test_a_table_altered_between_two_batches[text to jsonb]",
    ),
    breakage(
        "COMMIT counted without its tag",
        "postgres/session.py",
        '    if result.command_status != b"COMMIT":\n',
        "    if False:\n",
        f"{SMALL}::test_i1_a_commit_that_is_answered_with_rollback_is_an_error",
    ),
    breakage(
        "advance before a handler, which may COMMIT",
        "worker/apply.py",
        "    if pipeline.handle is not None or len(pipeline.sinks) != 1:",
        "    if len(pipeline.sinks) != 1:",
        f"{SMALL}::test_a_commit_by_the_handler_beside_a_sink_moves_no_offset",
    ),
    breakage(
        "the rows of a small batch may be refused by the ledger's words",
        "postgres/deferred.py",
        "            if failed.number > 0 or",
        "            if",
        f"{SMALL}::test_a_refusal_in_a_values_text_is_no_refusal",
    ),
    breakage(
        "a value of a small batch is cut off at a NUL",
        "sinks/copy.py",
        '    if b"\\0" in (text',
        '    if b"\\0\\0" in (text',
        f"{SMALL}::test_a_nul_in_json_that_was_dumped_before_is_found",
    ),
    breakage(
        "a small batch passes by the application's cursors",
        "sinks/small_append.py",
        "    if not tx.deferred.is_allowed:\n        return False\n",
        "",
        f"{SMALL}::test_cursors_of_another_class_see_the_rows",
    ),
    breakage(
        "large rows of few records are sent as one statement",
        "sinks/copy.py",
        "    if len(text) > most:\n",
        "    if False:\n",
        f"{SMALL}::test_large_rows_go_by_copy[two round trips]",
    ),
    breakage(
        "few rows are sent however large they are",
        "sinks/small_append.py",
        " if value is not None) > MOST_BYTES:\n",
        " if value is not None) < 0:\n",
        f"{SMALL}::test_large_rows_go_by_copy[few rows]",
    ),
    breakage(
        "a small batch goes where COPY would not",
        "sinks/small_append.py",
        "found.is_plain and types is not None and types.casts",
        "types is not None and types.casts",
        f"{SMALL}::test_of_other_pipelines_advance_is_the_last_statement[ruled]",
    ),
    breakage(
        "few rows are sent though a cast reads them otherwise",
        "sinks/small_append.py",
        "    if not types.casts or not types.declared.keys() >= set(names):\n",
        "    if not types.declared.keys() >= set(names):\n",
        f"{SMALL}::test_a_value_that_a_cast_reads_otherwise_goes_by_copy[interval hour-10-few rows]",
    ),
    breakage(
        "a cast reads an array of hours as COPY does",
        "sinks/column_types.py",
        "return oid in {1186, 1187} and",
        "return oid == 1186 and",
        f"{SMALL}::test_a_value_that_a_cast_reads_otherwise_goes_by_copy[interval hour[]-{{10}}-two round trips]",
    ),
    breakage(
        "columns are compared in the order of their declaration",
        "sinks/small_append.py",
        "    by_name = sorted(names, key=str.encode)\n",
        "    by_name = list(names)\n",
        f"{SMALL}::test_columns_are_compared_in_any_order",
    ),
    breakage(
        "a small batch has the isolation level of the session",
        "postgres/round_trip.py",
        'Statement("BEGIN ISOLATION LEVEL READ COMMITTED")',
        'Statement("BEGIN")',
        f"{SMALL}::test_its_settings_end_with_it",
    ),
    breakage(
        "a small batch has no transaction_timeout",
        _STATEMENTS,
        'HOLD_AND_ADVANCE_17 = _hold_and_advance(*_SETTINGS, "transaction_timeout")',
        "HOLD_AND_ADVANCE_17 = _hold_and_advance(*_SETTINGS)",
        f"{SMALL}::test_its_settings_end_with_it",
    ),
    breakage(
        "a small batch waits for the log though the pipeline does not",
        "ledger/advance.py",
        '"synchronous_commit": "on" if settings.synchronous_commit else "off"',
        '"synchronous_commit": "on"',
        f"{SMALL}::test_its_settings_end_with_it",
    ),
    breakage(
        "types are asked without a lock",
        "sinks/column_types.py",
        "    if lockable:  # in one round trip",
        "    if False:  # in one round trip",
        "tests/postgres/test_column_types.py::test_no_session_alters_the_table_until_the_transaction_ends",
    ),
    breakage(
        "types of a name without a schema are remembered",
        "sinks/column_types.py",
        "    if len(name) == 1:\n        return types_now(driver, name)\n",
        "",
        "tests/postgres/test_column_types.py::test_a_name_without_a_schema_may_become_another_table",
    ),
    breakage(
        "types of a view are remembered as if it were locked",
        "sinks/column_types.py",
        "    if locked is not None and _known[driver][name][0]:\n",
        "    if locked is not None:\n",
        "tests/postgres/test_column_types.py::test_a_view_is_not_locked_and_is_asked_again",
    ),
    breakage(
        "a transaction takes due records of partitions that it does not hold",
        "worker/reader.py",
        "scheduler.due(room // 2 + self._due_first, held)",
        "scheduler.due(room // 2 + self._due_first)",
        "tests/unit/test_reader.py::test_due_records_of_partitions_that_the_transaction_does_not_hold_stay",
    ),
    breakage(
        "a view that took the table's name takes a small batch's rows",
        "sinks/column_types.py",
        """PLAIN = "c.relkind IN ('r', 'p') AND NOT c.relhasrules AND""",
        'PLAIN = "',
        f"{SMALL}::test_a_view_that_took_the_tables_name_takes_no_row",
    ),
    breakage(
        "a reset that was planned before a group was forgotten is applied to the new one",
        "admin/apply_resets.py",
        "    if tx.execute(sql.LAST_FORGET).scalar_one() != plan.last_forget:\n",
        "    if False:\n",
        f"{FORGET}::test_a_reset_that_was_planned_before_is_none_of_the_new_groups",
    ),
    breakage(
        "a connection that is lost at its first statement is not reported as SQLAlchemy's error",
        "postgres/pooler.py",
        "        if driver.closed:\n",
        "        if False:\n",
        "tests/postgres/ledger/test_reset_plans.py::test_a_plan_whose_connection_breaks_is_applied_once",
    ),
    breakage(
        "large records are sent as one statement",
        "worker/open_batch.py",
        "self._records <= records and self._bytes <= size",
        "self._records <= records",
        f"{BATCH}::test_a_batch_of_large_records_is_not_small",
    ),
    breakage(
        "few rows are prepared, and keep the types of a table that was altered",
        "postgres/pipelining.py",
        "execute(statement, row, prepare=False)",
        "execute(statement, row)",
        f"{ROADS}::test_a_table_altered_while_few_rows_come[real-float8-0.1]",
    ),
    Breakage(
        "a sink keeps the generation that counted when it looked first",
        (
            Edit(
                "sinks/target_table.py",
                "        row = _cursor(tx).execute(statement, self.path).fetchone()\n",
                "        if self.path not in FIRST:\n"
                "            FIRST[self.path] = _cursor(tx).execute(statement, self.path).fetchone()\n"
                "        row = FIRST[self.path]\n",
            ),
            Edit(
                "sinks/target_table.py",
                "@dataclass(frozen=True, slots=True)\n",
                "FIRST: dict[Any, Any] = {}\n\n\n@dataclass(frozen=True, slots=True)\n",
            ),
        ),
        (f"{GENERATIONS}::test_generations_are_enabled_for_a_table_with_rows_and_it_is_reloaded",),
    ),
    breakage(
        "a generation is dropped under readers with older snapshots",
        "jobs/tables/generations/generation_tables.py",
        "return old, not (old and still_reading(tx, turned))",
        "return old, True",
        f"{GENERATIONS}::test_an_older_snapshot_reads_the_older_generation",
    ),
    breakage(
        "rows that a trigger kept as they were pass for merged",
        "jobs/reload/merge.py",
        "        bound()\n        each.require()\n",
        "        bound()\n",
        "tests/jobs/reload/test_kept_rows.py::test_a_trigger_that_keeps_the_old_row_is_seen",
    ),
    breakage(
        "a round applies what a worker holds behind the run's own dead letters",
        "jobs/reload/catch_up.py",
        "        parts = Parts(tx.connection, pipeline, self._seen(tx, group), held=self._held(tx, group))\n",
        "        parts = Parts(tx.connection, pipeline, self._seen(tx, group))\n",
        "tests/jobs/reload/test_constraints.py::test_later_records_of_its_key_are_blocked",
    ),
    breakage(
        "staged tables that a crash emptied pass for what the log says",
        "jobs/run.py",
        "format(check)).rowcount == 1:",
        "format(check)).rowcount >= 0:",
        "tests/jobs/reload/test_publications.py::test_a_crash_that_empties_what_was_staged_ends_the_run[True]",
    ),
    breakage(
        "a table that was adopted behind a session's first look ends the worker",
        "sinks/target_table.py",
        "not (was_known or may_be_new)",
        "not was_known",
        f"{MOVED}::test_a_table_that_moves_between_the_first_look_and_the_rows[1-orders-NullPool]",
    ),
    breakage(
        "an error that is like a table's that was adopted is tried for ever",
        "sinks/target_table.py",
        " and found not in refused_before",
        "",
        f"{MOVED}::test_what_only_looks_like_a_move_ends_in_its_own_error[55000-NullPool]",
    ),
    breakage(
        "a table is adopted in front of the batches that workers have in hand",
        "jobs/tables/generations/manage_generations.py",
        "        tx.execute(LOCK_GROUP, group=group).all()\n"
        "    tx.execute(reload_run.LOCK_OFFSETS, groups=groups).all()\n",
        "        pass\n",
        f"{MOVED}::test_workers_are_waited_for_before_anything_that_readers_want[1]",
    ),
    breakage(
        "a snapshot from before the adoption reads an empty table",
        "jobs/tables/generations/view.py",
        "{of_table}), {first})",
        "{of_table}), NULL)",
        f"{GENERATIONS}::test_a_snapshot_from_before_generations_were_enabled_reads_the_rows_of_its_time",
    ),
    breakage(
        "rows are compared by the types' own equality",
        "jobs/reload/compare.py",
        "ROW({})::record *<> ROW({})::record",
        "(ROW({})) IS DISTINCT FROM (ROW({}))",
        f"{IMAGES}::test_a_merge_sets_keys_whose_bytes_differ[False]",
    ),
    breakage(
        "a merge leaves keys whose bytes differ",
        "jobs/reload/merge.py",
        "(_UPDATE, _UPDATE_KEY, _INSERT)",
        "(_UPDATE, _INSERT)",
        f"{IMAGES}::test_a_merge_sets_keys_whose_bytes_differ[False]",
    ),
    Breakage(
        "two pipelines under one group name are not told apart",
        (
            Edit(
                "ledger/claim.py",
                "    require(tx.group, claimant.declaration, claimant.version, claimant.compare(tx))\n",
                "",
            ),
            Edit(
                "ledger/declaration.py",
                "            if not declaration.accepts or each.replaced > declaration.seen[each.topic]:\n",
                "            if False:\n",
            ),
        ),
        (f"{DECLARATION}::test_the_first_claim_stores_the_tables_and_another_set_is_refused",),
    ),
    breakage(
        "a claim is committed before the group's row is checked",
        "ledger/claim.py",
        "    admit(SimpleNamespace(",
        "    tx.connection.connection.driver_connection.commit()\n    admit(SimpleNamespace(",
        f"{GROUP}::test_a_claim_that_is_refused_after_tokens_were_drawn_is_rolled_back",
    ),
    breakage(
        "the group's row is checked before the claim's transaction alone",
        "ledger/claim.py",
        "    admit(SimpleNamespace(",
        "    dict(SimpleNamespace(",
        f"{GROUP}::test_a_claim_that_is_refused_after_tokens_were_drawn_is_rolled_back",
    ),
    breakage(
        "the tables of a topic are compared before the claim's transaction alone",
        "ledger/claim.py",
        "    require(tx.group, claimant.declaration, claimant.version, claimant.compare(tx))\n",
        "",
        f"{DECLARATION}::test_what_is_stored_between_the_two_steps_of_a_claim_is_compared_too",
    ),
    breakage(
        "instants of a zone with summer time are compared by its clocks",
        "sinks/dedupe.py",
        "{type(v.tzinfo) for v in values} == {timezone}",
        "not any(v.tzinfo is None for v in values)",
        f"{UPSERT}::test_an_hour_that_a_zone_has_twice_is_two_keys[unnest]",
        f"{UPSERT}::test_an_hour_that_a_zone_has_twice_is_older_and_newer[unnest-timestamptz]",
    ),
    breakage(
        "a tombstone's key is compared as it was given, and the stored one was rounded",
        "sinks/dedupe.py",
        "    if not _readable(target, rows, known):\n",
        "    if False:\n",
        f"{UPSERT}::test_a_tombstone_deletes_what_its_key_was_rounded_to",
    ),
    breakage(
        "a value for JSON is sent by its type in Python",
        "sinks/json_values.py",
        "return value if self._is_json[kind] else Json(value)",
        "return value",
        f"{ROADS}::test_values_for_a_column_of_json_are_dumped_as_json",
    ),
    breakage(
        "a rule that was made since takes a small batch's rows",
        "sinks/column_types.py",
        " AND bool_and({PLAIN}) AS int)",
        " AS int)",
        f"{SMALL}::test_a_rule_that_was_made_since_takes_no_row",
    ),
    breakage(
        "a column of the same type counts as declared alike",
        "sinks/column_types.py",
        " || ' ' || a.atttypmod || ' ' || a.attndims",
        "",
        f"{SMALL}::test_a_table_altered_between_two_batches[interval]",
    ),
    breakage(
        "few rows are sent by the types that the session saw first",
        "sinks/small_append.py",
        "SAME_TYPES, _check_parameters(path, names, types.declared)",
        '("SELECT 1", ())',
        f"{ROADS}::test_a_column_that_becomes_json_while_few_rows_come",
    ),
    breakage(
        "types are remembered though their lock was released",
        "postgres/connection.py",
        "            self.locked = dict(self._locked_before)",
        "            self.locked = dict(self.locked)",
        f"{ROADS}::test_types_are_asked_again_after_a_part_that_was_undone",
    ),
    breakage(
        "types are remembered where code of the user's may release their lock",
        "postgres/connection.py",
        "        self.locked = {} if keeps_locks else None\n",
        "        self.locked = {}\n",
        f"{ROADS}::test_types_are_asked_once_while_their_lock_is_held[False]",
    ),
    breakage(
        "an upsert's key may be NULL",
        "sinks/catalog.py",
        "    if found.nullable and not found.nulls_alike:\n",
        "    if False:\n",
        f"{UPSERT}::test_a_key_that_may_be_null_is_refused",
    ),
    breakage(
        "a row of a subtransaction that was open when tables were compared counts as seen",
        "ledger/sql/reload_run.py",
        "func.pg_snapshot_xmin(func.pg_current_snapshot())",
        "func.pg_snapshot_xmax(func.pg_current_snapshot())",
        f"{BOUNDS}::test_a_row_of_a_subtransaction_that_was_open_is_found",
    ),
    breakage(
        "another writer's rows that came since the comparison are deleted in any number",
        "jobs/reload/merge.py",
        "        _require_allowed(tables, by_key, plan)\n",
        "",
        f"{BOUNDS}::test_rows_of_another_writer_since_the_comparison_are_counted_under_the_lock",
    ),
    breakage(
        "deferred triggers run in COMMIT, which no timeout ends",
        "jobs/reload/cutover.py",
        '        run(tx.connection, "SET CONSTRAINTS ALL IMMEDIATE")',
        "        pass",
        f"{BOUNDS}::test_a_statement_takes_no_longer_than_what_is_left[True]",
    ),
    breakage(
        "rows whose records compaction took are deleted",
        "jobs/reload/reload.py",
        "        require_no_extra(passes.targets, found)",
        "        pass",
        f"{COMPACTION}::test_a_run_that_is_killed_before_the_refusal_is_refused_when_it_is_resumed",
    ),
    breakage(
        "rows are deleted before those of the same table that referred to them are changed",
        "jobs/reload/merge.py",
        "if key.of is None or key.to is None:",
        "if key.of is None or key.to is None or key.of == key.to:",
        f"{MERGE}::test_a_row_that_referred_to_a_deleted_one_of_its_table_stays",
    ),
    breakage(
        "a row that was extra hides one that was deleted since the comparison",
        "jobs/reload/merge.py",
        "FILTER (WHERE {kind} IN ('different', {different_key}, 'extra')) ",
        "FILTER (WHERE {kind} IN ('different', {different_key})) ",
        f"{MERGE}::test_a_row_that_was_extra_does_not_hide_one_that_is_gone",
    ),
    breakage(
        "two records' keys of one row are no matter in a compacted topic",
        "jobs/staging/consolidate.py",
        "            staged.check_keys(target)\n",
        "",
        f"{COMPACTION}::test_a_key_that_is_not_one_rows_is_refused",
    ),
    breakage(
        "a file of an archive is read whatever its checksum is",
        "jobs/export/files.py",
        "if entry.sha256 is not None:",
        "if False:",
        "tests/jobs/export/test_damage.py::test_any_flipped_bit",
    ),
    breakage(
        "a completed verify is not stored as verified",
        "jobs/reload/reload.py",
        'driver.transition(tx, "verified")',
        "pass",
        "tests/jobs/cli/test_cli_verify.py::test_tables_that_are_what_the_log_says",
    ),
    breakage(
        "a plan is carried out whatever has happened since",
        "admin/pauses.py",
        "        if now != (plan.was_paused, plan.paused_by, plan.paused_reason):",
        "        if now is None:",
        "tests/kafka/test_cli_operators.py::test_of_two_operators_who_apply_the_same_plan_one_wins",
    ),
    breakage(
        "a group is forgotten while its workers run",
        "admin/forget.py",
        "    if not row.paused:",
        "    if row is None:",
        f"{FORGET}::test_only_a_group_that_no_worker_and_no_job_writes_for",
    ),
    breakage(
        "a group is forgotten while a job is about to write",
        "admin/forget.py",
        "    if runs := tx.execute(OPEN_RUNS_OF_GROUP).all():",
        "    if runs := tx.execute(OPEN_RUNS_OF_GROUP).all()[:0]:",
        f"{FORGET}::test_only_a_group_that_no_worker_and_no_job_writes_for",
    ),
    breakage(
        "a reset to before the first offset leaves it",
        "ledger/sql/admin.py",
        'else_=func.least(offset.first_offset, bindparam("to_offset", type_=BigInteger)),',
        "else_=offset.first_offset,",
        "tests/postgres/ledger/test_reset.py::test_a_reset_to_before_the_first_offset_lowers_it",
    ),
    breakage(
        "what was applied before a reset that is undone is left out of a reload",
        "jobs/staging/lost_ranges.py",
        "if one.reason not in GONE:",
        "if one.end is None:",
        "tests/unit/test_lost_ranges.py::test_what_was_applied_before_a_reset_that_is_undone_is_kept",
    ),
    breakage(
        "dead letters are purged while a reload may look for them",
        "admin/purges.py",
        "    if runs := tx.execute(OPEN_RUNS_OF_GROUP).all():",
        "    if runs := tx.execute(OPEN_RUNS_OF_GROUP).all()[:0]:",
        "tests/postgres/test_purge.py::test_nothing_is_purged_while_a_run_is_open",
    ),
    breakage(
        "a run may open while dead letters are purged",
        "admin/purges.py",
        "tx.execute(LOCK_GROUP).one_or_none()",
        "known_group(tx)",
        "tests/postgres/test_purge.py::test_a_run_that_opens_is_waited_for",
    ),
    breakage(
        "who comes through a proxy is taken for the user of the machine",
        "web/access.py",
        "if any(name in request.headers for name in _OF_PROXIES):",
        "if not request.headers:",
        "tests/web/test_requests.py::test_users_of_a_proxy_are_not_those_of_this_machine",
    ),
    breakage(
        "a position after the last stable offset is past the end of the log",
        "admin/losses.py",
        "Watermarks(identity, committed=False).logs(there)",
        "Watermarks(identity).logs(there)",
        "tests/kafka/test_losses.py::test_an_open_transaction_is_no_end_of_the_log",
    ),
    breakage(
        "what came since a plan to forget counted is deleted",
        "admin/forget.py",
        "    if deleted != planned:",
        "    if deleted is None:",
        f"{FORGET}::test_what_came_since_the_plan_counted_nothing_is_not_deleted",
    ),
    breakage(
        "dead letters are deleted that are not in the file",
        "admin/forget.py",
        "    if exported not in {None, deleted}:",
        "    if deleted is None:",
        f"{FORGET}::test_nothing_is_deleted_that_is_not_in_the_file",
    ),
    breakage(
        "a plan to forget is carried out whatever has happened since",
        "admin/forget.py",
        "    if (row.paused_by, row.paused_reason, at) != (plan.paused_by, plan.paused_reason, plan.forgotten_at):",
        "    if at is None and plan.forgotten_at is not None:",
        f"{FORGET}::test_any_order_of_pauses_commits_and_forgetting",
    ),
    breakage(
        "an undo puts positions back where they began",
        "ledger/sql/forget.py",
        'next_offset=bindparam("its_next_offset", type_=BigInteger),',
        'next_offset=bindparam("its_first_offset", type_=BigInteger),',
        f"{FORGET}::test_a_group_is_forgotten_and_comes_back_at_its_offsets",
    ),
    breakage(
        "a forgotten group is claimed",
        "ledger/claim.py",
        """    refuse_forgotten(group)
    if group.cluster_id""",
        """    if group.cluster_id""",
        f"{FORGET}::test_a_group_is_forgotten_and_comes_back_at_its_offsets",
    ),
    breakage(
        "who accepts one forgetting accepts every later one",
        "ledger/claim.py",
        'return group.forgotten is not None and group.forgotten["at"] == accepted',
        "return group.forgotten is not None and accepted is not None",
        f"{FORGET}::test_a_start_that_accepts_it_begins_a_new_group",
    ),
    breakage(
        "a purge deletes what no other row accounts for",
        "ledger/sql/purge.py",
        '.where(*_is_purged, _dead_letter.state == func.any(array("states", Text)))',
        ".where(*_is_purged)",
        f"{PURGE}::test_closed_ones_are_purged_by_their_age",
    ),
    breakage(
        "a plan of resets is carried out twice",
        "admin/apply_resets.py",
        "    if last != move.last_reset:",
        "    if False:",
        f"{OFFSETS}::test_of_two_operators_who_apply_the_same_plan_one_wins[stopped]",
        f"{OFFSETS}::test_after_the_failed_record",
    ),
    breakage(
        "a forward target that was passed is a rewind",
        "admin/apply_resets.py",
        '    if move.direction == "forward" and row.next_offset > move.target:',
        "    if False:",
        f"{OFFSETS}::test_a_plan_holds_while_the_position_moves_on_and_not_past_its_target",
    ),
    breakage(
        "a backward target after the position skips records",
        "admin/apply_resets.py",
        '    if move.direction == "backward" and row.next_offset < move.target:',
        "    if False:",
        f"{OFFSETS}::test_a_plan_holds_while_the_position_moves_on_and_not_past_its_target",
    ),
    breakage(
        "a plan of an earlier topic is carried out",
        "admin/apply_resets.py",
        "    if row.topic_id != move.topic_id:",
        "    if False:",
        f"{OFFSETS}::test_another_topic_and_another_cluster_are_refused",
    ),
    breakage(
        "a plan of another cluster is carried out",
        "admin/apply_resets.py",
        "    if group.cluster_id != plan.cluster_id:",
        "    if False:",
        f"{OFFSETS}::test_another_topic_and_another_cluster_are_refused",
    ),
    breakage(
        "what an operator skips is no lost range",
        "admin/apply_resets.py",
        '    lost = "operator" if move.target > at else None',
        "    lost = None",
        f"{OFFSETS}::test_a_forward_reset_writes_a_lost_range",
    ),
    breakage(
        "a failed record that was applied meanwhile passes the next one",
        "admin/apply_resets.py",
        "    if move.is_exact and row.next_offset != move.position:",
        "    if False:",
        f"{OFFSETS}::test_a_plan_that_passes_a_failed_record_holds_for_that_one_alone",
    ),
    breakage(
        "a plan of resets is a transaction for each partition",
        "admin/apply_resets.py",
        "    if not each:",
        "    if False:",
        "tests/postgres/ledger/test_reset_plans.py::test_a_plan_of_a_thousand_partitions_is_one_transaction",
        "tests/postgres/ledger/test_reset_plans.py::test_a_plan_whose_connection_breaks_is_applied_once",
    ),
    breakage(
        "a plan of resets does not name the open reload that it ends",
        "admin/reset_consequences.py",
        "        for run in runs:",
        "        for run in ():",
        "tests/jobs/reload/test_mid_run.py::test_a_plan_of_a_reset_names_the_run_that_it_ends",
    ),
    breakage(
        "commits of another consumer are replaced before they are reported",
        "worker/mirror.py",
        "if p in self._checked and self._sent.get(p) != commit",
        "if self._sent.get(p) != commit",
        "tests/unit/test_mirror.py::test_commits_of_another_consumer_are_reported_before_they_are_replaced",
    ),
    breakage(
        "a commit that failed is taken for one that Kafka has",
        "worker/mirror.py",
        "        self._sent = {}\n        self._count(why)\n",
        "        self._count(why)\n",
        "tests/unit/test_mirror.py::test_nothing_is_committed_while_an_answer_is_outstanding_and_a_failure_is_tried_again",
    ),
    breakage(
        "a mirror replaces commits of which Kafka has not answered whose they are",
        "worker/mirror.py",
        "        if (found := question.answer) is None:",
        "        found = question.answer or {}\n        if False:",
        "tests/unit/test_mirror.py::test_commits_are_not_replaced_before_kafka_has_answered_which_there_are",
    ),
    breakage(
        "a worker that ends leaves its last positions out of Kafka",
        "worker/loop.py",
        "            has_answered = self._mirror.finish()\n",
        "            has_answered = True\n",
        f"{MIRROR}::test_a_worker_that_has_drained_leaves_its_last_positions",
    ),
    breakage(
        "a start at committed offsets takes a mirror's",
        "kafka/watermarks.py",
        "for partition, commit in found.items() if commit.is_mirror)",
        "for partition, commit in found.items() if False)",
        f"{MIRROR}::test_a_start_at_committed_offsets_refuses_a_mirrors",
    ),
    breakage(
        "an import takes a mirror's commits",
        "admin/import_offsets.py",
        "    if commit.is_mirror:",
        "    if False:",
        f"{MIRROR}::test_commits_that_cannot_be_positions_are_refused",
    ),
    breakage(
        "an import looks for members only before it reads the commits",
        "admin/import_offsets.py",
        "    found = read_commits(identity, group)\n    require_empty(identity, group)\n",
        "    found = read_commits(identity, group)\n",
        f"{MIRROR}::test_a_member_of_the_old_group_is_refused_before_and_after_its_commits_are_read",
    ),
    breakage(
        "an import is carried out although the old group has committed since",
        "admin/import_offsets.py",
        "        if now != each.committed:",
        "        if False:",
        f"{MIRROR}::test_a_member_of_the_old_group_is_refused_before_and_after_its_commits_are_read",
    ),
    breakage(
        "a mirror of a stopped group writes positions that have changed",
        "admin/mirror.py",
        "        if row is None or (row.topic_id, row.next_offset) != (each.topic_id, each.next_offset):",
        "        if row is None:",
        f"{MIRROR}::test_a_plan_of_a_mirror_holds_for_what_ledger_and_kafka_had",
    ),
    breakage(
        "a mirror of a stopped group replaces commits that are newer than its plan",
        "admin/mirror.py",
        "        if now != each.in_kafka:",
        "        if False:",
        f"{MIRROR}::test_a_plan_of_a_mirror_holds_for_what_ledger_and_kafka_had",
    ),
    breakage(
        "commits that a group with members has refused count as written",
        "kafka/commits.py",
        "for at in written if at.error is not None), None)",
        "for at in written if False), None)",
        f"{MIRROR}::test_a_stopped_groups_positions_are_written_where_a_plain_consumer_continues",
    ),
    breakage(
        "a check passes where the lag is not known",
        "admin/status.py",
        "    if at.lag is None:\n        since",
        "    if at.is_past_end:\n        since",
        "tests/kafka/test_cli_operators.py::test_a_check_reports_the_fault_that_it_is_for[stale]",
    ),
    breakage(
        "samples of partitions that another worker owns",
        "ledger/sql/status.py",
        ', offset.owner == bindparam("its_owner", type_=Uuid)',
        "",
        "tests/postgres/ledger/test_status_views.py::test_only_the_owner_samples_a_partition",
    ),
    breakage(
        "the declaration of a version that is refused is stored",
        "ledger/sql/status.py",
        '        consumer_group.c.version == bindparam("its_version", type_=Integer),\n',
        "",
        "tests/postgres/ledger/test_status_views.py::test_a_declaration_is_kept_by_topic_at_the_version_of_the_group",
    ),
    breakage(
        "an error of what is for display ends its thread",
        "worker/status_writer.py",
        "        except Exception as error:",
        "        except ZeroDivisionError as error:",
        "tests/kafka/test_status_rows.py::test_the_warning_comes_again_after_a_success",
    ),
    breakage(
        "each error of what is for display is a warning",
        "worker/status_writer.py",
        "if found is not None and not self._has_failed:",
        "if found is not None:",
        "tests/kafka/test_status_rows.py::test_missing_rights_are_one_warning",
    ),
    breakage(
        "samples are kept for ever",
        "worker/status_writer.py",
        "            self._tables.prune([p for n, p in enumerate(partitions) if n % PRUNE == self._samples % PRUNE])\n",
        "",
        "tests/kafka/test_status_rows.py::test_old_samples_are_pruned_by_the_owner_of_the_partition",
    ),
    breakage(
        "statements for display wait without limit",
        "ledger/status.py",
        'timeout=f"{round(TIMEOUT * 1000)}ms"',
        'timeout="0"',
        "tests/kafka/test_status_rows.py::test_a_locked_table_delays_no_batch_and_no_end",
    ),
    breakage(
        "a COMMIT of a run over a range is not looked up",
        "jobs/reprocess/apply_range.py",
        "        if self._is_unanswered and now.next_offset == end:\n",
        "        if False:\n",
        "tests/jobs/test_reprocess.py::test_a_commit_without_an_answer_is_looked_up_in_the_run",
    ),
    breakage(
        "a run over a range does not notice another process",
        "jobs/reprocess/apply_range.py",
        'if now.state != "open" or now.next_offset != start:',
        'if now.state != "open":',
        "tests/jobs/test_reprocess.py::test_a_reset_a_pause_and_another_process_end_a_run_which_is_resumed_later",
    ),
    breakage(
        "a run over a range is not compared with the position again",
        "jobs/reprocess/apply_range.py",
        "        require_range(start, now.to_offset, row.next_offset, log_start, self._at)\n",
        "",
        "tests/jobs/test_reprocess.py::test_a_reset_a_pause_and_another_process_end_a_run_which_is_resumed_later",
    ),
    breakage(
        "a run over a range writes live tables of a paused group",
        "jobs/reprocess/apply_range.py",
        "            check_group(group, self._pipeline, while_paused=False)\n",
        "            pass\n",
        "tests/jobs/test_reprocess.py::test_a_reset_a_pause_and_another_process_end_a_run_which_is_resumed_later",
    ),
    breakage(
        "a run over a range applies records of open dead letters",
        "jobs/reprocess/apply_range.py",
        "return (lambda record: record.offset in offsets) if offsets else nothing_left_out",
        "return nothing_left_out",
        "tests/jobs/test_reprocess.py::test_failures_at_commit_and_open_dead_letters",
    ),
    breakage(
        "a run over a range moves in another transaction than its rows",
        "ledger/sql/reprocess.py",
        '        _transaction == bindparam("transaction", type_=Text),\n',
        '        bindparam("transaction", type_=Text).is_not(None),\n',
        "tests/jobs/test_reprocess.py::test_a_handler_that_commits_ends_the_run_before_it_moves",
    ),
    breakage(
        "a resumed run over a range begins at its start",
        "jobs/reprocess/apply_range.py",
        "self._run.to_offset, self._run.next_offset\n",
        "self._run.to_offset, self._run.from_offset\n",
        "tests/jobs/test_reprocess.py::test_a_run_that_is_killed_at_random_under_a_live_worker_writes_each_record_once",
    ),
    breakage(
        "a run over a range loses what it could not apply",
        "jobs/reprocess/apply_range.py",
        "        if dead_letters:\n",
        "        if not dead_letters:\n",
        "tests/jobs/test_reprocess.py::test_failures_at_commit_and_open_dead_letters",
    ),
    breakage(
        "an Upsert without a guard is reprocessed into live tables",
        "jobs/reprocess/plan.py",
        'getattr(sink, "guarded", None) is False\n',
        "False\n",
        "tests/jobs/test_reprocess.py::test_live_tables_get_no_older_values_unless_that_is_accepted",
    ),
    breakage(
        "a handler is reprocessed into live tables",
        "jobs/reprocess/plan.py",
        "    if pipeline.handle is not None:\n        why.append(",
        "    if False:\n        why.append(",
        "tests/jobs/test_reprocess.py::test_live_tables_get_no_older_values_unless_that_is_accepted",
    ),
    breakage(
        "two operators reprocess one range",
        "jobs/reprocess/reprocess.py",
        "if (None if last is None else last.id) != plan.last_run:",
        "if False:",
        "tests/jobs/test_reprocess.py::test_ranges_that_are_no_part_of_log_and_position_are_refused",
    ),
    breakage(
        "a range is reprocessed from before the log",
        "jobs/reprocess/plan.py",
        "    if start < log_start:\n",
        "    if False:\n",
        "tests/jobs/test_reprocess.py::test_ranges_that_are_no_part_of_log_and_position_are_refused",
    ),
    Breakage(
        "a sweep asks the manifest only",
        (
            Edit("jobs/export/archive.py", " and file not in files_of_table(self.storage, topic)", ""),
            Edit("jobs/export/archive.py", "if file not in tables[_topic_of(file)]", "if tables is not None"),
        ),
        ("tests/jobs/export/test_delta.py::test_a_sweep_leaves_a_file_that_only_the_table_names",),
    ),
    breakage(
        "a listed file is removed though the Delta table names it",
        "jobs/export/archive.py",
        " and file not in files_of_table(self.storage, topic)",
        "",
        "tests/jobs/export/test_delta.py::test_a_file_that_the_table_names_since_the_strays_were_listed_is_not_removed",
    ),
    breakage(
        "a file taken over from the Delta table gets no checksum",
        "jobs/export/delta.py",
        "self._checksums.get(file)",
        "None",
        "tests/jobs/export/test_delta.py::test_a_file_of_the_table_that_was_changed_before_it_is_taken_over",
    ),
    breakage(
        "the exporter has the lag of a topic that was created again",
        "metrics/ledger.py",
        "if now[row.topic] == row.topic_id]",
        "if now[row.topic] is not None]",
        "tests/kafka/test_metrics.py::test_a_topic_that_was_created_again_has_no_lag",
    ),
    breakage(
        "the exporter says that it reads a ledger that is away",
        "metrics/ledger.py",
        """            self._note(error, "the ledger cannot be read")
            samples.add(of.LEDGER_UP, 0)
""",
        """            self._note(error, "the ledger cannot be read")
            samples.add(of.LEDGER_UP, 1)
""",
        "tests/kafka/test_metrics.py::test_a_database_that_is_away_is_a_metric",
    ),
    breakage(
        "a reader may not read what an exporter asks beside the views",
        "ledger/roles.py",
        """            "reload_run": ("id", "state", "changed_at"),
""",
        "",
        "tests/kafka/test_metrics.py::test_the_exporter_runs_with_the_rights_of_a_reader",
    ),
    breakage(
        "the doctor does not miss the right to read a column",
        "admin/check_postgres.py",
        "if (name, one) not in self.columns]",
        "if (name, one) in ()]",
        "tests/postgres/test_doctor.py::test_a_right_that_is_missing",
    ),
    breakage(
        "the doctor does not see a transaction that was left open after a write",
        "admin/check_postgres.py",
        "AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)",
        "AND backend_xmin IS NOT NULL",
        "tests/postgres/test_doctor.py::test_a_transaction_that_was_left_open",
    ),
    breakage(
        "the doctor takes a subscriber of logical changes for a standby",
        "admin/check_postgres.py",
        "AND s.slot_type = 'logical'",
        "AND s.slot_type = 'none'",
        "tests/postgres/test_doctor.py::test_a_server_that_may_lose_commits_or_takes_none",
    ),
    breakage(
        "the doctor sends a client without DESCRIBE to look for brokers",
        "admin/check_groups.py",
        "grant if isinstance(error, KafkaRefused) else CHECK_KAFKA",
        "CHECK_KAFKA",
        "tests/kafka/test_doctor.py::test_a_client_without_describe",
    ),
    breakage(
        "a worker shows a lag that is not known",
        "metrics/tally.py",
        "if at not in health.lag_unknown:",
        "if at is not None:",
        "tests/unit/test_metrics.py::test_a_lag_that_is_not_known_has_no_series",
    ),
    breakage(
        "one live worker hides that another one has ended",
        "metrics/samples.py",
        '{"max": max, "min": min}',
        '{"max": max, "min": max}',
        "tests/unit/test_metrics.py::test_two_workers_of_a_group_are_one_and_two_groups_are_two",
    ),
    breakage(
        "a roll ends an old worker before the new one has joined",
        "cli/supervisor.py",
        "        elif successor.has_joined:",
        "        elif not successor.has_joined:",
        f"{SUPERVISOR}::test_in_a_roll_the_new_one_joins_before_the_old_one_leaves",
    ),
    breakage(
        "a new worker has joined before it has claimed its partitions",
        "cli/workers_of_process.py",
        "return is_member and not self._claiming",
        "return is_member",
        "tests/unit/test_workers_of_process.py::test_a_worker_has_joined_once_it_has_claimed_what_it_was_given",
    ),
    breakage(
        "a roll onto code that does not start is tried for ever",
        "cli/supervisor.py",
        "        if successor.is_final or code == USAGE or slot.successors_ended >= TRIES:",
        "        if successor.is_final and slot.successors_ended > TRIES:",
        f"{SUPERVISOR}::test_a_roll_onto_code_that_does_not_start_is_abandoned",
    ),
    breakage(
        "a new worker that hangs in a roll takes the old one's place",
        "cli/supervisor.py",
        """            successor.kill()
            self._leaving.append(successor)
            slot.successor = None
""",
        """            child.kill()
            self._leaving.append(child)
            slot.child, slot.successor = successor, None
""",
        f"{SUPERVISOR}::test_a_new_child_that_hangs_is_killed_and_the_roll_abandoned",
    ),
    breakage(
        "a roll that is abandoned leaves the next worker's new process beside the old one",
        "cli/supervisor.py",
        "                other.successor.send(signal.SIGTERM)\n",
        "",
        f"{SUPERVISOR}::test_a_roll_that_is_abandoned_ends_the_next_workers_new_child",
    ),
    breakage(
        "the first signal after a drain by itself aborts batches",
        "cli/supervisor.py",
        "            self._code = code\n            self._drain()",
        "            self._code = code\n            self._end()",
        f"{SUPERVISOR}::test_the_first_signal_after_a_drain_by_itself_aborts_nothing",
    ),
    breakage(
        "a worker of before SIGHUP that exits as outdated ends all",
        "cli/supervisor.py",
        "elif is_final and child.generation < self._generation:",
        "elif is_final and child.generation > self._generation:",
        f"{SUPERVISOR}::test_a_child_of_before_sighup_that_exits_as_outdated_is_replaced",
    ),
    breakage(
        "new code that fails for good ends the old workers",
        "cli/supervisor.py",
        "elif is_final and not self._has_older(child):",
        "elif is_final:",
        f"{SUPERVISOR}::test_old_workers_survive_new_ones_that_end_for_good",
    ),
    breakage(
        "a worker process that hangs is left alone",
        "cli/supervisor.py",
        "                child.kill()\n",
        "                pass\n",
        f"{SUPERVISOR}::test_a_child_that_hangs_is_killed_once",
    ),
    breakage(
        "the parent is live although it cannot replace a worker process",
        "cli/supervisor.py",
        "since = [at for at in (self._looked_at, self._unable_since, *killed) if at is not None]",
        "since = [at for at in (self._looked_at, *killed) if at is not None]",
        f"{SUPERVISOR}::test_the_parent_is_not_live_only_where_it_cannot_replace_a_child",
    ),
    breakage(
        "what a worker process has counted goes with it",
        "metrics/processes.py",
        "for data in (self._ended, self._running.pop(process, {})):",
        "for data in (self._ended, self._running.pop(process, {}))[:1]:",
        "tests/unit/test_metrics.py::test_counters_of_processes_that_have_ended_stay_in_the_sum",
    ),
    breakage(
        "where one pipeline of a process ends, the others stay",
        "cli/workers_of_process.py",
        "                self._abort(news, left)\n            self.stop()\n",
        "                self._abort(news, left)\n",
        "tests/kafka/test_process.py::test_of_several_pipelines_one_that_ends_by_an_error_drains_all",
    ),
    breakage(
        "a transaction's span is not current inside the handler",
        "tracing.py",
        "token = context.attach(trace.set_span_in_context(span))",
        "token = context.attach(context.Context())",
        "tests/kafka/test_tracing.py::test_a_transaction_is_one_consumer_span_with_the_handlers_spans_in_it",
    ),
    breakage(
        "a span has the text of an error",
        "tracing.py",
        "span.set_status(Status(StatusCode.ERROR))",
        "span.set_status(Status(StatusCode.ERROR, str(error)))",
        "tests/unit/test_tracing.py::test_an_error_is_its_class_alone",
    ),
    breakage(
        "records that are read while a batch is applied are not linked",
        "tracing.py",
        "                span.add_link(link.context)\n",
        "                pass\n",
        "tests/unit/test_tracing.py::test_each_producers_span_is_linked_once_also_of_records_that_come_later",
    ),
    breakage(
        "of two sinks of a table, the rows of one are counted",
        "worker/unit_of_work.py",
        "rows[name] = rows.get(name, 0) + count",
        "rows[name] = count",
        "tests/postgres/test_sink_rows.py::test_of_several_sinks_of_a_table_and_beside_a_handler",
    ),
    breakage(
        "the console answers a host of any name",
        "web/guard.py",
        "if not (is_loopback(name) or name in self._hosts):",
        "if not name:",
        "tests/web/test_requests.py::test_other_hosts_are_refused",
    ),
    breakage(
        "the console takes forms of other sites",
        "web/guard.py",
        'if site not in {None, "same-origin"} or (',
        "if False and (",
        "tests/web/test_actions.py::test_forms_of_other_sites_are_refused",
    ),
    breakage(
        "a form of the console is good twice",
        "web/tokens.py",
        "until <= now or token in self._redeemed",
        "until <= now",
        "tests/web/test_actions.py::test_a_token_is_redeemed_once_and_forgotten_after_an_hour",
    ),
    breakage(
        "a pause is carried out again by another process",
        "admin/pauses.py",
        "scalar_one() != plan.last_pause",
        "scalar_one() == ()",
        "tests/web/test_actions.py::test_another_process_refuses_a_pause_and_a_resume_that_were_carried_out",
    ),
    breakage(
        "a replay is requested again by another process",
        "admin/replay_requests.py",
        "if last_request not in {None, _last_request(tx)}:",
        "if False:",
        "tests/web/test_actions.py::test_another_process_refuses_a_replay_that_was_requested",
    ),
    breakage(
        "a dead letter is discarded by a plan that was made before it",
        "worker/replay/dead_letter_admin.py",
        "now.dead_lettered_at > as_of",
        "False",
        "tests/web/test_actions.py::test_another_process_refuses_a_discard_that_was_carried_out",
    ),
    breakage(
        "a loss is accepted twice",
        "admin/losses.py",
        "if last.get(where) != each.last_reset:",
        "if False:",
        "tests/postgres/ledger/test_reset_plans.py::test_a_loss_is_accepted_once",
    ),
    breakage(
        "a form of the console is good for ever",
        "web/tokens.py",
        "until <= now or token in self._redeemed",
        "token in self._redeemed",
        "tests/web/test_actions.py::test_a_form_is_good_for_an_hour",
    ),
    breakage(
        "a form of the console is good for any plan",
        "web/tokens.py",
        "for part in (head, user, form, plan)]",
        "for part in (head, user, form)]",
        "tests/web/test_actions.py::test_forged_forms_are_refused",
    ),
    breakage(
        "a user who may read sends forms",
        "web/site.py",
        "self._require(access, Right.OPERATE)",
        "self._require(access, Right.READ)",
        "tests/web/test_actions.py::test_a_user_who_may_no_longer_operate_sends_no_form",
    ),
    breakage(
        "the partitions of a dead worker look alive on the console",
        "web/present.py",
        "each.is_live and each.owner == at.position.owner",
        "each.owner == at.position.owner",
        "tests/web/test_pages.py::test_a_group_whose_workers_are_dead_has_no_worker_on_any_page",
    ),
    breakage(
        "the console shows texts of errors in its JSON",
        "web/pages.py",
        "found if self._site.shows_payloads else _without_texts(found)",
        "found",
        "tests/web/test_payloads.py::test_without_payloads_nothing_of_a_record_is_shown",
    ),
    breakage(
        "the console quotes headers in a plan",
        "worker/replay/preconditions.py",
        "{name} is not whole: its headers cannot be read, and",
        "{name} is not whole: {dead_letter.error}, and",
        "tests/web/test_payloads.py::test_without_payloads_nothing_of_a_record_is_shown",
    ),
    breakage(
        "transactions of the console's pages may write",
        "web/reading.py",
        "set_config('transaction_read_only', 'on', true)",
        "set_config('transaction_read_only', 'off', true)",
        "tests/web/test_actions.py::test_transactions_of_pages_cannot_write",
    ),
    breakage(
        "a reader that was given to the console may write",
        "web/reading.py",
        "reading(reader or reader_of(admin))",
        "reader or reading(reader_of(admin))",
        "tests/web/test_actions.py::test_transactions_of_a_given_reader_cannot_write",
    ),
    breakage(
        "an option has another help than the reference of commands",
        "cli/options.py",
        'help="Print JSON."',
        'help="Print JSON, for programs."',
        "tests/docs/test_commands.py::test_the_reference_has_the_options_as_the_code_has_them",
    ),
)
