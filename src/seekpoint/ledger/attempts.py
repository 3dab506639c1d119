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
    fenced(
        tx,
        sql.RECORD_ATTEMPTS,
        {
            "expected": len(ordered),
            "noted_topic": [claim.partition.topic for claim, _ in ordered],
            "noted_partition": [claim.partition.number for claim, _ in ordered],
            "noted_token": [claim.token for claim, _ in ordered],
            "noted_offset": [attempt.offset for _, attempt in ordered],
            "noted_number": [attempt.number for _, attempt in ordered],
            "noted_error": [None if a.error is None else storable(a.error[:SAID]) for _, a in ordered],
            "noted_wait": [None if a.wait is None else min(a.wait, LONGEST) for _, a in ordered],
            "noted_allowed": [attempt.allowed for _, attempt in ordered],
            "noted_policy": [attempt.then for _, attempt in ordered],
        },
    )
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
    fenced(
        tx,
        sql.RECORD_SUSPECTS,
        {
            "expected": len(ordered),
            "suspected_topic": [one.claim.partition.topic for one in ordered],
            "suspected_partition": [one.claim.partition.number for one in ordered],
            "suspected_token": [one.claim.token for one in ordered],
            "suspected_end_offset": [one.end for one in ordered],
            "suspected_part_end": [one.part_end for one in ordered],
        },
    )
