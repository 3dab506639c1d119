"""What each error asks for, decided without a database."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors as pg

from seekpoint import Partition, events
from seekpoint.errors import Fenced, HandlerMisuse, KafkaUnavailable
from seekpoint.postgres.session import CommitRefused, CommitUnanswered, SentRowsFailed
from seekpoint.postgres.sqlstates import fault_of
from seekpoint.records import Cause
from seekpoint.testing import raw
from seekpoint.worker.failed import TRIES, Failed, Mode
from seekpoint.worker.recovery import (
    DropPartitions,
    GiveUp,
    Isolate,
    RunAgain,
    TopicIdMismatch,
    recovery_for,
)

FIRST, LAST = Mode(), Mode(attempt=TRIES)
LOST = psycopg.OperationalError("server closed the connection unexpectedly")
STALE = pg.FeatureNotSupported("cached plan must not change result type")


def failed(error: Exception, **options: Any) -> Failed:
    fault = fault_of(error)
    assert fault is not None
    return Failed(error, Cause.DATABASE, fault=fault, **options)


def test_a_refusal_asks_the_ledger_and_gives_up_where_it_sees_no_reason_again_and_again() -> None:
    assert recovery_for(Fenced("no"), FIRST) == DropPartitions("no")
    assert recovery_for(Fenced("no"), LAST) == DropPartitions("no", gives_up=True)


def test_a_refusal_has_the_notes_of_its_error() -> None:
    """A transaction that was ended by its age may be refused: the note says how long it took."""
    fenced = Fenced("the claim is another's")
    fenced.add_note("the transaction had taken 301.0 s")
    assert recovery_for(fenced, FIRST) == DropPartitions("the claim is another's (the transaction had taken 301.0 s)")


@pytest.mark.parametrize("attempt", [FIRST, LAST])
def test_partitions_of_another_topic_are_dropped(attempt: Mode) -> None:
    mismatches = {Partition(str(uuid4()), 0): None}
    assert recovery_for(TopicIdMismatch(mismatches), attempt) == DropPartitions(mismatches=mismatches)


def test_a_record_that_is_named_is_known_and_one_that_is_not_is_searched_for() -> None:
    error, bad = pg.CheckViolation("no"), raw(b"")
    recovery = recovery_for(failed(error, named=[bad]), FIRST)
    assert isinstance(recovery, Isolate)
    assert recovery == Isolate(events.Bisecting(error=error), [(bad, error, Cause.DATABASE)])
    any_of_them = failed(pg.CheckViolation("no"))
    recovery = recovery_for(any_of_them, LAST)
    assert isinstance(recovery, Isolate)
    assert recovery.known is any_of_them, "not tried as a whole again"


def test_an_error_that_may_pass_is_tried_as_a_whole_first() -> None:
    error = pg.DeadlockDetected("no")
    deadlock = failed(error)
    assert recovery_for(deadlock, FIRST) == RunAgain(events.DatabaseTrouble(error=error))
    recovery = recovery_for(deadlock, LAST)
    assert isinstance(recovery, Isolate)
    assert recovery.known is None


def test_a_statement_that_took_too_long_is_never_tried_as_a_whole_again() -> None:
    error = pg.QueryCanceled("too long")
    timeout = failed(error)
    assert recovery_for(timeout, FIRST) == Isolate(events.DatabaseTrouble(error=error), known=timeout)


@pytest.mark.parametrize(
    "kind", [pg.DatatypeMismatch, pg.UndefinedFunction, pg.UndefinedColumn, pg.IndeterminateDatatype]
)
def test_a_statement_that_may_be_of_before_an_alter_is_made_again_before_a_record_is_blamed(kind: Any) -> None:
    error = kind("no")
    assert recovery_for(failed(error, named=[raw(b"")]), FIRST) == RunAgain(events.DatabaseTrouble(error=error))
    assert isinstance(recovery_for(failed(error), Mode(attempt=2)), Isolate)


def test_a_mistake_of_the_program_is_searched_for() -> None:
    mistake = failed(pg.UndefinedTable("no"))
    recovery = recovery_for(mistake, FIRST)
    assert isinstance(recovery, Isolate)
    assert (recovery.named, recovery.known) == ((), mistake)


def test_brokers_that_do_not_answer_are_asked_again_and_then_given_up() -> None:
    recovery = recovery_for(KafkaUnavailable("none"), FIRST)
    assert isinstance(recovery, RunAgain)
    assert recovery.ask_topic_ids
    assert recovery_for(KafkaUnavailable("none"), LAST) == GiveUp()


@pytest.mark.parametrize("error", [LOST, CommitUnanswered(LOST)])
def test_a_lost_connection_asks_the_ledger_and_runs_the_same_again(error: Exception) -> None:
    assert recovery_for(error, FIRST) == RunAgain(events.DatabaseTrouble(error=LOST), reconcile=True)
    assert recovery_for(error, LAST) == GiveUp()


def test_a_stale_plan_needs_another_connection_and_nothing_else() -> None:
    assert recovery_for(STALE, FIRST) == RunAgain(events.DatabaseTrouble(error=STALE))
    assert recovery_for(failed(STALE), FIRST) == RunAgain(events.DatabaseTrouble(error=STALE))


def test_a_deferred_constraint_that_refuses_commit_is_checked_after_each_part() -> None:
    refused = CommitRefused(pg.UniqueViolation("no"))
    recovery = recovery_for(refused, LAST)
    assert isinstance(recovery, Isolate)
    assert (recovery.checks_deferred, recovery.known) == (True, None)
    assert recovery_for(refused, Mode(checks_deferred=True)) == GiveUp(), "it is not a record's"


def test_a_commit_that_may_pass_is_tried_again_and_then_searched() -> None:
    error = pg.SerializationFailure("no")
    assert recovery_for(CommitRefused(error), FIRST) == RunAgain(events.DatabaseTrouble(error=error))
    recovery = recovery_for(CommitRefused(error), LAST)
    assert isinstance(recovery, Isolate)
    assert recovery.checks_deferred


def test_rows_that_left_with_the_advance_are_sent_again_as_a_whole() -> None:
    recovery = recovery_for(SentRowsFailed(pg.CheckViolation("no")), FIRST)
    assert isinstance(recovery, Isolate)
    assert recovery.known is None, "by COPY, whose error names the row"
    assert recovery_for(SentRowsFailed(LOST), FIRST) == RunAgain(events.DatabaseTrouble(error=LOST), reconcile=True)


@pytest.mark.parametrize("error", [HandlerMisuse("no"), ValueError("no"), pg.UndefinedTable("no")])
def test_anything_else_is_raised(error: Exception) -> None:
    assert recovery_for(error, FIRST) == GiveUp()
