"""What can go wrong with a record, one kind each; and what must become of it.

A bad record differs from a good one in its bytes (``bytes_``), in a field (``fields``), in what ``row=`` or the handler
makes of it (``spoil``), or in what the handler does when it meets it (``act``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from seekpoint import Batch, Poison
from seekpoint.errors import HandlerMisuse
from seekpoint.records import AnyRecord, Cause, RawRecord
from seekpoint.testing import raw, record


class Item(msgspec.Struct):
    """The records' value. ``act`` names the kind whose part the handler plays, and goes into no table."""

    id: int
    n: int | None = 1
    note: str = "fine"
    paid_at: str = "2026-01-01"
    doc: str = "{}"
    code: int | None = None
    ref: int = 1
    late: int | None = None
    owe: int = 1
    act: str | None = None


COLUMNS = tuple(name for name in Item.__struct_fields__ if name != "act")
TABLE = """
seq bigint GENERATED ALWAYS AS IDENTITY, id bigint NOT NULL, n int NOT NULL,
note varchar(20) CHECK (note <> 'forbidden'), paid_at timestamptz, doc jsonb, code bigint UNIQUE,
ref int REFERENCES parent, late bigint UNIQUE DEFERRABLE INITIALLY DEFERRED,
owe int REFERENCES parent DEFERRABLE INITIALLY DEFERRED
"""
TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'not this one: %', NEW.id; END $$;
"""

ROWS = ("streamed Append", "two sinks")  # ways of writing that have row=
SINKS = (*ROWS, "values alone")
HANDLERS = ("execute", "executemany", "ORM")
EVERY = (*SINKS, *HANDLERS)
CODE = (*ROWS, *HANDLERS)

Act = Callable[[Connection, Batch[Item, Any], Sequence[AnyRecord]], Any]


@dataclass(frozen=True)
class Kind:
    """One way to fail. ``cause`` None: it does not fail at all; ``raises``: it is the program's mistake, and ends it.

    ``bytes_`` and ``key`` replace the bad record's, ``fields`` are functions of its id and of the first good one's.
    """

    name: str
    cause: Cause | None
    message: str = ""
    sqlstate: str | None = None
    strategies: tuple[str, ...] = EVERY
    bytes_: bytes | None = b""
    key: bytes | None = b"key"
    fields: Mapping[str, Any] = field(default_factory=dict)
    same_as_first: str | None = None
    spoil: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    act: Act | None = None
    after: bool = False  # act after the writing, not before
    raises: type[Exception] | None = None

    def __str__(self) -> str:
        return self.name

    def cause_on(self, strategy: str) -> Cause | None:
        """What ``row=`` raises is a row's fault, what the same code raises in a handler the handler's."""
        return Cause.HANDLER if self.cause is Cause.ROW and strategy in HANDLERS else self.cause

    def bad(self, id_: int, first: int, partition: int, offset: int, topic: str) -> RawRecord:
        """The bad record."""
        fields = {"id": id_, **self.fields, **({self.same_as_first: first} if self.same_as_first else {})}
        if self.act is not None or self.spoil is not None:
            fields["act"] = self.name
        value = spelled(fields) if self.bytes_ == b"" else self.bytes_
        return record_of(value, self.key, partition, offset, topic)


def spelled(fields: Mapping[str, Any]) -> bytes:
    """A value's bytes."""
    return json.dumps(fields).encode()


def good(id_: int, partition: int, offset: int, topic: str) -> RawRecord:
    """A record that nothing is wrong with."""
    return record_of(spelled({"id": id_, "code": id_, "late": id_}), b"key", partition, offset, topic)


def record_of(value: bytes | None, key: bytes | None, partition: int, offset: int, topic: str) -> RawRecord:
    """A record with headers, a time and an epoch: all of it must be found in the dead letter."""
    record = raw(
        value, topic=topic, partition=partition, offset=offset, key=key, leader_epoch=3,
        headers=[("h", b"\0\xff"), ("h", None), ("caf\xe9", b"")],
    )  # fmt: skip
    return msgspec.structs.replace(record, timestamp_ms=1_785_587_400_123 + offset)


class MuteError(OSError):
    """Even to ask it what went wrong goes wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no")


# -- what handlers do ---------------------------------------------------------------------------------------


def raising(make: Callable[[Sequence[AnyRecord]], Exception]) -> Act:
    """A handler that raises."""

    def act(tx: Connection, batch: Batch[Item, Any], bad: Sequence[AnyRecord]) -> None:
        raise make(bad)

    return act


def swallow(tx: Connection, batch: Batch[Item, Any], bad: Sequence[AnyRecord]) -> None:
    """Catch a database error, and continue."""
    with pytest.raises(DBAPIError):
        tx.execute(text("SELECT 1 / 0"))


def own_savepoint(tx: Connection, batch: Batch[Item, Any], bad: Sequence[AnyRecord]) -> None:
    """Catch a database error under a savepoint, as a handler should."""
    with pytest.raises(DBAPIError), tx.begin_nested():
        tx.execute(text("SELECT 1 / 0"))


async def _later() -> None:
    """A coroutine, for a handler that does not await it."""


def _spoil(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda fields: {**fields, **changes}


def _raw(document: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return _spoil(doc=Jsonb(document, dumps=str))


def _crack(fields: dict[str, Any]) -> dict[str, Any]:
    raise ArithmeticError("cannot be reckoned")


LONG = 10_000_000
NESTED = b'{"id": 1, "doc": ' + b"[" * 1000 + b"]" * 1000 + b"}"

_D = Cause.DATABASE
KINDS = (
    # the bytes
    Kind("undecodable bytes", Cause.DECODE, "DecodeError", bytes_=b"\xff\xfe{"),
    Kind("half a JSON object", Cause.DECODE, "DecodeError", bytes_=b'{"id": 1'),
    Kind("wrong type", Cause.DECODE, "ValidationError: Expected `int`", bytes_=b'{"id": "one"}'),
    Kind("invalid UTF-8 in a string", Cause.DECODE, "UnicodeDecodeError|DecodeError", bytes_=b'{"id":1,"note":"\xff"}'),
    Kind("nested 1,000 deep", Cause.DECODE, "RecursionError|ValidationError", bytes_=NESTED),
    Kind("number beyond any float", Cause.DECODE, "out of range|Expected `int", bytes_=b'{"id": 1, "n": 1e400}'),
    Kind("null value", Cause.DECODE, "a null value", bytes_=None),
    Kind("null key", None, key=None),
    Kind("undecodable key", Cause.DECODE, "UnicodeDecodeError", key=b"\xff"),
    Kind("10 MB that are no JSON", Cause.DECODE, "DecodeError", bytes_=b"x" * LONG),
    # what the database refuses
    Kind("NUL in text", _D, "NUL", fields={"note": "a\0b"}),
    Kind("NUL in jsonb", _D, "UntranslatableCharacter", "22P05", strategies=CODE, spoil=_raw('"\\u0000"')),
    Kind("NUL in a value for jsonb", _D, "UntranslatableCharacter", "22P05", strategies=SINKS, fields={"doc": "\0"}),
    Kind("lone surrogate", _D, "surrogate", None, strategies=ROWS, spoil=_spoil(note="\ud800")),
    Kind("too long", _D, "StringDataRightTruncation", "22001", fields={"note": "x" * 21}),
    Kind("10 MB value, too long", _D, "StringDataRightTruncation", "22001", fields={"note": "x" * LONG}),
    Kind("out of range", _D, "NumericValueOutOfRange", "22003", fields={"n": 2**31}),
    Kind("huge number", _D, "NumericValueOutOfRange", "22003", fields={"n": 10**30}),
    Kind("NaN in jsonb", _D, "InvalidTextRepresentation", "22P02", strategies=CODE, spoil=_raw('{"a": NaN}')),
    Kind("text that is no time", _D, "InvalidDatetimeFormat", "22007", fields={"paid_at": "half past nine"}),
    Kind("year 0", _D, "DatetimeFieldOverflow|InvalidDatetimeFormat", "22008", fields={"paid_at": "0000-01-01"}),
    Kind("year 300000", _D, "DatetimeFieldOverflow", "22008", fields={"paid_at": "300000-01-01"}),
    Kind("JSON too deep for the server", _D, "StatementTooComplex", "54001", strategies=CODE,
         spoil=_raw("[" * 100_000)),
    Kind("CHECK", _D, "CheckViolation", "23514", fields={"note": "forbidden"}),
    Kind("NOT NULL", _D, "NotNullViolation", "23502", fields={"n": None}),
    Kind("UNIQUE", _D, "UniqueViolation", "23505", same_as_first="code"),
    Kind("FOREIGN KEY", _D, "ForeignKeyViolation", "23503", fields={"ref": 99}),
    Kind("UNIQUE, deferred to COMMIT", _D, "UniqueViolation", "23505", same_as_first="late"),
    Kind("FOREIGN KEY, deferred to COMMIT", _D, "ForeignKeyViolation", "23503", fields={"owe": 99}),
    Kind("trigger that raises (P0001)", _D, "RaiseException: not this one", "P0001", fields={"note": "trigger"}),
    Kind("table that does not exist, for this record alone", _D, "UndefinedTable", "42P01", strategies=HANDLERS,
         act=lambda tx, *_: tx.execute(text("SELECT * FROM nowhere"))),
    Kind("SQLSTATE of the application", _D, "no refunds", "OV404", strategies=HANDLERS,
         act=lambda tx, *_: tx.exec_driver_sql("DO $$ BEGIN RAISE 'no refunds' USING ERRCODE = 'OV404'; END $$")),
    # what row= and handlers raise
    Kind("row= or handler raises on its value", Cause.ROW, "ArithmeticError: cannot", strategies=(*ROWS, *HANDLERS),
         spoil=_crack),
    Kind("Poison, named", Cause.POISON, "Poison: no", strategies=HANDLERS, act=raising(lambda b: Poison("no", b[0]))),
    Kind("Poison, several named", Cause.POISON, "Poison: no", strategies=HANDLERS,
         act=raising(lambda b: Poison("no", *b))),
    Kind("Poison, unnamed", Cause.POISON, "Poison: no", strategies=HANDLERS, act=raising(lambda b: Poison("no"))),
    Kind("exception, attempts used up", Cause.HANDLER, "OSError: gone", strategies=HANDLERS,
         act=raising(lambda b: OSError("gone"))),
    Kind("exception not in Retry.on", Cause.HANDLER, "LookupError: what", strategies=HANDLERS,
         act=raising(lambda b: LookupError("what"))),
    Kind("error message of 10 MB", Cause.HANDLER, "OSError: xxx", strategies=HANDLERS,
         act=raising(lambda b: OSError("x" * LONG))),
    Kind("error message with NUL and a lone surrogate", Cause.HANDLER, r"OSError: a\\x00b\\ud800c", strategies=HANDLERS,
         act=raising(lambda b: OSError("a\0b\ud800c"))),
    Kind("error that cannot tell its message", Cause.HANDLER, "MuteError: .*cannot be read", strategies=HANDLERS,
         act=raising(lambda b: MuteError())),
    # mistakes of the program: no record's fault, whatever the policy
    Kind("handler commits", None, r"called commit\(\)", strategies=HANDLERS, act=lambda tx, *_: tx.commit(), after=True,
         raises=HandlerMisuse),
    Kind("handler closes", None, r"called close\(\)", strategies=HANDLERS, act=lambda tx, *_: tx.close(), after=True,
         raises=HandlerMisuse),
    Kind("handler rolls back", None, r"called rollback\(\)", strategies=HANDLERS, act=lambda tx, *_: tx.rollback(),
         after=True, raises=HandlerMisuse),
    Kind("handler rolls back in SQL", None, "ended its transaction", strategies=HANDLERS,
         act=lambda tx, *_: tx.exec_driver_sql("ROLLBACK"), after=True, raises=HandlerMisuse),
    Kind("handler swallows a database error", None, "caught a database error", strategies=HANDLERS, act=swallow,
         after=True, raises=HandlerMisuse),
    Kind("handler returns a coroutine", None, "returned a coroutine", strategies=HANDLERS, act=lambda *_: _later(),
         after=True, raises=HandlerMisuse),
    Kind("Poison that names a stranger", None, "names no record of this batch", strategies=HANDLERS,
         act=raising(lambda b: Poison("no", record(1, topic="other"))), raises=HandlerMisuse),
    # no failures
    Kind("handler's own savepoint fails", None, strategies=HANDLERS, act=own_savepoint, after=True),
    Kind("handler leaves a savepoint open", None, strategies=HANDLERS,
         act=lambda tx, *_: tx.exec_driver_sql("SAVEPOINT s"), after=True),
    Kind("handler leaves begin_nested() open", None, strategies=HANDLERS, act=lambda tx, *_: tx.begin_nested() and None,
         after=True),
)  # fmt: skip
