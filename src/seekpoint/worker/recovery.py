"""Decides how to recover from an error that ended an attempt, from the error and the attempt alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from seekpoint import events
from seekpoint.errors import Fenced, KafkaUnavailable, PartitionStopped
from seekpoint.postgres.session import CommitRefused, SentRowsFailed, raised_by
from seekpoint.postgres.sqlstates import FEATURE_NOT_SUPPORTED, Fault, connection_lost, fault_of, is_transient, sqlstate
from seekpoint.records import Cause, Partition, RawRecord, with_notes
from seekpoint.worker.failed import TRIES, Failed, Mode

STALE_PLAN = FEATURE_NOT_SUPPORTED  # "cached plan must not change result type": a new connection plans again

Trouble = events.DatabaseTrouble | events.KafkaTrouble | events.Bisecting


class TopicIdMismatch(Exception):  # noqa: N818 -- control: rolls the transaction back
    """The topics of these partitions were recreated since the claim; None instead of a stop if an id is unknown."""

    def __init__(self, mismatches: Mapping[Partition, PartitionStopped | None]) -> None:
        super().__init__()
        self.mismatches = mismatches


class RunAgain(NamedTuple):
    """Run the same transaction again. ``reconcile``: ask the ledger first, because COMMIT may have taken effect."""

    event: Trouble
    reconcile: bool = False
    ask_topic_ids: bool = False


class Isolate(NamedTuple):
    """Apply the batch in parts, to find the records that fail; ``named`` are the known ones, with their errors.

    ``known``: the whole batch fails with this error, so it need not be tried as a whole again. ``checks_deferred``: a
    deferred constraint has refused COMMIT.
    """

    event: Trouble
    named: Sequence[tuple[RawRecord, BaseException, Cause]] = ()
    known: Failed | None = None
    checks_deferred: bool = False


class DropPartitions(NamedTuple):
    """Leave out the partitions of ``mismatches``, or those that the ledger refuses, and run the others again.

    ``gives_up``: give up if the ledger refuses none of them, because the batch was refused repeatedly.
    """

    reason: str = ""
    mismatches: Mapping[Partition, PartitionStopped | None] | None = None
    gives_up: bool = False


class GiveUp(NamedTuple):
    """Raise the error, because another attempt at once would not help."""


Recovery = RunAgain | Isolate | DropPartitions | GiveUp


def recovery_for(error: Exception, attempt: Mode) -> Recovery:
    """The recovery from an error of this attempt."""
    is_last = attempt.attempt >= TRIES
    match error:
        case Fenced():
            return DropPartitions(with_notes(error.reason, error), gives_up=is_last)
        case TopicIdMismatch():
            return DropPartitions(mismatches=error.mismatches)
        case Failed():
            return _of_failed(error, is_first=attempt.attempt == 1, is_last=is_last)
        case KafkaUnavailable() if not is_last:
            return RunAgain(events.KafkaTrouble(error=str(error)), ask_topic_ids=True)
        case SentRowsFailed() | CommitRefused():
            return _of_refused(error, attempt, is_last=is_last)
        case _:
            return _of_any(raised_by(error), is_last=is_last)


def _of_refused(refused: SentRowsFailed | CommitRefused, attempt: Mode, *, is_last: bool) -> Recovery:
    """Recover from a refusal of a small batch's rows, or of COMMIT by a deferred constraint."""
    error = refused.error
    if (fault := fault_of(error)) is None or attempt.checks_deferred:
        return _of_any(error, is_last=is_last)
    if isinstance(refused, SentRowsFailed):
        recovery = _of_failed(
            Failed(error, Cause.DATABASE, fault=fault), is_first=attempt.attempt == 1, is_last=is_last
        )
        # The whole batch is tried again, by COPY: that may succeed, and its error names the record.
        return recovery._replace(known=None) if isinstance(recovery, Isolate) else recovery
    if is_transient(error) and not is_last:
        return RunAgain(events.DatabaseTrouble(error=error))
    return Isolate(events.Bisecting(error=error), checks_deferred=True)


def _of_any(error: Exception, *, is_last: bool) -> Recovery:
    """Run the same transaction again at once if that may succeed; otherwise give up."""
    if is_last or not (is_transient(error) or sqlstate(error) == STALE_PLAN):
        return GiveUp()
    return RunAgain(events.DatabaseTrouble(error=error), reconcile=connection_lost(error))


def _of_failed(failed: Failed, *, is_first: bool, is_last: bool) -> Recovery:
    """Recover from an error that may be a record's fault; applying the batch in parts shows whether it is.

    After a transient error, the whole batch is tried again first.
    """
    error = failed.error if isinstance(failed.error, Exception) else failed
    if is_first and failed.is_of_before_alter:
        return RunAgain(events.DatabaseTrouble(error=error))  # on another connection; no record is blamed yet
    if failed.fault is Fault.DATA:
        named = [(raw, failed.error_of(raw), failed.cause) for raw in failed.named]
        return Isolate(events.Bisecting(error=failed.error), named, _known(failed))
    if failed.was_cancelled:
        return Isolate(events.DatabaseTrouble(error=error), known=failed)  # the whole batch would take as long again
    if failed.fault is Fault.TRANSIENT or sqlstate(failed.error) == STALE_PLAN:
        trouble = events.DatabaseTrouble(error=error)
        return Isolate(trouble, known=_known(failed)) if is_last else RunAgain(trouble)
    return Isolate(events.Bisecting(error=error), known=_known(failed))


def _known(failed: Failed) -> Failed | None:
    """The failure of the whole batch, if trying it as a whole again would show the same."""
    return None if failed.named or failed.fault is Fault.TRANSIENT or failed.may_be_of_input else failed
