"""How a transaction of a session ended, where the error alone does not say it."""

from __future__ import annotations


class TransactionFailed(Exception):  # noqa: N818 -- control: the caller decides what to raise
    """The transaction failed with ``error``; the subclass says at which point."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class DeferredFailure(TransactionFailed):
    """A deferred statement failed: the error came at a later one, and says nothing about the code that raised it."""


class CommitRefused(TransactionFailed):
    """The server refused COMMIT, for example by a deferred constraint: nothing was written."""


class CommitUnanswered(TransactionFailed):
    """COMMIT was sent and its answer is missing: it may have taken effect."""


def raised_by(error: Exception) -> Exception:
    """The error of the database or the code, without the wrapper that says at which point it came."""
    return error.error if isinstance(error, TransactionFailed) else error
