"""The breakages of what becomes of records that fail."""

from __future__ import annotations

from mutants.breakages import Breakage, Edit, breakage

ISOLATION = "tests/kafka/test_isolation.py"
MATRIX = "tests/postgres/test_failure_matrix.py::test_where_a_record_ends"
PROPERTY = "tests/kafka/test_poison_property.py::test_each_offset_that_is_passed_ended_once"

KILLERS = "tests/kafka/test_crashing_records.py"
ONE_RECORD = "tests/kafka/test_errors_of_one_record.py"

FAILING = (
    breakage(
        "a mistake of the program blamed on a record without another one applied",
        "worker/apply.py",
        "        if is_proven:\n            return failed.cause\n",
        "        if True:\n            return failed.cause\n",
        f"{ONE_RECORD}::test_a_mistake_that_every_record_meets_ends_the_worker_and_moves_nothing",
        f"{ONE_RECORD}::test_a_batch_of_one_proves_nothing_and_stops_its_partition_alone",
    ),
    breakage(
        "a transient error makes a dead letter",
        "worker/failure_policy.py",
        "NEVER_PASSED = frozenset({Cause.TRANSIENT, Cause.PROGRAM})\n",
        "NEVER_PASSED = frozenset({Cause.PROGRAM})\n",
        f"{ONE_RECORD}::test_a_transient_error_of_one_record_is_an_attempt_and_then_stops",
    ),
    breakage(
        "dead letters parked in another transaction",
        "worker/unit_of_work.py",
        "            self._dead_letters.insert(tx, dead_letters, topic_ids, self._pipeline.version)\n",
        "            with self._ledger.engine.begin() as other:\n"
        "                self._dead_letters.insert(other, dead_letters, topic_ids, self._pipeline.version)\n",
        f"{ISOLATION}::test_i1_a_dead_letter_becomes_visible_with_the_offset_that_passes_it",
    ),
    breakage(
        "offset not passed over a parked record",
        "worker/failure_policy.py",
        "        outcome.add_dead_letter(NewDeadLetter(raw, failure, state))\n",
        "        outcome.add_dead_letter(NewDeadLetter(raw, failure, state))\n"
        "        outcome.stop_at(poison_stop(pipeline.group, raw, failure))\n",
        f"{MATRIX}[CHECK-streamed Append-dead_letter]",
    ),
    breakage(
        "offset passed over a cut record",
        "worker/open_batch.py",
        "    if stop is None:\n        return read.move()\n",
        "    if stop is None or stop.offset:\n        return read.move()\n",
        f"{MATRIX}[CHECK-streamed Append-stop]",
        f"{PROPERTY}[2]",
    ),
    breakage(
        "parked without a row",
        "worker/unit_of_work.py",
        "        if dead_letters := result.dead_letters:\n",
        "        if dead_letters := []:\n",
        f"{PROPERTY}[0]",
    ),
    breakage(
        "held key not checked",
        "worker/open_batch.py",
        "        return first is not None and first < record.offset\n",
        "        return first is not None and first < 0\n",
        f"{PROPERTY}[0]",
    ),
    breakage(
        "dead keys forgotten between batches",
        "worker/unit_of_work.py",
        "        return held, self._dead_letters.open_keys(tx, [e.claim.partition for e in expected])\n",
        "        return held, {}\n",
        "tests/postgres/test_replay_order.py",
    ),
    breakage(
        "attempt not noted before a lone try",
        "worker/single_attempts.py",
        "            if not self._is_recorded(lambda: self._ledger.record_attempts_alone([(single.claim, "
        "attempt)])):\n"
        "                return\n",
        "",
        f"{PROPERTY}[6]",
    ),
    Breakage(
        "part of a suspect range not on record before it is tried",
        (
            Edit(
                "worker/single_attempts.py",
                "        if not part.is_noted and not self._is_recorded(",
                "        if False and not self._is_recorded(",
            ),
            Edit(
                "worker/unit_of_work.py",
                "            self._ledger.record_suspects(tx, [SuspectNote(read.claim, suspects.end, part_end)])\n",
                "            self._ledger.record_suspects(tx, [SuspectNote(read.claim, suspects.end, None)])\n",
            ),
        ),
        (f"{KILLERS}::test_one_crashing_record_costs_five_crashes_and_at_most_two_hundred_transactions",),
    ),
    Breakage(
        "suspect range drawn at each claim",
        (
            Edit(
                "worker/assignment/scheduler.py",
                "        new = [c for c in claims if c.suspect_end is None and c.unreleased >= retry.crashes]\n",
                "        new = [c for c in claims if c.unreleased >= retry.crashes]\n",
            ),
            Edit(
                "ledger/sql/partition_offset.py",
                "offset.suspect_end > offset.next_offset), offset.suspect_end),\n            else_",
                "offset.suspect_end > offset.next_offset), _range.c.end_offset),\n            else_",
            ),
        ),
        (f"{KILLERS}::test_kills_within_a_suspect_range_neither_redraw_nor_extend_it",),
    ),
    Breakage(
        "suspect range noted without the claim",
        (
            Edit("ledger/sql/partition_offset.py", ", offset.token == SUSPECTED.c.token)", ")"),
            Edit("ledger/sql/partition_offset.py", ", offset.token == _range.c.token)", ")"),
        ),
        ("tests/postgres/ledger/test_attempts.py::test_i2_a_suspect_range_is_noted_under_the_claim_alone",),
    ),
    breakage(
        "supersede left out of a reset",
        "ledger/admin_actions.py",
        '        to_offset=to,\n        actor=actor,\n        reason=f"reset',
        '        to_offset=2**62,\n        actor=actor,\n        reason=f"reset',
        "tests/postgres/test_dead_letter_store.py::test_a_move_supersedes_what_will_be_read_again",
    ),
    Breakage(
        "replay without locks and without a look at the state",
        (
            Edit(
                "ledger/sql/dead_letters.py",
                "LOCK_DEAD_LETTER = GET_DEAD_LETTER.with_for_update()\n",
                "LOCK_DEAD_LETTER = GET_DEAD_LETTER\n",
            ),
            Edit(
                "ledger/sql/dead_letters.py",
                '_dead_letter.id == bindparam("closing", type_=BigInteger), IS_OPEN)',
                '_dead_letter.id == bindparam("closing", type_=BigInteger))',
            ),
            Edit(
                "ledger/dead_letters.py",
                "            scope.execute(LOCK_ROW, topic=where.topic, partition=where.partition).one_or_none()\n",
                "",
            ),
        ),
        ("tests/postgres/test_replay.py::test_two_operators_at_once_apply_it_once",),
    ),
    breakage(
        "wait not honoured",
        "worker/assignment/backlog.py",
        "            wait = max(wait, self._retry_at - at.steady)\n",
        "            wait = max(wait, 0.0)\n",
        "tests/kafka/test_retry_waits.py::test_the_schedule_is_kept_and_announced_and_the_others_resume",
    ),
    breakage(
        "records set aside kept when their partition is dropped",
        "worker/open_batch.py",
        "        self._dead_letters = {at: one for at, one in self._dead_letters.items() if at[0] not in partitions}\n",
        "",
        f"{ISOLATION}::test_i4_dead_letters_of_a_refused_partition_are_dropped_with_it",
    ),
    Breakage(
        "quarantine counted before COMMIT",
        (
            Edit("worker/unit_of_work.py", "        self._limits.count(counts)\n", ""),
            Edit(
                "worker/unit_of_work.py",
                "                self._insert_dead_letters(tx, result)\n",
                "                self._limits.count(counts)\n                self._insert_dead_letters(tx, result)\n",
            ),
        ),
        (f"{ISOLATION}::test_an_attempt_that_was_not_committed_counts_for_no_limit",),
    ),
    breakage(
        "isolation without savepoints",
        "worker/apply.py",
        "            self._tx.savepoints.undo()\n            return self._failure(failed, part)",
        "            return self._failure(failed, part)",
        f"{MATRIX}[CHECK-execute-dead_letter]",
    ),
    breakage(
        "records behind a retry go on without it",
        "worker/failure_policy.py",
        "        outcome.stop_at(later)\n",
        "        outcome.stop_at(later)\n        outcome.stops[partition].offset += 1\n",
        "tests/kafka/test_retry_waits.py",
        f"{PROPERTY}[8]",
    ),
)
