"""Retries a transaction after transient errors of the database, a few times: an operator waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from seekpoint.postgres.backoff import Backoff, retried
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, is_transient, sqlstate

T = TypeVar("T")

TRIES = 5
_BACKOFF = Backoff(initial=0.2, ceiling=5.0)


def retry_locked(transaction: Callable[[], T]) -> T:
    """Run one whole transaction; again where its error may pass (a deadlock, a lost connection).

    It must find out by itself what became of it the time before. A lock that was waited for in vain is not waited for
    again: the limit is the caller's.
    """
    return retried(transaction, _may_pass, tries=TRIES, backoff=_BACKOFF)


def _may_pass(error: BaseException) -> bool:
    if sqlstate(error) == LOCK_NOT_AVAILABLE:
        error.add_note("a batch of this partition is being written, or another session has locked it: try again")
        return False
    return is_transient(error)
