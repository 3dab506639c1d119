"""The findings of ``doctor``, each with its remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding. A failure fails the check; a warning may be intended."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; ``remedies`` has one sentence, or one for each alternative."""

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
        return not any(finding.level is Level.FAILURE for finding in self.findings)


def problems_or_ok(check: str, problems: Sequence[Finding], fine: str) -> list[Finding]:
    """The problems; without any, one finding with the message ``fine``."""
    return list(problems) or [Finding.of(check, Level.OK, fine)]
