"""Stores attempts at records that fail, and suspect ranges of records that may crash the process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from seekpoint.ledger.advance import fenced
from seekpoint.ledger.claim import Attempt, Claim
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import WORKER, arrays
from seekpoint.records import SAID, storable

_CLAIMED = ("claimed_topic", "claimed_partition", "claimed_token")
_NOTED = ("noted_topic", "noted_partition", "noted_offset", "noted_number", "noted_error", "noted_wait",
          "noted_allowed", "noted_policy")  # fmt: skip
_SUSPECTED = ("suspected_topic", "suspected_partition", "suspected_end_offset", "suspected_part_end")
LONGEST_WAIT = 10 * 365 * 24 * 3600.0  # seconds; longer waits could exceed what a timestamp of Postgres can hold


@dataclass(frozen=True, slots=True)
class SuspectNote:
    """A partition's suspect range to store, up to ``end``; None deletes the range.

    ``part_end`` is the end of the part that is applied next, if any.
    """

    claim: Claim
    end: int | None
    part_end: int | None = None


def record_attempts(tx: GroupConnection, noted: Iterable[tuple[Claim, Attempt]]) -> list[Claim]:
    """Store how often records were tried, and what happens next. Raises Fenced unless all claims are current."""
    ordered = sorted(noted, key=lambda pair: pair[0].partition)
    rows = []
    for claim, attempt in ordered:
        error = None if attempt.error is None else storable(attempt.error[:SAID])
        wait = None if attempt.wait is None else min(attempt.wait, LONGEST_WAIT)
        values = (attempt.offset, attempt.number, error, wait, attempt.allowed, attempt.then)
        rows.append((*claim.partition, *values))
    lock_claimed(tx, [claim for claim, _ in ordered])
    tx.execute(WORKER["record_attempts"], **arrays(rows, *_NOTED))
    return [replace(claim, attempt=attempt) for claim, attempt in ordered]


def record_suspects(tx: GroupConnection, noted: Iterable[SuspectNote]) -> None:
    """Store the partitions' suspect ranges. Raises Fenced unless all claims are current."""
    ordered = sorted(noted, key=lambda note: note.claim.partition)
    rows = [(*note.claim.partition, note.end, note.part_end) for note in ordered]
    lock_claimed(tx, [note.claim for note in ordered])
    tx.execute(WORKER["record_suspects"], **arrays(rows, *_SUSPECTED))


def lock_claimed(tx: GroupConnection, claims: Sequence[Claim]) -> None:
    """Lock the rows of these claims, in lock order. Raises Fenced if a claim is not current."""
    rows = arrays([(*claim.partition, claim.token) for claim in claims], *_CLAIMED)
    fenced(tx, WORKER["lock_claimed"], {"expected": len(claims), **rows})
