"""Chooses how many records a handler's next transaction takes, from the durations of the last ones."""

from __future__ import annotations

from dataclasses import replace

from seekpoint.errors import Fenced
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.sqlstates import connection_lost, is_ended_by_age
from seekpoint.records import numbered

FIRST = 500  # records of a handler's first transaction: Kafka's max.poll.records
GROWTH = 2  # largest growth from one transaction to the next


class BatchSize:
    """The limits of the next batch, so that its transaction takes about ``Limits.transaction_target`` seconds.

    A handler's time per record is known only after it has run, and may include a call to another service. Without
    ``adapts``, for streaming sinks, the limits stay fixed: COPY takes microseconds per record.
    """

    def __init__(self, limits: Limits, *, adapts: bool) -> None:
        self._configured, self.adapts = limits, adapts
        self.limits = limits
        if adapts:
            self._take(FIRST)

    @property
    def records(self) -> int:
        """How many records the next batch may have."""
        return self.limits.batch_records

    def committed(self, records: int, seconds: float) -> None:
        """Learn from a committed batch. A small batch says nothing about larger ones, unless it was slow."""
        if not self.adapts or not records:
            return
        target = self._configured.transaction_target
        fitting = int(records * target / seconds) if seconds > 0 else GROWTH * records
        if seconds > target or records >= self.records:
            self._take(min(fitting, GROWTH * records))

    def ended(self, records: int) -> None:
        """Halve the next batch at least, because this transaction was ended by its age."""
        if self.adapts:
            self._take(min(self.records, records // 2))

    def note(self, records: int, seconds: float) -> str:
        """The note for the error of a transaction that its age ended; call :meth:`ended` first."""
        age = self._configured.transaction_age
        count = numbered(records, "record")
        took = f"the transaction had taken {seconds:.1f} s for {count}, and the limit is {age:g} s"
        if not self.adapts:
            return f"{took}: lower Limits(batch_records=...), or raise Limits(transaction_age=...)"
        if records <= 1:
            return f"{took}: raise Limits(transaction_age=...), or make the handler faster for this record"
        return (
            f"{took}: the next one has at most {numbered(self.records, 'record')}, and later ones about as many as "
            f"take {self._configured.transaction_target:g} s (Limits(transaction_target=...))"
        )

    def _take(self, records: int) -> None:
        most = max(1, min(records, self._configured.batch_records))
        if most != self.limits.batch_records:
            self.limits = replace(self._configured, batch_records=most)


def ended_by_age(error: BaseException, seconds: float, age: float) -> BaseException | None:
    """The error in the chain that shows that the transaction was ended by its age; None if none does.

    The server gives the reason only to a running statement. A later statement finds the connection closed, a late
    commit is fenced, and a handler may wrap the error.
    """
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return None
        if is_ended_by_age(cause) or (seconds >= age and (isinstance(cause, Fenced) or connection_lost(cause))):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None
