"""How often a record was tried is on record under the claim, and outlives the process that tried it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from postgres.ledger.test_group import refused_at_hold
from seekpoint.errors import Fenced
from seekpoint.ledger import Attempt, Claim, SuspectNote
from seekpoint.records import SAID
from support.ledger_worker import LedgerWorker

NewLedgerWorker = Callable[..., LedgerWorker]

FAILED = Attempt(3, 1, "ValueError: three", wait=60.0, allowed=5, then="stop")


def begun(offset: int, number: int) -> Attempt:
    """An attempt that is about to begin."""
    return Attempt(offset, number, allowed=5, then="dead_letter")


def granted(worker: LedgerWorker, number: int = 0) -> Claim:
    worker.claim(number)
    return worker.claims[number]


def on_record(worker: LedgerWorker) -> Attempt:
    attempt = granted(worker).attempt
    assert attempt is not None
    return attempt


def test_a_failure_is_noted_after_the_advance_for_the_next_owner(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine
) -> None:
    """I1, I4: progress before the record and the record's own count become visible together."""
    worker, successor = new_worker(positions={0: 0, 1: 0}), new_worker()
    with seekpoint_engine.begin() as tx:
        moved = worker.work(tx, {0: 3, 1: 9})
        [noted] = worker.ledger.record_attempts(tx, [(worker.claims[0], FAILED)])
        assert (
            worker.ledger.positions_of([worker.topic_partition(0)], locked=False)[
                worker.topic_partition(0)
            ].attempt_offset
            is None
        )
    assert noted.attempt == FAILED
    worker.accept(moved)
    worker.ledger.release(worker.claims.values())
    attempt = on_record(successor)
    assert (attempt.offset, attempt.number, attempt.error) == (3, 1, "ValueError: three")
    assert (attempt.allowed, attempt.then, attempt.crashes) == (5, "stop", 0)
    assert attempt.wait is not None
    assert 0 < attempt.wait <= 60
    assert granted(successor, 1).attempt is None


def test_an_abort_takes_the_note_away(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I1: the attempt is counted with the batch, or not at all."""
    worker = new_worker(positions={0: 0})
    with seekpoint_engine.connect() as tx:
        worker.work(tx, {0: 3})
        worker.ledger.record_attempts(tx, [(worker.claims[0], FAILED)])
        tx.rollback()
    assert granted(worker).attempt is None


def test_a_wait_is_never_negative_and_may_be_none(new_worker: NewLedgerWorker) -> None:
    """I4: a retry that is long due is due now; if no retry is scheduled, there is no time at all."""
    worker, other = new_worker(), new_worker()
    worker.ledger.record_attempts_alone([(granted(worker), Attempt(0, 2, "x", wait=-10.0))])
    assert on_record(other).wait == 0.0
    other.ledger.record_attempts_alone([(other.claims[0], Attempt(0, 5, "x", wait=None))])
    assert on_record(worker).wait is None
    worker.ledger.record_attempts_alone([(worker.claims[0], Attempt(0, 6, "x", wait=1e300))])
    wait = on_record(other).wait
    assert wait is not None
    assert wait > 1e8


def test_who_does_not_come_back_is_counted(new_worker: NewLedgerWorker) -> None:
    """I4: an attempt that was begun, and then the partition is claimed by another process: it killed its own."""
    first, two, three = new_worker(), new_worker(), new_worker()
    first.ledger.record_attempts_alone([(granted(first), begun(0, 1))])
    attempt = on_record(two)
    assert (attempt.offset, attempt.number, attempt.error, attempt.crashes) == (0, 1, None, 1)
    assert (attempt.allowed, attempt.then) == (5, "dead_letter")
    two.ledger.record_attempts_alone([(two.claims[0], begun(0, 2))])
    attempt = on_record(three)
    assert (attempt.number, attempt.error, attempt.crashes) == (2, None, 2)
    assert three.claims[0].unreleased == 2
    # Claimed once more, by any worker: it was not tried since.
    assert (on_record(first).number, on_record(first).crashes) == (2, 2)


def test_a_late_release_leaves_the_next_owners_attempt(new_worker: NewLedgerWorker) -> None:
    """I2: if it were cancelled, a crash in it would not be counted."""
    previous, owner = new_worker(positions={0: 0}), new_worker()
    owner.ledger.record_attempts_alone([(granted(owner), begun(0, 1))])
    previous.ledger.release(previous.claims.values())
    assert (owner.row().attempts, owner.row().attempt_running) == (1, True)
    assert on_record(previous).crashes == 1


@pytest.mark.parametrize("how", ["released", "claimed again by itself"])
def test_an_attempt_that_was_given_up_is_taken_back(new_worker: NewLedgerWorker, how: str) -> None:
    """I4: a process that goes in order while a record is in its hands was not killed by it; nor is it counted twice."""
    worker, other = new_worker(), new_worker()
    worker.ledger.record_attempts_alone([(granted(worker), begun(0, 1))])
    other.ledger.record_attempts_alone([(granted(other), begun(0, 2))])  # the first one died; the second one is at it
    if how == "released":
        other.ledger.release(other.claims.values())
        attempt = on_record(worker)
    else:
        attempt = on_record(other)
    assert (attempt.number, attempt.error, attempt.crashes) == (1, None, 1), "the one that died still counts"
    again = on_record(worker if how == "released" else other)
    assert again.number == 1, "it is taken back once, however often the partition is claimed"


def test_the_only_attempt_that_is_taken_back_leaves_nothing(new_worker: NewLedgerWorker) -> None:
    """I4: a rebalance in the middle of the first try is no try."""
    worker = new_worker()
    worker.ledger.record_attempts_alone([(granted(worker), begun(0, 1))])
    assert worker.ledger.read()[0].attempt_running
    worker.ledger.release(worker.claims.values())
    assert granted(worker).attempt is None
    [position] = worker.ledger.read()
    assert (position.attempt_offset, position.attempts, position.attempt_running) == (None, 0, False)


def test_an_error_outlives_the_next_attempt_that_is_given_up(new_worker: NewLedgerWorker) -> None:
    """I4: failed twice, stopped in order during the third try: two failures are on record, and due at once."""
    worker, successor = new_worker(), new_worker()
    worker.ledger.record_attempts_alone(
        [(granted(worker), Attempt(0, 2, "ValueError: two", wait=0.0, allowed=5, then="stop"))]
    )
    worker.ledger.record_attempts_alone([(worker.claims[0], begun(0, 3))])
    worker.ledger.release(worker.claims.values())
    attempt = on_record(successor)
    assert (attempt.number, attempt.error, attempt.wait, attempt.crashes) == (2, "ValueError: two", 0.0, 0)


def test_failures_are_no_crashes(new_worker: NewLedgerWorker) -> None:
    """I4: failed three times, and its process was killed in the fourth try: one crash, not four."""
    worker, successor = new_worker(), new_worker()
    worker.ledger.record_attempts_alone([(granted(worker), Attempt(0, 3, "ValueError", wait=0.0))])
    worker.ledger.record_attempts_alone([(worker.claims[0], begun(0, 4))])
    attempt = on_record(successor)
    assert (attempt.number, attempt.error, attempt.crashes) == (4, None, 1)
    successor.ledger.record_attempts_alone([(successor.claims[0], Attempt(0, 5, "KeyError"))])
    attempt = on_record(worker)
    assert (attempt.number, attempt.error, attempt.crashes) == (5, "KeyError", 1)
    worker.ledger.record_attempts_alone([(worker.claims[0], Attempt(1, 1, "KeyError"))])
    assert on_record(successor).crashes == 0, "another record begins anew"


def test_an_attempt_past_the_position_is_answered_and_one_before_it_is_not(new_worker: NewLedgerWorker) -> None:
    """I3: compaction may have taken what lies between position and record; what was passed is over."""
    worker = new_worker(positions={0: 5})
    worker.ledger.record_attempts_alone([(worker.claims[0], Attempt(8, 1, "x"))])
    assert on_record(worker).offset == 8
    worker.ledger.record_attempts_alone([(worker.claims[0], Attempt(5, 1, "x"))])
    assert on_record(worker).offset == 5
    worker.ledger.record_attempts_alone([(worker.claims[0], Attempt(4, 1, "x"))])
    assert granted(worker).attempt is None


CLEARED = {"advance": True, "move": True, "release": False, "pause": False, "claim": False}


@pytest.mark.parametrize("event", CLEARED)
def test_progress_and_moves_clear_it_and_nothing_else_does(new_worker: NewLedgerWorker, event: str) -> None:
    """I4: what is on record is about the record at the position."""
    worker, other = new_worker(), new_worker()
    worker.ledger.record_attempts_alone([(granted(worker), Attempt(0, 2, "x", wait=5.0, allowed=3, then="stop"))])
    match event:
        case "advance":
            worker.commit({0: 1})
        case "move":
            worker.ledger.reset_offset("t", 0, to=0, log=None, reason="again")
        case "release":
            worker.ledger.release(worker.claims.values())
        case "pause":
            worker.ledger.pause(reason="x")
            worker.ledger.resume()
        case _:
            other.claim(0)
    row, [position] = worker.row(), worker.ledger.read()
    kept = (row.attempt_offset, row.attempts, row.attempt_error, row.attempts_allowed, row.attempt_policy)
    if CLEARED[event]:
        assert kept == (None, 0, None, None, None)
        assert (row.attempt_crashes, row.attempt_running, row.retry_at) == (0, False, None)
        assert granted(worker).attempt is None
    else:
        assert kept == (0, 2, "x", 3, "stop")
        assert (position.attempt_offset, position.attempts, position.attempt_error) == (0, 2, "x")
        assert (position.attempts_allowed, position.attempt_policy) == (3, "stop")
        assert position.retry_at is not None
        assert on_record(worker).number == 2


def test_a_zombies_note_is_refused(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I2: a worker that lost one of its partitions writes nothing of any, alone or within its transaction."""
    zombie, successor = new_worker(positions={0: 0, 1: 0}), new_worker(positions={0: 0})
    before = successor.row(0), successor.row(1)
    notes = [(zombie.claims[n], FAILED) for n in (0, 1)]
    with pytest.raises(Fenced, match="the claim is not the expected one; rows locked: 1"):
        zombie.ledger.record_attempts_alone(notes)
    with pytest.raises(Fenced), seekpoint_engine.begin() as tx:
        zombie.ledger.record_attempts(tx, notes)
    assert (successor.row(0), successor.row(1)) == before
    refused_at_hold(zombie, seekpoint_engine)
    successor.commit({0: 1})


def test_a_note_does_not_ask_for_the_position(new_worker: NewLedgerWorker) -> None:
    """I2: it may come after the advance of its own transaction, with the claim from before."""
    worker = new_worker()
    before = granted(worker)
    worker.commit({0: 3})
    [noted] = worker.ledger.record_attempts_alone([(before, FAILED)])
    assert noted.token == worker.row().token
    assert worker.positions() == {0: 3}


def test_an_error_of_any_text_can_be_noted(new_worker: NewLedgerWorker) -> None:
    """I4: neither a NUL nor a length makes the note itself fail; the row stays small enough for its page."""
    worker = new_worker()
    worker.ledger.record_attempts_alone([(granted(worker), Attempt(0, 1, "a\0b\ud800" + "ü" * 100_000, wait=0.0))])
    error = on_record(worker).error
    assert error is not None
    assert error.startswith("a\\x00b\\ud800ü")
    assert len(error) < SAID + 20


def test_claims_tell_how_many_owners_went_without_a_word(new_worker: NewLedgerWorker) -> None:
    """I4: what a worker needs to know before it passes a whole batch; its own progress begins again."""
    first, two, three = new_worker(), new_worker(), new_worker()
    assert granted(first).unreleased == 0
    assert granted(two).unreleased == 1
    assert granted(three).unreleased == 2
    three.commit({0: 1})
    assert three.claims[0].unreleased == 0
    assert granted(three).unreleased == 0
    assert granted(first).unreleased == 1
    first.ledger.reset_offset("t", 0, to=5, log=None, reason="over it")
    assert granted(first).unreleased == 0, "the worker that moved the position has dealt with it"


# -- suspect ranges ------------------------------------------------------------------------------------------


def suspects(worker: LedgerWorker) -> tuple[int | None, int | None]:
    """The range's end, and the end of the part in which a process died, as a claim answers them."""
    claim = granted(worker)
    return claim.suspect_end, claim.crashed_part_end


def test_the_end_of_a_suspect_range_is_stored_once_and_outlives_owners(new_worker: NewLedgerWorker) -> None:
    """I4: a later claim neither redraws nor extends it."""
    first, two, three = new_worker(), new_worker(), new_worker()
    first.ledger.record_suspects_alone([SuspectNote(granted(first), 100)])
    assert suspects(two) == (100, None)
    two.ledger.record_suspects_alone([SuspectNote(two.claims[0], 500, 40)])
    assert suspects(three) == (100, 40), "the second one died in the part"
    assert suspects(first) == (100, 40), "and that is known until the part is passed"


@pytest.mark.parametrize("how", ["released", "claimed again by itself"])
def test_a_part_that_was_given_up_has_seen_no_crash(new_worker: NewLedgerWorker, how: str) -> None:
    worker, other = new_worker(), new_worker()
    worker.ledger.record_suspects_alone([SuspectNote(granted(worker), 100, 40)])
    if how == "released":
        worker.ledger.release(worker.claims.values())
        assert suspects(other) == (100, None)
    else:
        assert suspects(worker) == (100, None)


def test_progress_keeps_a_suspect_range_until_its_end(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I1: the part's rows, the offset and the next part become visible together."""
    first, two, three = new_worker(), new_worker(), new_worker()
    granted(first)
    two.ledger.record_suspects_alone([SuspectNote(granted(two), 100, 40)])
    with seekpoint_engine.begin() as tx:
        moved = two.work(tx, {0: 40})
        two.ledger.record_suspects(tx, [SuspectNote(two.claims[0], 100, 80)])
        assert (
            two.ledger.positions_of([two.topic_partition(0)], locked=False)[two.topic_partition(0)].suspect_part_end
            == 40
        )
    two.accept(moved)
    assert suspects(three) == (100, 80)
    assert three.claims[0].unreleased == 2, "a part says nothing of what comes after it"
    three.ledger.record_attempts_alone([(three.claims[0], begun(40, 1))])
    three.commit({0: 41})
    assert suspects(first) == (100, 80), "one record after the other, up to the part's end"
    first.ledger.record_suspects_alone([SuspectNote(first.claims[0], 100, 100)])
    first.commit({0: 100})
    assert suspects(two) == (None, None)
    assert two.claims[0].unreleased == 1, "only the last one"


def test_a_whole_batch_a_guilty_record_and_a_move_end_a_suspect_range(new_worker: NewLedgerWorker) -> None:
    first, two = new_worker(), new_worker()
    first.ledger.record_suspects_alone([SuspectNote(granted(first), 100)])
    first.commit({0: 10})
    assert suspects(two) == (None, None)
    two.ledger.record_suspects_alone([SuspectNote(two.claims[0], 100, 40)])
    two.ledger.record_suspects_alone([SuspectNote(two.claims[0], None)])
    assert (suspects(first), first.claims[0].unreleased) == ((None, None), 1)
    first.ledger.record_suspects_alone([SuspectNote(first.claims[0], 100, 40)])
    first.ledger.reset_offset("t", 0, to=5, log=None, reason="again")
    assert suspects(two) == (None, None)


def test_i2_a_suspect_range_is_noted_under_the_claim_alone(new_worker: NewLedgerWorker) -> None:
    first, two = new_worker(), new_worker()
    granted(first)
    granted(two)
    with pytest.raises(Fenced, match="the claim is not the expected one"):
        first.ledger.record_suspects_alone([SuspectNote(first.claims[0], 100, 40)])
    assert suspects(two) == (None, None)
