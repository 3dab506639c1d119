"""Errors that say at which point a session's transaction failed: deferred statement, COMMIT refused or unanswered."""

from __future__ import annotations


class TransactionFailed(Exception):  # noqa: N818 -- control: the caller decides what to raise
    """The transaction failed with ``error``; the subclass says at which point."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class DeferredFailure(TransactionFailed):
    """A pipelined statement failed: its deferred error says nothing about the line that raised it."""


class CommitRefused(TransactionFailed):
    """The server refused COMMIT, for example by a deferred constraint: nothing was written."""


class CommitUnanswered(TransactionFailed):
    """COMMIT was sent and its answer is missing: it may have taken effect."""


def raised_by(error: Exception) -> Exception:
    """The error itself, without the TransactionFailed around it."""
    return error.error if isinstance(error, TransactionFailed) else error
