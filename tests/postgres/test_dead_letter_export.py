"""Dead letters on their way out: every byte of the record is in the export, whatever it is."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from seekpoint import Bytes
from seekpoint.admin import Admin, Where
from seekpoint.errors import ConfigError
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import Cause, RawRecord, State
from seekpoint.testing import raw
from support.dead_letter_group import EVERY, DeadLetterGroup
from support.sink_tables import TOPIC, orders

NO_LIMITS = DeadLetterLimits(consecutive=None, ratio=None)
LARGE = bytes(range(256)) * 40_960  # 10 MiB
NOT_UTF8 = b"\xff\xfe-name".decode("utf-8", "surrogateescape")


def odd() -> list[RawRecord]:
    """Records that are hard to write down."""
    headers = [("a", b"1"), ("a", b"1"), ("", b""), ("null", None), ("nul\0", b"\0"), (NOT_UTF8, b"\xff"), ("ü", b"\n")]
    time = datetime(2026, 7, 1, 12, 0, 0, 123_000, tzinfo=UTC)
    return [
        raw(b"a\0b", topic=TOPIC, offset=0, key=b"\0", headers=headers, timestamp=time, leader_epoch=3),
        raw(LARGE, topic=TOPIC, offset=1, key=b"\xff\xfe"),
        raw(None, topic=TOPIC, offset=2, key=None),
        raw(b"", topic=TOPIC, offset=3, key=b""),
        raw("grün\u2028\ud83d\ude00".encode("utf-16", "surrogatepass"), topic=TOPIC, offset=4),
    ]


def back(line: dict[str, Any]) -> RawRecord:
    """The record that a line of the export stands for."""

    def data(encoded: dict[str, str] | None) -> bytes | None:
        return None if encoded is None else b64decode(encoded["base64"], validate=True)

    headers = tuple(
        ((data(name) or b"").decode("utf-8", "surrogateescape"), data(value)) for name, value in line["headers"]
    )
    return RawRecord(
        line["topic"],
        line["partition"],
        line["offset"],
        line["timestamp_ms"],
        data(line["key"]),
        data(line["value"]),
        headers,
        line["leader_epoch"],
    )


def test_an_export_has_every_byte_of_the_record(dead_letter_group: DeadLetterGroup) -> None:
    """I4: null and empty are different; NUL, 10 MiB and what is no UTF-8 are there; headers in order, doubles kept."""
    dead_letter_group.bad = {r.value for r in odd() if r.value is not None}
    dead_letter_group.park(*odd())
    text = "\n".join(json.dumps(line) for line in dead_letter_group.new_replay().export())
    lines = [json.loads(line) for line in text.split("\n")]
    assert [back(line) for line in lines] == odd()
    assert lines[0]["value"] == {"base64": "YQBi", "text": "a\0b"}
    assert lines[0]["timestamp"] == "2026-07-01T12:00:00.123000+00:00"
    assert lines[1]["key"] == {"base64": "//4="}
    assert (lines[1]["size"], lines[2]["value"], lines[2]["key"]) == (len(LARGE), None, None)
    assert lines[3]["value"] == lines[3]["key"] == {"base64": "", "text": ""}
    assert all(
        (line["group"], line["state"], line["cause"], line["version"]) == ("g", "dead_lettered", "handler", 1)
        for line in lines
        if line["value"] is not None
    )


def test_an_export_has_what_became_of_it(dead_letter_group: DeadLetterGroup) -> None:
    """I4: errors, replays, and who decided."""
    dead_letter_group.bad = {b"b"}
    first, second, third = dead_letter_group.park(*orders(b"b", b"b", b"b"))
    dead_letter_group.new_replay().replay(first.id)
    dead_letter_group.new_replay().discard(second.id, reason="a double")
    lines = {line["id"]: line for line in dead_letter_group.new_replay().export(EVERY)}
    assert lines[first.id]["replays"] == 1
    assert lines[first.id]["replay_error"] == lines[first.id]["error"] == "ValueError: b'b' is not to be taken"
    assert (lines[second.id]["state"], lines[second.id]["closed_by"]) == ("discarded", "ada")
    assert lines[second.id]["closed_reason"] == "a double"
    assert datetime.fromisoformat(lines[second.id]["closed_at"]).tzinfo is not None
    assert [line["id"] for line in dead_letter_group.new_replay().export()] == [first.id, third.id]


def test_a_replay_has_every_byte_too(dead_letter_group: DeadLetterGroup) -> None:
    """I4: what comes back to the handler is the record as it was read."""
    dead_letter_group.bad = {r.value for r in odd() if r.value is not None}
    dead_letter_group.park(*odd())
    dead_letter_group.bad.clear()
    dead_letter_group.batches.clear()
    assert dead_letter_group.new_replay(value=Bytes(tombstones=True)).replay_all().replayed == len(odd())
    assert [record for batch in dead_letter_group.batches for record in batch] == odd()


@pytest.mark.long
def test_a_choice_meets_every_condition(dead_letter_group: DeadLetterGroup) -> None:
    """I4: and many pages are one list."""
    dead_letter_group.bad = {b"bad", b"worse"}
    dead_letter_group.process(orders(*[b"bad"] * 3, b"worse"), dead_letter_limits=NO_LIMITS)
    dead_letter_group.process(orders(*[b"bad"] * 1100, partition=1), dead_letter_limits=NO_LIMITS)
    dead_letters = Admin(dead_letter_group.engine, schema=dead_letter_group.schema).dead_letters("g", actor="eve")

    def count(**where: Any) -> int:
        return len(list(dead_letters.list(Where(**where))))

    assert count() == 1104
    assert (count(topic=TOPIC, partition=0), count(topic="other"), count(error="b'worse'")) == (4, 0, 1)
    assert count(topic=TOPIC, partition=1, from_offset=10, to_offset=20) == 10
    assert (count(cause=Cause.HANDLER), count(cause=Cause.BLOCKED), count(states=(State.DISCARDED,))) == (1104, 0, 0)
    now = datetime.now(UTC)
    assert (count(since=now - timedelta(hours=1)), count(since=now + timedelta(hours=1))) == (1104, 0)
    assert [dead_letter.offset for dead_letter in dead_letters.list(limit=6)] == [0, 1, 2, 3, 0, 1]
    seen: list[int] = []
    done = dead_letters.discard(
        Where(topic=TOPIC, partition=0), reason="all", progress=lambda planned: seen.append(planned.dead_letter.id)
    )
    assert [planned.dead_letter.id for planned in done] == seen
    assert (len(done), count(), count(states=(State.DISCARDED,))) == (4, 1100, 4)


def test_the_history_counts_those_that_a_discard_closes(dead_letter_group: DeadLetterGroup) -> None:
    """Those that are closed before it, or that came after its plan, are refused."""
    dead_letter_group.bad = {b"b"}
    first, *early = dead_letter_group.park(*orders(b"b", b"b", b"b"))
    *_, late = dead_letter_group.park(*orders(b"b", start=3))
    dead_letter_group.new_replay().discard(first.id, reason="a double")
    chosen, as_of = (
        [dead_letter.id for dead_letter in (first, *early, late)],
        max(dead_letter.dead_lettered_at for dead_letter in early),
    )
    done = dead_letter_group.new_replay().discard(chosen, reason="old", as_of=as_of)
    assert [planned.refusal is None for planned in done] == [False, True, True, False]
    assert dead_letter_group.actions()[1:] == [("discard", 1, "ada", "2 dead letters: old")]


def test_a_discard_needs_a_reason_and_a_dead_letter_that_exists(dead_letter_group: DeadLetterGroup) -> None:
    """I4."""
    dead_letter_group.bad = {b"b"}
    (dead_letter,) = dead_letter_group.park(*orders(b"b"))
    with pytest.raises(ConfigError, match="a discard needs a reason"):
        dead_letter_group.new_replay().discard(dead_letter.id, reason=" ")
    with pytest.raises(ConfigError, match="has no dead letter 99"):
        dead_letter_group.new_replay().discard([dead_letter.id, 99], reason="x")
    (done,) = dead_letter_group.new_replay().discard(dead_letter.id, reason="with a \0 in it \ud800")
    assert done.refusal is None
    assert dead_letter_group.new_replay().get(dead_letter.id).closed_reason == "with a \\x00 in it \\ud800"
