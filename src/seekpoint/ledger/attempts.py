"""Attempts at records that failed, and ranges that may hold one that crashes its process: under the claim (I2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from seekpoint.ledger.advance import fenced
from seekpoint.ledger.claim import Attempt, Claim
from seekpoint.ledger.group_connection import GroupConnection
from seekpoint.ledger.sql import worker as sql
from seekpoint.records import SAID, storable

LONGEST = 10 * 365 * 24 * 3600.0  # seconds: far enough, and a time that Postgres can hold


def record_attempts(tx: GroupConnection, noted: Iterable[tuple[Claim, Attempt]]) -> list[Claim]:
    """Write the attempts; see :meth:`seekpoint.Ledger.record_attempts`."""
    ordered = sorted(noted, key=lambda pair: pair[0].partition)
    rows = []
    for claim, attempt in ordered:
        error = None if attempt.error is None else storable(attempt.error[:SAID])
        wait = None if attempt.wait is None else min(attempt.wait, LONGEST)
        what = (attempt.offset, attempt.number, error, wait, attempt.allowed, attempt.then)
        rows.append((*claim.partition, claim.token, *what))
    fenced(tx, sql.RECORD_ATTEMPTS, {"expected": len(rows), **sql.arrays(sql.NOTED, rows)})
    return [replace(claim, attempt=attempt) for claim, attempt in ordered]


@dataclass(frozen=True, slots=True)
class SuspectNote:
    """A range that may hold a record that crashes its process, up to ``end``; None: it is over.

    ``part_end`` is the end of the part that is about to be tried; None: none is.
    """

    claim: Claim
    end: int | None
    part_end: int | None = None


def record_suspects(tx: GroupConnection, noted: Iterable[SuspectNote]) -> None:
    """Write the ranges; see :meth:`seekpoint.Ledger.record_suspects`."""
    ordered = sorted(noted, key=lambda one: one.claim.partition)
    rows = [(*one.claim.partition, one.claim.token, one.end, one.part_end) for one in ordered]
    fenced(tx, sql.RECORD_SUSPECTS, {"expected": len(rows), **sql.arrays(sql.SUSPECTED, rows)})
