"""Hold and advance: the two fenced statements of each worker's transaction (I1, I2, I3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import ConfigError, Fenced, HandlerMisuse
from seekpoint.ledger.claim import Claim
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import partition_offset as sql
from seekpoint.postgres.sqlstates import INVALID_TEXT_REPRESENTATION, driver_error, sqlstate


@dataclass(frozen=True, slots=True)
class Expected:
    """A claim and the position that was read from: hold compares both with the ledger's row."""

    claim: Claim
    from_offset: int


@dataclass(frozen=True, slots=True)
class Move:
    """What advance does to one partition: from the position that was read to the next one.

    ``leader_epoch`` is the last applied record's; None where no record was applied.
    """

    claim: Claim
    from_offset: int
    to_offset: int
    leader_epoch: int | None = None
    record_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class SuspectNote:
    """The end of a partition's suspect range; None: there is none any more.

    ``part_end`` is the end of the part that is about to be applied; None: none is.
    """

    claim: Claim
    end: int | None
    part_end: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one transaction, sent together with hold; times in seconds."""

    application_name: str
    synchronous_commit: bool
    transaction_age: float


def hold(tx: GroupConnection, expected: Sequence[Expected], settings: Settings) -> str:
    """Lock the rows where claim and position are as expected; the first statement of every transaction.

    Returns the transaction's id, which :func:`advance` compares. Raises Fenced, and then nothing may be written. So an
    owner that was replaced is stopped before it does any work, and the next owner's claim waits from here to COMMIT.
    """
    ordered = sorted(expected, key=lambda e: e.claim.partition)
    parameters: dict[str, Any] = {
        "expected": len(ordered),
        **sql.arrays(sql.HELD, [(*e.claim.partition, e.claim.token, e.from_offset) for e in ordered]),
        "application_name": settings.application_name,
        "synchronous_commit": "on" if settings.synchronous_commit else "off",
        "idle_in_transaction_session_timeout": f"{round(settings.transaction_age * 1000)}ms",
    }
    statement = sql.HOLD
    if (tx.connection.dialect.server_version_info or (0,)) >= (17,):
        statement = sql.HOLD_17
        parameters["transaction_timeout"] = f"{round(settings.transaction_age * 1000)}ms"
    _held, transaction, *_ = fenced(tx, statement, parameters)
    return str(transaction)


def advance(tx: GroupConnection, moves: Iterable[Move], transaction: str | None = None) -> list[Claim]:
    """Move the positions after the same comparison; after it a worker only records attempts, in the same transaction.

    Returns the claims as they are after COMMIT. ``transaction`` is what :func:`hold` returned. Raises HandlerMisuse
    where a COMMIT was sent in between: its rows cannot be rolled back, and a second attempt would write them twice.
    Raises Fenced where claim or position are not the expected ones.
    """
    ordered = sorted(moves, key=lambda m: m.claim.partition)
    rows = [
        (*m.claim.partition, m.claim.token, m.from_offset, m.to_offset, m.leader_epoch, m.record_time) for m in ordered
    ]
    fenced(tx, sql.ADVANCE, {"expected": len(rows), "transaction": transaction, **sql.arrays(sql.MOVING, rows)})
    return [
        replace(
            m.claim,
            next_offset=m.to_offset,
            leader_epoch=m.leader_epoch,
            unreleased=0,
            attempt=None,
            suspect_end=None,
            crashed_part_end=None,
        )
        for m in ordered
    ]


def fenced(tx: GroupConnection, statement: Any, parameters: dict[str, Any]) -> Any:
    """Run a statement that compares inside SQL. Raises Fenced where it refuses; ConfigError in AUTOCOMMIT."""
    if getattr(tx.connection.connection.driver_connection, "autocommit", False):
        raise ConfigError(
            "the connection is set to AUTOCOMMIT: rows and offsets could not be one transaction; make it without "
            "isolation_level and autocommit"
        )
    try:
        return tx.fetch_one(statement, **parameters)
    except (DBAPIError, psycopg.Error) as error:
        if tx.is_deferred(error):  # a handler's or a sink's error, whatever its text is
            raise
        message = str(driver_error(error))
        if sqlstate(error) == INVALID_TEXT_REPRESENTATION and sql.REFUSAL in message:
            if sql.ENDED in message:
                raise HandlerMisuse(
                    "the transaction was ended between hold and advance, by a COMMIT or ROLLBACK that is not ours: "
                    "what was written before it may be half done, and the offset did not move"
                ) from None
            raise Fenced(message[message.index(sql.REFUSAL) :].splitlines()[0].rstrip('"')) from None
        raise
