"""The part of Postgres's wire protocol (version 3) that the proxy needs to recognize statements."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

SSL_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104
REFUSED: Final = b"N"
"""The one-byte answer to both: no encryption here, go on in plain text."""

SYNC: Final = b"S\0\0\0\4"

FRONTEND: Final = b"QPBE"
"""Messages of the client that carry or name SQL: Query, Parse, Bind, Execute."""

ANSWERS: Final = b"CE"
"""Messages of the server that end a statement: CommandComplete, ErrorResponse."""

# `END` alone also ends the body of a function, so inside a longer text only COMMIT counts.
_TAIL = r"(?:\s+(?:WORK|TRANSACTION))?(?:\s+AND\s+(?:NO\s+)?CHAIN)?\s*;?\s*$"
_COMMENTS = re.compile(r"/\*.*?\*/|--[^\n]*(?:\n|$)", re.DOTALL)
_COMMIT = re.compile(rf"(?:(?:^|;)\s*COMMIT|^\s*END){_TAIL}", re.IGNORECASE)


class Piece(NamedTuple):
    """A whole message of a wanted ``kind``, or (``kind`` 0) bytes to pass on unread."""

    kind: int
    raw: bytes


class Framer:
    """Cuts one direction of a connection into pieces, which together are all its bytes.

    Only messages whose kind is in ``wanted`` are collected; others, like the data of a COPY, are never buffered.
    """

    def __init__(self, wanted: bytes = b"") -> None:
        self.wanted = wanted
        self._rest = b""
        self._passing = 0

    def skip(self, size: int) -> None:
        """Pass the next ``size`` bytes on unread."""
        self._passing += size

    def feed(self, data: bytes) -> Iterator[Piece]:
        data, self._rest = self._rest + data, b""
        start = position = 0
        while position < len(data):
            if self._passing:
                step = min(self._passing, len(data) - position)
                position, self._passing = position + step, self._passing - step
                continue
            if len(data) - position < 5:
                break
            kind, size = data[position], 1 + int.from_bytes(data[position + 1 : position + 5], "big")
            if kind not in self.wanted:
                self._passing = size
                continue
            if len(data) - position < size:
                break
            if start < position:
                yield Piece(0, data[start:position])
            start = position = position + size
            yield Piece(kind, data[position - size : position])
        self._rest = data[position:]
        if start < position:
            yield Piece(0, data[start:position])


class Greeting:
    """The client's first messages, which have no kind: requests for encryption, then the startup packet."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> tuple[int, bytes]:
        """How many requests for encryption to refuse, and the bytes to pass on: none before the startup packet."""
        self._held += data
        refusals = 0
        while len(self._held) >= 8:
            _, code = struct.unpack_from("!ii", self._held)
            if code not in {SSL_REQUEST, GSS_REQUEST}:
                return refusals, self._held
            self._held = self._held[8:]
            refusals += 1
        return refusals, b""


class Statements:
    """Tracks the names of prepared statements and portals, to find the SQL of each execution."""

    def __init__(self) -> None:
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}

    def executed(self, piece: Piece) -> str | None:
        """The SQL that this message makes the server run; None if it runs nothing."""
        body = piece.raw[5:]
        match chr(piece.kind):
            case "Q":
                return _text(body.split(b"\0", 1)[0])
            case "P":
                name, sql = body.split(b"\0", 2)[:2]
                self._prepared[name] = _text(sql)
            case "B":
                portal, name = body.split(b"\0", 2)[:2]
                self._portals[portal] = self._prepared.get(name, "")
            case "E":
                return self._portals.get(body.split(b"\0", 1)[0], "")
        return None


def is_commit(sql: str) -> bool:
    """Whether the text ends the transaction with COMMIT (COMMIT PREPARED does not)."""
    return _COMMIT.search(_COMMENTS.sub(" ", sql)) is not None


def outcome(answer: Piece) -> str:
    """The command tag of a CommandComplete, or ``ERROR`` and the SQLSTATE of an ErrorResponse."""
    body = answer.raw[5:]
    if answer.kind == ord("C"):
        return _text(body.split(b"\0", 1)[0])
    fields = {field[:1]: _text(field[1:]) for field in body.split(b"\0") if field}
    return f"ERROR {fields.get(b'C', '?')}"


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
