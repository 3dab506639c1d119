"""Attempts at a record that failed, or that may kill its process: on record under the partition's claim (I2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from seekpoint.failure import SAID, storable
from seekpoint.ledger import statements as sql
from seekpoint.ledger.advance import fenced
from seekpoint.ledger.claim import Attempt, Claim
from seekpoint.ledger.scope import Scope

LONGEST = 10 * 365 * 24 * 3600.0  # seconds: far enough, and a time that Postgres can hold


def note(tx: Scope, noted: Iterable[tuple[Claim, Attempt]]) -> list[Claim]:
    """Write the attempts; see :meth:`seekpoint.Ledger.note`."""
    ordered = sorted(noted, key=lambda pair: pair[0].partition)
    fenced(
        tx,
        sql.NOTE,
        {
            "expected": len(ordered),
            "noted_topic": [claim.partition.topic for claim, _ in ordered],
            "noted_partition": [claim.partition.number for claim, _ in ordered],
            "noted_claim": [claim.token for claim, _ in ordered],
            "noted_offset": [attempt.offset for _, attempt in ordered],
            "noted_number": [attempt.number for _, attempt in ordered],
            "noted_error": [None if a.error is None else storable(a.error[:SAID]) for _, a in ordered],
            "noted_wait": [None if a.wait is None else min(a.wait, LONGEST) for _, a in ordered],
            "noted_allowed": [attempt.allowed for _, attempt in ordered],
            "noted_policy": [attempt.then for _, attempt in ordered],
        },
    )
    return [replace(claim, attempt=attempt) for claim, attempt in ordered]
