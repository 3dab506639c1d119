"""Limits of a cut-over: how long workers may wait, and which live rows and other tables a merge may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

from sqlalchemy import Connection

from seekpoint.errors import ConfigError, SeekpointError
from seekpoint.jobs.tables.sql_templates import run
from seekpoint.jobs.tables.targets import Path

MAX_WAIT = 2.0  # seconds
MAX_DELETES = 0.1  # share of the live table's rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of one cut-over; see :class:`seekpoint.jobs.reload.Reload`. Raises ConfigError for invalid bounds.

    ``resume`` is the command that resumes the run, by default ``seekpoint reload resume``.
    """

    max_wait: float = MAX_WAIT
    max_deletes: float = MAX_DELETES
    allow_cascades: bool = False
    allow_inheritance: bool = False
    resume: str = ""

    @property
    def call(self) -> str:
        """The function or class that takes the bounds, in messages."""
        return "reload" if self.resume else "Reload"

    @property
    def verify(self) -> str:
        """The command that shows the differences."""
        return "seekpoint spark verify" if self.resume else "seekpoint verify"

    def __post_init__(self) -> None:
        if not self.max_wait > 0:
            raise ConfigError(f"max_wait must be the seconds that workers may wait, more than 0, got {self.max_wait!r}")
        if not 0 <= self.max_deletes <= 1:
            raise ConfigError(f"max_deletes must be a share of the live rows, from 0 to 1, got {self.max_deletes!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A cut-over's bounds and estimates. ``live``: the rows of each table; ``predicted``: the wait in seconds."""

    bounds: Bounds = field(default_factory=Bounds)
    live: Mapping[Path, int] = field(default_factory=dict)
    predicted: float | None = None


class OverBudget(SeekpointError):  # noqa: N818 -- internal; users get CutOverRefused
    """The time limit of an attempt has been reached."""


class Budget:
    """The time limit of one attempt: ``seconds`` from its first lock on.

    ``locked_at`` is when all positions were locked, by the monotonic clock.
    """

    locked_at = 0.0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began: float | None = None

    def begin(self) -> None:
        """Start the clock, before the first lock for which a worker may wait."""
        self._began = monotonic()

    @property
    def used(self) -> float:
        """Seconds since the first lock."""
        return 0.0 if self._began is None else monotonic() - self._began

    @property
    def left(self) -> float:
        """The remaining seconds. Raises OverBudget if none are left."""
        if (left := self.seconds - self.used) <= 0:
            raise OverBudget
        return left

    def bound(self, connection: Connection, *, lock_wait: float | None = None) -> None:
        """Limit each of the next statements to the time left, and its waits for locks to ``lock_wait`` seconds."""
        seconds = self.left
        # No lock_timeout of the same length: it would be chance which of two equal timeouts Postgres reports.
        lock = 0 if lock_wait is None or lock_wait >= seconds else lock_wait
        times = {"left": f"{max(1, round(seconds * 1000))}ms", "lock": f"{round(lock * 1000)}ms"}
        both = "SELECT set_config('statement_timeout', {left}, true), set_config('lock_timeout', {lock}, true)"
        run(connection, both, **times)
