"""What the Postgres proxy reads off the wire, however the bytes are cut."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import pgwire
from support.pgwire import Framer, Greeting, Piece, Statements


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def startup(code: int, body: bytes = b"") -> bytes:
    return struct.pack("!ii", len(body) + 8, code) + body


messages = st.lists(st.tuples(st.sampled_from("QPBEdcSX"), st.binary(max_size=40)), max_size=12)


@given(messages, st.data())
def test_pieces_are_all_the_bytes_and_messages_are_whole(sent: list[tuple[str, bytes]], data: st.DataObject) -> None:
    stream = b"".join(message(kind, body) for kind, body in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    framer = Framer(pgwire.FRONTEND)

    pieces = [
        piece
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for piece in framer.feed(stream[start:end])
    ]

    assert b"".join(piece.raw for piece in pieces) == stream
    wanted = [message(kind, body) for kind, body in sent if kind in "QPBE"]
    assert [piece.raw for piece in pieces if piece.kind] == wanted


def test_a_long_message_that_is_not_wanted_is_passed_on_as_it_comes() -> None:
    framer = Framer(pgwire.FRONTEND)
    copy_data = message("d", b"x" * 100_000)

    passed = b"".join(piece.raw for piece in framer.feed(copy_data[:50_000]))

    assert passed == copy_data[:50_000]


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_the_greeting_refuses_encryption_and_keeps_the_startup_packet(step: int) -> None:
    first = startup(196608, b"user\0me\0\0")
    stream = startup(pgwire.GSS_REQUEST) + startup(pgwire.SSL_REQUEST) + first
    greeting, refusals, passed = Greeting(), 0, b""

    for start in range(0, len(stream), step):
        chunk = stream[start : start + step]
        if passed:  # the greeting is over: the rest goes past it
            passed += chunk
            continue
        more, passed = greeting.feed(chunk)
        refusals += more

    assert refusals == 2
    assert passed == first


def test_an_execution_is_known_by_the_sql_that_was_prepared() -> None:
    statements = Statements()
    runs = [
        ("P", b"s1\0INSERT INTO t VALUES ($1)\0\0\0", None),
        ("P", b"\0SELECT 1\0\0\0", None),
        ("B", b"\0s1\0\0\0", None),
        ("E", b"\0\0\0\0\0", "INSERT INTO t VALUES ($1)"),
        ("B", b"c\0\0\0\0", None),
        ("E", b"c\0\0\0\0\0", "SELECT 1"),
        ("E", b"\0\0\0\0\0", "INSERT INTO t VALUES ($1)"),
        ("Q", b"COMMIT\0", "COMMIT"),
    ]
    for kind, body, sql in runs:
        assert statements.executed(Piece(ord(kind), message(kind, body))) == sql


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "commit;",
        " COMMIT WORK ; ",
        "Commit Transaction AND NO CHAIN",
        "END",
        "end transaction;",
        "/* app='a;b' */ COMMIT",
        "COMMIT -- done",
        "INSERT INTO t VALUES ('x'); COMMIT",
    ],
)
def test_this_is_a_commit(sql: str) -> None:
    assert pgwire.is_commit(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "COMMIT PREPARED 'x'",
        "ROLLBACK",
        "SELECT 'COMMIT'",
        "INSERT INTO t VALUES ('; COMMIT')",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END",
        "DO $$ BEGIN COMMIT; END $$",
        "-- COMMIT",
    ],
)
def test_this_is_none(sql: str) -> None:
    assert not pgwire.is_commit(sql)


def test_outcomes_are_tags_or_codes() -> None:
    tag = Piece(ord("C"), message("C", b"INSERT 0 1\0"))
    error = Piece(ord("E"), message("E", b"SERROR\0VERROR\0C23505\0Mduplicate key\0\0"))

    assert pgwire.outcome(tag) == "INSERT 0 1"
    assert pgwire.outcome(error) == "ERROR 23505"
