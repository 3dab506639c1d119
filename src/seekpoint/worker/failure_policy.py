"""Decides what happens to a failed record: it is retried, dead-lettered or skipped, or its partition stops.

Only this module has the policy. Bisection finds the records; their transaction stores the decision.
"""

from __future__ import annotations

import asyncio

from seekpoint import remedies
from seekpoint.backoff import RANDOM
from seekpoint.errors import Poison, PoisonStop
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import OnPoison, Retry
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State
from seekpoint.worker.assignment.backlog import RetryLater
from seekpoint.worker.open_batch import Outcome

# Whatever the policy, the position never moves past records that failed for these causes, because the next records may
# fail for the same cause.
NEVER_PASSED = frozenset({Cause.TRANSIENT, Cause.PROGRAM, Cause.ORDER})


class CrashingRecord(Exception):  # noqa: N818 -- named after what the record did
    """Each attempt at the record crashed its process."""

    def __init__(self, crashes: int) -> None:
        super().__init__(f"it was tried {crashes} times, and each attempt ended the process")


def fail(pipeline: Pipeline, outcome: Outcome, raw: RawRecord, error: BaseException, cause: Cause) -> None:
    """Take the record out of the batch, as the pipeline's policy says.

    If the record has attempts left, it is scheduled for retry. The partition's part of the batch ends before it, or
    passes it, as ``retry_order`` says; after a transient error of the database it always ends before it. Poison under
    ``STOP``, and errors that may not be the record's fault, stop the partition there. Otherwise the record becomes a
    dead letter with the batch (I4).
    """
    partition = Partition(raw.topic, raw.partition)
    tried = outcome.tries.get((partition, raw.offset), 0)
    failure = Failure.of(error, cause, attempts=tried + (cause is not Cause.CRASHED))  # a crash was counted before
    if has_attempts_left(pipeline.retry, error, failure.attempts, cause):
        wait = pipeline.retry.wait(failure.attempts, RANDOM)
        retry = RetryLater(partition, raw.offset, failure, wait, error)
        if pipeline.retry_order == "partition" or cause is Cause.TRANSIENT:
            outcome.end_at(retry)
        else:
            outcome.retry_later(raw, retry)
    elif cause in NEVER_PASSED or pipeline.on_poison is OnPoison.STOP:
        outcome.end_at(poison_stop(pipeline.group, raw, failure))
    else:
        state = State.SKIPPED if pipeline.on_poison is OnPoison.SKIP else State.DEAD_LETTERED
        outcome.add_dead_letter(NewDeadLetter(raw, failure, state))


def has_attempts_left(retry: Retry, error: BaseException, attempts: int, cause: Cause = Cause.HANDLER) -> bool:
    """Whether a record that has failed ``attempts`` times, last with this error, gets another attempt."""
    if attempts >= retry.attempts:
        return False
    if isinstance(error, asyncio.CancelledError):  # a client's timeout, or a cancelled task of the handler
        error = TimeoutError(*error.args)
    is_named = isinstance(error, retry.on) and not isinstance(error, Poison)
    return cause is Cause.TRANSIENT or (cause is Cause.HANDLER and is_named)


def poison_stop(group: str, raw: RawRecord, failure: Failure) -> PoisonStop:
    """The error that stops a partition before this record, with the operator's choices."""
    partition = Partition(raw.topic, raw.partition)
    keep_aside = "dead-letter such records and continue: Pipeline(on_poison='dead_letter')"
    times = "" if failure.attempts <= 1 else f" (tried {failure.attempts} times)"
    return PoisonStop(
        partition,
        raw.offset,
        f"{_WHAT[failure.cause]}: {failure.summary}{times}",
        choices=(
            _REMEDY.get(failure.cause, "fix the codec, row= or handler, and start the worker again"),
            f"skip it: {remedies.skip_record(group, partition)}",
            *(() if failure.cause in NEVER_PASSED else (keep_aside,)),
        ),
        failure=failure,
    )


_WHAT = {
    Cause.DECODE: "it cannot be decoded",
    Cause.ROW: "no row can be made from it",
    Cause.HANDLER: "the handler failed on it",
    Cause.POISON: "the handler calls it poison",
    Cause.DATABASE: "the database refused it",
    Cause.CRASHED: "it crashes the process",
    Cause.BLOCKED: "it is blocked behind its key",
    Cause.TRANSIENT: "the database refused it on each attempt, even when applied alone, with a transient error",
    Cause.ORDER: "an earlier record of the partition wrote a row that is newer at the source",
    Cause.PROGRAM: "the database reports an error in the program, and there was no other record to show whether this "
    "one causes it",
}
_REMEDY = {
    Cause.DATABASE: "change the column or constraint that the error names, or fix row= or the handler, and start the "
    "worker again",
    Cause.TRANSIENT: "remove what the error names (a lock, a limit, a trigger), and start the worker again",
    Cause.ORDER: "if the log's order is right (the source was restored, or sends changes again): set the column that "
    "the error names to NULL in all rows by an UPDATE, and start the worker again; if the newer rows are right: "
    "rebuild the table from a new snapshot of the source",
    Cause.PROGRAM: "fix what the error names, and start the worker again",
}
