"""Hold and advance: the two fenced statements of each worker's transaction (I1, I2, I3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import Fenced, HandlerMisuse
from seekpoint.ledger.claim import Claim
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import WORKER, Query, arrays
from seekpoint.postgres.engine import in_autocommit, is_autocommit
from seekpoint.postgres.round_trip import Statement
from seekpoint.postgres.sqlstates import INVALID_TEXT_REPRESENTATION, driver_error, sqlstate

_HELD = ("held_topic", "held_partition", "held_token", "held_from_offset")
_MOVING = ("moving_topic", "moving_partition", "moving_token", "moving_from_offset", "moving_to_offset",
           "moving_leader_epoch", "moving_record_time")  # fmt: skip
# The prefix of errors raised in SQL, and the error's text if the transaction ended between hold and advance.
_REFUSAL = "seekpoint: "
_ENDED = "the transaction that held the rows has ended"


@dataclass(frozen=True, slots=True)
class Expected:
    """A claim, and the position where the batch begins: hold compares both with the ledger's row."""

    claim: Claim
    from_offset: int


@dataclass(frozen=True, slots=True)
class Move:
    """The move of one partition from the position where the batch begins to the next position.

    ``leader_epoch`` is that of the last applied record; None if no record was applied.
    """

    claim: Claim
    from_offset: int
    to_offset: int
    leader_epoch: int | None = None
    record_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one transaction, sent together with hold. ``transaction_age`` is in seconds; None: no timeouts."""

    application_name: str
    synchronous_commit: bool
    transaction_age: float | None


def hold(tx: GroupConnection, expected: Sequence[Expected], settings: Settings) -> str:
    """Lock the rows if claim and position are as expected; the first statement of every transaction.

    Returns the transaction's id, which :func:`advance` compares. Raises Fenced if a row differs: a replaced owner is
    stopped before it writes anything. The next owner's claim waits from here to COMMIT.
    """
    ordered = sorted(expected, key=lambda entry: entry.claim.partition)
    rows = [(*entry.claim.partition, entry.claim.token, entry.from_offset) for entry in ordered]
    _held, transaction, *_ = fenced(tx, WORKER["hold"], _holding(rows, settings))
    return str(transaction)


def advance(
    tx: GroupConnection, moves: Iterable[Move], transaction: str | None = None, rows: Sequence[Statement] = ()
) -> list[Claim]:
    """Compare claim and position again, and move the positions; until COMMIT a worker may then only record attempts.

    Returns the claims as they are after COMMIT. ``transaction`` is the id that :func:`hold` returned. The statements of
    ``rows`` are sent in the same round trip. Raises Fenced if a claim or a position is not the expected one. Raises
    HandlerMisuse if a COMMIT was sent after hold: its rows cannot be rolled back, and a second attempt would write them
    again.
    """
    ordered = sorted(moves, key=lambda move: move.claim.partition)
    parameters = {"transaction": transaction, **_moving(ordered)}
    with _fencing(tx):
        if rows:
            [(_moved, troubled)] = tx.run_with([(WORKER["advance"], parameters)], rows)
        else:
            _moved, troubled = tx.fetch_one(WORKER["advance"], **parameters)
    return _passed(tx, ordered, troubled)


def hold_and_advance(
    tx: GroupConnection, moves: Iterable[Move], settings: Settings, rows: Sequence[Statement] = ()
) -> list[Claim]:
    """Hold and advance in one round trip, which begins the transaction; the statements of ``rows`` are sent with it.

    For transactions that read nothing in between. Returns the claims as they are after COMMIT. Raises Fenced if claim
    or position are not the expected ones, before any statement of ``rows`` has run.
    """
    ordered = sorted(moves, key=lambda move: move.claim.partition)
    rows_to_hold = [(*move.claim.partition, move.claim.token, move.from_offset) for move in ordered]
    hold_them = WORKER["hold"], _holding(rows_to_hold, settings)
    with _fencing(tx):
        advance_them = WORKER["advance"], {"transaction": None, **_moving(ordered)}
        _, (_moved, troubled) = tx.run_with([hold_them, advance_them], rows)
    return _passed(tx, ordered, troubled)


def _moving(ordered: Sequence[Move]) -> dict[str, Any]:
    rows = [
        (*move.claim.partition, move.claim.token, move.from_offset, move.to_offset, move.leader_epoch, move.record_time)
        for move in ordered
    ]
    return {"expected": len(rows), **arrays(rows, *_MOVING)}


def _passed(tx: GroupConnection, moves: Sequence[Move], troubled: int) -> list[Claim]:
    """The claims as they are after COMMIT. Deletes the stored trouble of ``troubled`` partitions, if there are any."""
    if troubled:
        passed = [(*move.claim.partition, move.to_offset) for move in moves]
        tx.execute(WORKER["end_trouble"], **arrays(passed, "passed_topic", "passed_partition", "passed_to_offset"))
    return [_claim_after(move) for move in moves]


def _claim_after(move: Move) -> Claim:
    was = move.claim  # this move ends its crashes and attempts
    return Claim(was.partition, was.token, was.epoch, move.to_offset, move.leader_epoch, was.topic_id)


def _holding(rows: Sequence[Sequence[Any]], settings: Settings) -> dict[str, Any]:
    age = settings.transaction_age
    return {
        "expected": len(rows),
        **arrays(rows, *_HELD),
        "application_name": settings.application_name,
        "synchronous_commit": "on" if settings.synchronous_commit else "off",
        "transaction_age": 0 if age is None else max(1, round(age * 1000)),
    }


def fenced(tx: GroupConnection, query: Query, parameters: dict[str, Any]) -> Any:
    """The row of a statement that checks claims in SQL. Raises Fenced if a check fails, ConfigError in AUTOCOMMIT."""
    with _fencing(tx):
        return tx.fetch_one(query, **parameters)


@contextmanager
def _fencing(tx: GroupConnection) -> Iterator[None]:
    """Raise Fenced or HandlerMisuse for errors that the ledger's SQL raises in the block; ConfigError in AUTOCOMMIT."""
    if is_autocommit(tx.connection):
        raise in_autocommit("connection")
    try:
        yield
    except (DBAPIError, psycopg.Error) as error:
        message = str(driver_error(error))
        if sqlstate(error) == INVALID_TEXT_REPRESENTATION and _REFUSAL in message:
            if _ENDED in message:
                raise HandlerMisuse(
                    "a COMMIT or ROLLBACK that is not Seekpoint's ended the transaction between hold and advance: what "
                    "was written before it may be half done, and the offset did not move"
                ) from None
            raise Fenced(message[message.index(_REFUSAL) :].splitlines()[0].rstrip('"')) from None
        raise
