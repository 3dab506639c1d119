"""What ``doctor`` answers: findings, each with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is. A failure fails the check; a warning may be what is wanted."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; ``remedies`` say what to do: one sentence, or one for each choice."""

    check: str
    level: Level
    message: str
    remedies: tuple[str, ...] = ()

    @classmethod
    def of(cls, check: str, level: Level, message: str, *remedies: str) -> Finding:
        """A finding with these remedies."""
        return cls(check, level, message, tuple(filter(None, remedies)))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings on one ledger; ``database`` is its URL without passwords."""

    database: str
    schema: str
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether there is no failure."""
        return not any(each.level is Level.FAILURE for each in self.findings)


def problems_or_ok(check: str, problems: Sequence[Finding], fine: str) -> list[Finding]:
    """The problems of a check, or that it is fine."""
    return list(problems) or [Finding.of(check, Level.OK, fine)]
