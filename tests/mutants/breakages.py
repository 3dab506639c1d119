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
MOVE = "tests/postgres/ledger/test_move.py"
WORKER = "tests/kafka/test_worker.py"
UNIT_OF_WORK = "tests/postgres/test_unit_of_work.py"
LENT = "tests/postgres/test_handler_sessions.py"
UPSERT = "tests/postgres/test_upsert.py"
INTERLEAVINGS = "tests/kafka/test_interleavings.py"
KAFKA = "tests/kafka/test_kafka_faults.py"
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
_ADMINISTRATION = "ledger/sql/admin.py"
_TOKEN = (
    Edit(_STATEMENTS, "    offset.token == HELD.c.token,  # I2: only the holder of the current claim\n", ""),
    Edit(_STATEMENTS, "        offset.token == _moving.c.token,  # I2\n", ""),
)
_POSITION = (
    Edit(
        _STATEMENTS,
        "    offset.next_offset == HELD.c.from_offset,  # I3: only from the exact position that was read\n",
        "",
    ),
    Edit(_STATEMENTS, "        offset.next_offset == _moving.c.from_offset,  # I3\n", ""),
)
_COUNTER = 'func.lpad(func.to_hex(offset.epoch + 1), 32, "0").cast(Uuid)'
_NO_LOOK_BEFORE_COMMIT = Edit(
    "worker/unit_of_work.py",
    "        if mismatches := self._owner.topic_id_mismatches(identity, list(result.reads)):",
    "        if mismatches := {}:",
)

UNKNOWN = f"{KAFKA}::test_i4_nothing_of_a_topic_that_was_deleted_after_the_last_read_commits"

BREAKAGES = (
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
        f"{MOVE}::test_what_was_not_read_of_a_recreated_topic_is_a_row[0]",
    ),
    breakage(
        "what a truncation took is no row",
        "ledger/admin_actions.py",
        "    if log is not None and log[1] < at:",
        "    if False:",
        f"{MOVE}::test_what_a_truncation_took_is_a_row[3]",
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
                "Read(placed.claim, placed.cursor, placed.cursor)",
                "Read(placed.claim, placed.claim.next_offset, placed.cursor)",
            ),
            Edit(
                "worker/assignment/worker_assignment.py",
                "Expected(at.claim, starts.get(p, at.position))",
                "Expected(at.claim, at.claim.next_offset)",
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
                "            moved = self._ledger.advance(tx, result.moves, held) if result.moves else []\n",
                "",
            ),
            Edit(
                "worker/unit_of_work.py",
                "        self._owner.accept(moved)\n",
                "        moved = self._ledger.advance_alone(result.moves) if result.moves else []\n"
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
        "        if partition in self._partitions.revoked:",
        "        if False:",
        "tests/unit/test_reconcile.py::test_a_revoked_partition_is_not_read_again",
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
        "None if self._assignment.has_revoked or self._stopping",
        "None if self._stopping",
        f"{REBALANCE}::test_an_open_batch_reads_nothing_more_after_a_revocation",
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
                "            held, dead_keys = self._hold(tx, batch.buffer.starts)\n",
                "            held, dead_keys = None, None\n"
                "            if mode.attempt == 1:\n"
                "                held, dead_keys = self._hold(tx, batch.buffer.starts)\n",
            ),
            Edit(
                "worker/unit_of_work.py",
                "            moved = self._ledger.advance(tx, result.moves, held) if result.moves else []\n",
                "            moved = [] if mode.attempt > 1 else self._ledger.advance(tx, result.moves, held)\n",
            ),
        ),
        (f"{LOST}::test_a_commit_that_took_effect_and_was_not_answered",),
    ),
    breakage(
        "a move that draws no token",
        _ADMINISTRATION,
        '        token=bindparam("to_token", type_=Uuid),\n',
        '        token=func.coalesce(offset.token, bindparam("to_token", type_=Uuid)),\n',
        f"{MOVE}::test_a_move_fences_the_owner",
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
        "offset < placed.cursor or at in self.revoked",
        "offset < placed.cursor",
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
        "        placed.cursor = read.end = last + 1\n",
        "        placed.cursor, read.end = last + 1, last\n",
        f"{WORKER}::test_one_record_is_written_at_once_in_a_transaction_of_its_own",
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
                '        "attempts": case((and_(offset.attempt_running, _alive), offset.attempts - 1), '
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
        "few rows go where COPY would not",
        "sinks/small_append.py",
        "if few.rows and not (recalled(tx, path).is_plain and _left(",
        "if few.rows and not (_left(",
        f"{ROADS}::test_a_rule_sees_no_rows_however_few[1]",
        f"{ROADS}::test_a_view_is_refused_however_few_the_rows[1]",
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
        "few rows are sent by the types that the session saw first",
        "sinks/small_append.py",
        "(SAME_TYPES, same)",
        '("SELECT 1", ())',
        f"{ROADS}::test_a_column_that_becomes_json_while_few_rows_come",
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
)
