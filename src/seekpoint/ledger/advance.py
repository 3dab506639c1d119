"""Hold, then advance: the two statements on which the promise hangs (I1, I2, I3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import ConfigError, Fenced, HandlerMisuse
from seekpoint.ledger.claim import Claim
from seekpoint.ledger.group_connection import GroupConnection
from seekpoint.ledger.sql import worker as sql
from seekpoint.postgres.sqlstates import INVALID_TEXT_REPRESENTATION


@dataclass(frozen=True, slots=True)
class Expected:
    """A claim, and the position the reader began to read from: what hold asks the ledger to confirm."""

    claim: Claim
    from_offset: int


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's step in one transaction: from the exact position that was read to the one after it.

    ``leader_epoch`` is the last applied record's; None where the step ends on no applied record.
    """

    claim: Claim
    from_offset: int
    to_offset: int
    leader_epoch: int | None = None
    record_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class SuspectNote:
    """A range that may hold a record that crashes its process, up to ``end``; None: it is over.

    ``part_end`` is the end of the part that is about to be tried; None: none is.
    """

    claim: Claim
    end: int | None
    part_end: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one transaction, sent along with hold; times in seconds."""

    application_name: str
    synchronous_commit: bool
    transaction_age: float


def hold(tx: GroupConnection, expected: Sequence[Expected], settings: Settings) -> str:
    """Lock the rows where claim and position are as expected; the first statement of every transaction.

    Returns the transaction's id, which :func:`advance` compares. Raises Fenced, and then nothing may be
    written: a zombie is stopped here, before it does any work; a successor's claim waits from here to COMMIT.
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
    """Move the offsets; the last statement before COMMIT. Returns the claims as they are after COMMIT.

    ``transaction`` is what :func:`hold` returned: a literal COMMIT in between is HandlerMisuse, for what it
    committed cannot be taken back, and to try again would write it twice. Raises Fenced where claim or position
    are not the expected ones.
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
    """Run a statement that refuses inside SQL; what it refuses is Fenced. ConfigError on a connection in AUTOCOMMIT."""
    if getattr(tx.connection.connection.driver_connection, "autocommit", False):
        raise ConfigError(
            "the connection is set to AUTOCOMMIT: rows and offsets could not be one transaction; make it without "
            "isolation_level and autocommit"
        )
    try:
        return tx.fetch_one(statement, **parameters)
    except (DBAPIError, psycopg.Error) as error:
        if tx.is_deferred(error):  # of the handler or a sink, whatever it says
            raise
        told = error.orig if isinstance(error, DBAPIError) else error
        if getattr(told, "sqlstate", None) == INVALID_TEXT_REPRESENTATION and sql.REFUSAL in str(told):
            message = str(told)
            if sql.ENDED in message:
                raise HandlerMisuse(
                    "the transaction was ended between hold and advance, by a COMMIT or ROLLBACK that is not ours: "
                    "what was written before it may be half done, and the offset did not move"
                ) from None
            raise Fenced(message[message.index(sql.REFUSAL) :].splitlines()[0].rstrip('"')) from None
        raise
