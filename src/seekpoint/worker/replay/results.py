"""The results of planning, replaying and discarding dead letters: plain values."""

from __future__ import annotations

from dataclasses import dataclass

from seekpoint.ledger.dead_letters import DeadLetter
from seekpoint.records import Failure


@dataclass(frozen=True, slots=True)
class Planned:
    """A chosen dead letter, without value and tracebacks; ``refusal``: why it would not be replayed, or None.

    ``after`` is the id of the dead letter of its key that draws it along, where it was not chosen itself.
    """

    dead_letter: DeadLetter
    refusal: str | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a dead letter: applied and closed; or it failed again (``failure``) or was refused (``refusal``).

    ``dead_letter`` is as it was before, without value and tracebacks. ``followers`` are those of its key after it.
    """

    dead_letter: DeadLetter
    failure: Failure | None = None
    refusal: str | None = None
    followers: tuple[Replayed, ...] = ()

    @property
    def is_applied(self) -> bool:
        """Whether the record is applied now, by this replay."""
        return self.failure is None and self.refusal is None


@dataclass(frozen=True, slots=True)
class Discarded:
    """What became of a dead letter that was to be discarded; ``refusal`` is None where it was."""

    dead_letter: DeadLetter
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """How a replay of many ended: how many were applied; which failed again; which were refused, and why."""

    replayed: int = 0
    failed: tuple[Replayed, ...] = ()
    refused: tuple[Replayed, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every one that was meant is applied."""
        return not self.failed and not self.refused
