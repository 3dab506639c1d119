"""Which record a partition waits in front of, why, and what comes next: one sentence, from its row alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from seekpoint.cli.errors import masked, plain
from seekpoint.ledger import Position
from seekpoint.ledger.claim import DELAYED, TRANSIENT
from seekpoint.records import Partition

NEVER_CAME_BACK = "the process that tried it never came back"


@dataclass(frozen=True, slots=True)
class RetryStatus:
    """An attempt that is on record. ``error`` is None where its process died in it; ``then`` follows the last one.

    ``retry_at`` is None for a partition that has stopped, and while the record is being tried (``running``).
    """

    partition: Partition
    offset: int
    attempts: int
    allowed: int | None
    crashes: int
    running: bool
    error: str | None
    retry_at: datetime | None
    then: str | None

    @classmethod
    def of(cls, at: Position) -> Self | None:
        """What the row says; None for a partition that waits only for records."""
        if at.attempt_offset is None or at.attempts < 1 or at.attempt_offset < at.next_offset:
            return None
        return cls(
            at.partition,
            at.attempt_offset,
            at.attempts,
            at.attempts_allowed,
            at.attempt_crashes,
            at.attempt_running,
            None if at.attempt_error is None else plain(masked(at.attempt_error)),
            None if at.attempt_running else at.retry_at,
            at.attempt_policy,
        )

    @property
    def has_stopped(self) -> bool:
        """Whether it waits for an operator."""
        return not self.running and self.retry_at is None and self.error is not None

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "partition"} | {
            "stopped": self.has_stopped
        }

    def sentence(self, now: datetime | None = None) -> str:
        """For people."""
        head = f"{self.partition} waits in front of offset {self.offset}"
        if self.running:
            died = f"; {self.crashes} before it ended with the process" if self.crashes else ""
            before = "" if self.error is None else f"; before: {self.error}"
            return f"{head}: try {self._count()} has begun, alone in its transaction{died}{before}{self._after()}"
        if self.then == DELAYED:
            return f"{head}: {self.error}; {self._next(now or datetime.now(UTC), 'due')}"
        error = self.error or NEVER_CAME_BACK
        if self.has_stopped:
            move = f"Ledger.reset_offset({self.partition.topic!r}, {self.partition.number}, to={self.offset + 1}"
            return (
                f"{self.partition} has stopped in front of offset {self.offset}: {error}; {self._tried()}. Fix the "
                f"codec, row= or handler and start the worker again; or skip it: {move}, log=None, lost='poison', "
                "reason=...)"
            )
        return f"{head}: {error}; {self._tried()}, {self._next(now or datetime.now(UTC))}{self._after()}"

    def _count(self) -> str:
        return str(self.attempts) if self.allowed is None else f"{self.attempts} of {self.allowed}"

    def _tried(self) -> str:
        died = f", {self.crashes} of which ended with the process" if self.crashes else ""
        times = "time" if self._count() == "1" else "times"
        return f"tried {self._count()} {times}{died}"

    def _next(self, now: datetime, what: str = "next try") -> str:
        if self.retry_at is None:
            return "next try by the worker that takes over"
        at = self.retry_at.astimezone(UTC)
        day = "%Y-%m-%d " if abs(at - now) > timedelta(hours=12) else ""
        due = " (due; no worker has come to it)" if at < now - timedelta(seconds=5) else ""
        return f"{what} {at:{day}%H:%M:%S} UTC{due}"

    def _after(self) -> str:
        return "" if self.then is None else f", then {'stop' if self.then == TRANSIENT else self.then}"
