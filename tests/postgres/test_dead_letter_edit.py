"""A dead letter's record with another value: stored beside the log's, applied by a replay, undone, and kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from postgres.test_replay_faults import OPERATOR, ROOT, arm_after_the_close
from seekpoint import Json, Limits
from seekpoint.admin import Admin, Edited
from seekpoint.errors import ConfigError
from seekpoint.ledger import GroupLedger
from seekpoint.records import State
from seekpoint.worker.replay.requests import RequestedReplays
from support.dead_letter_group import DeadLetterGroup
from support.fixtures import NewEngine
from support.postgres_proxy import PostgresProxy, When
from support.sink_tables import orders


def values(dead_letter_group: DeadLetterGroup) -> list[bytes]:
    """What was applied, in the order of writing."""
    with dead_letter_group.engine.connect() as tx:
        return [
            bytes(value)
            for value in tx.scalars(select(dead_letter_group.table.c.value).order_by(dead_letter_group.table.c.n))
        ]


def test_a_replay_applies_the_edited_value_and_the_logs_stays_beside_it(dead_letter_group: DeadLetterGroup) -> None:
    """I4: with who edited it, why, and when; in the history, too."""
    dead_letter = dead_letter_group.dead_lettered(b"a", b"b")
    replay = dead_letter_group.new_replay()
    plan = replay.plan_edit(dead_letter.id, b"fixed")
    assert (plan.refusal, plan.value, plan.dead_letter.is_edited) == (None, b"fixed", False)
    assert not replay.get(dead_letter.id).is_edited, "a plan changes nothing"
    replay.edit(dead_letter.id, b"first", reason="typo")
    assert replay.edit(dead_letter.id, b"fixed", reason="ticket 7").refusal is None
    now = replay.get(dead_letter.id)
    assert (now.value, now.edited_value, now.edited_by, now.edited_reason) == (b"b", b"fixed", "ada", "ticket 7")
    assert now.edited_at is not None
    assert (now.state, now.record.value) == (State.DEAD_LETTERED, b"fixed")
    dead_letter_group.bad = {b"b"}
    assert dead_letter_group.new_replay("eve").replay(dead_letter.id, reason="edited").is_applied
    assert values(dead_letter_group) == [b"a", b"fixed"]
    now = replay.get(dead_letter.id)
    assert (now.value, now.edited_value, now.state, now.closed_by) == (b"b", b"fixed", State.REPLAYED, "eve")
    assert dead_letter_group.actions() == [
        ("edit", 1, "ada", f"dead letter {dead_letter.id}: typo"),
        ("edit", 1, "ada", f"dead letter {dead_letter.id}: ticket 7"),
        ("replay", 1, "eve", f"dead letter {dead_letter.id}: edited"),
    ]


def test_an_edited_value_that_fails_too_stays_open_and_may_be_edited_again(dead_letter_group: DeadLetterGroup) -> None:
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dead_letter_group.bad = {b"b", b"worse"}
    replay = dead_letter_group.new_replay()
    replay.edit(dead_letter.id, b"worse", reason="a try")
    assert replay.replay(dead_letter.id).failure is not None
    assert (replay.get(dead_letter.id).edited_value, values(dead_letter_group)) == (b"worse", [])
    replay.edit(dead_letter.id, b"", reason="an empty value is a value, too")
    assert replay.replay(dead_letter.id).is_applied
    assert values(dead_letter_group) == [b""]


def test_the_codec_reads_the_edited_value(dead_letter_group: DeadLetterGroup) -> None:
    """One that could not be decoded, by a list's dead letters, which have no values."""
    options: dict[str, Any] = {"value": Json(int), "handle": lambda tx, batch: seen.extend(r.value for r in batch)}
    seen: list[int] = []
    (dead_letter,) = dead_letter_group.park(*orders(b"{"), **options)
    replay = dead_letter_group.new_replay(**options)
    replay.edit(dead_letter.id, b"7", reason="half of it was lost")
    assert replay.replay_all().replayed == 1
    assert seen == [7]


def test_an_undone_edit_lets_a_replay_apply_what_the_log_has(dead_letter_group: DeadLetterGroup) -> None:
    dead_letter = dead_letter_group.dead_lettered(b"b")
    replay = dead_letter_group.new_replay()
    refusal = replay.undo_edit(dead_letter.id, reason="nothing to undo").refusal
    assert (
        refusal
        == f"dead letter {dead_letter.id} (orders/0 offset 0) is not edited: a replay applies it as the log has it"
    )
    replay.edit(dead_letter.id, b"wrong", reason="typo")
    assert replay.plan_edit(dead_letter.id, None).refusal is None
    undone = replay.undo_edit(dead_letter.id, reason="it was right")
    assert (undone.refusal, undone.dead_letter.edited_by, undone.value) == (None, "ada", b"b")
    now = replay.get(dead_letter.id)
    assert (now.edited_value, now.edited_at, now.edited_by, now.edited_reason) == (None, None, None, None)
    assert replay.replay(dead_letter.id).is_applied
    assert values(dead_letter_group) == [b"b"]
    assert [action[0] for action in dead_letter_group.actions()] == ["edit", "undo edit", "replay"]


def test_only_open_dead_letters_are_edited_and_for_a_reason(dead_letter_group: DeadLetterGroup) -> None:
    dead_letter = dead_letter_group.dead_lettered(b"b")
    replay = dead_letter_group.new_replay()
    with pytest.raises(ConfigError, match="an edit needs a reason"):
        replay.edit(dead_letter.id, b"x", reason=" ")
    with pytest.raises(ConfigError, match=f"has no dead letter {dead_letter.id + 1}"):
        replay.edit(dead_letter.id + 1, b"x", reason="another one")
    replay.replay(dead_letter.id)
    for edited in (replay.plan_edit(dead_letter.id, b"x"), replay.edit(dead_letter.id, b"x", reason="late")):
        assert "was replayed by ada" in (edited.refusal or "")
    undone = replay.undo_edit(dead_letter.id, reason="late")
    assert "was replayed by ada" in (undone.refusal or "")
    assert (replay.get(dead_letter.id).is_edited, [action[0] for action in dead_letter_group.actions()]) == (
        False,
        ["replay"],
    )


@pytest.mark.parametrize("value", [r"\x41", None, {"id": 1}])
def test_a_value_that_is_not_bytes_is_refused(dead_letter_group: DeadLetterGroup, value: Any) -> None:
    """Postgres would read a text as bytea's escapes; and None is no undo."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    replay = dead_letter_group.new_replay()
    replay.edit(dead_letter.id, b"fixed", reason="r")
    with pytest.raises(
        ConfigError, match=r"edit\(\) takes bytes, got .*: encode the value, or undo an edit by undo_edit"
    ):
        replay.edit(dead_letter.id, value, reason="r")
    assert replay.get(dead_letter.id).edited_value == b"fixed"
    with pytest.raises(ConfigError, match="has no dead letter "):
        replay.edit(str(dead_letter.id), b"x", reason="r")  # type: ignore[arg-type]


def test_a_running_worker_replays_the_edited_value(dead_letter_group: DeadLetterGroup) -> None:
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dead_letter_group.bad = {b"b"}
    dead_letter_group.new_replay().edit(dead_letter.id, b"fixed", reason="ticket 7")
    admin = Admin(dead_letter_group.engine, schema=dead_letter_group.schema)
    request = admin.request_replay(dead_letter_group.group, [dead_letter.id], reason="edited", actor="ada")
    ledger = GroupLedger(
        dead_letter_group.engine, dead_letter_group.group, schema=dead_letter_group.schema, limits=Limits(lag_check=0.1)
    )
    worker = RequestedReplays(dead_letter_group.pipeline(), ledger)
    worker.check()
    worker.work()
    assert admin.replay_request(dead_letter_group.group, request.id).replayed == 1
    assert values(dead_letter_group) == [b"fixed"]


def test_an_operator_that_is_killed_between_edit_and_replay_leaves_the_edit(dead_letter_group: DeadLetterGroup) -> None:
    """I1: what the replay wrote is gone, and the next replay applies the edited value once."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dead_letter_group.new_replay().edit(dead_letter.id, b"fixed", reason="ticket 7")
    dsn = dead_letter_group.engine.url.render_as_string(hide_password=False)
    what = {"dsn": dsn, "schema": dead_letter_group.schema, "id": dead_letter.id, "step": "closed"}
    with subprocess.Popen(
        [sys.executable, "-c", OPERATOR, json.dumps(what)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as operator:
        assert operator.stdout is not None
        try:
            assert operator.stdout.readline() == b"here\n"
        finally:
            operator.kill()
    assert (values(dead_letter_group), dead_letter_group.new_replay().get(dead_letter.id).edited_value) == (
        [],
        b"fixed",
    )
    assert dead_letter_group.new_replay().replay(dead_letter.id).is_applied
    assert values(dead_letter_group) == [b"fixed"]


@pytest.mark.parametrize("when", ["after_commit", "before_commit"])
def test_a_commit_without_an_answer_edits_once(
    dead_letter_group: DeadLetterGroup, proxy: PostgresProxy, new_engine: NewEngine, when: When
) -> None:
    """I4: and one row in the history."""
    dead_letter, engine = dead_letter_group.dead_lettered(b"b"), new_engine(proxy.dsn)
    arm_after_the_close(engine, proxy, [when, when])
    replay = dead_letter_group.new_replay(engine=engine)
    edited: Edited = replay.edit(dead_letter.id, b"fixed", reason="ticket 7")
    assert (edited.refusal, edited.value) == (None, b"fixed")
    assert proxy.fired.is_set()
    assert replay.undo_edit(dead_letter.id, reason="no").refusal is None
    assert not dead_letter_group.new_replay().get(dead_letter.id).is_edited
    assert [action[0] for action in dead_letter_group.actions()] == ["edit", "undo edit"]


def test_a_record_that_is_read_again_is_the_logs(dead_letter_group: DeadLetterGroup) -> None:
    """After a reset its dead letter is opened again: an earlier edit was about another reading of it."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dead_letter_group.new_replay().edit(dead_letter.id, b"fixed", reason="ticket 7")
    GroupLedger(dead_letter_group.engine, dead_letter_group.group, schema=dead_letter_group.schema).reset_offset(
        "orders", 0, to=0, log=None, reason="again"
    )
    dead_letter_group.bad = {b"b"}
    (again,) = dead_letter_group.park(*orders(b"b"))
    assert (again.id, again.is_edited) == (dead_letter.id, False)


def test_a_purge_keeps_what_was_applied_in_place_of_the_logs_value(dead_letter_group: DeadLetterGroup) -> None:
    """I4: a reload reads it from there."""
    dead_letter_group.bad = {b"b"}
    first, _ = dead_letter_group.park(*orders(b"b", b"b"))
    dead_letter_group.bad.clear()
    replay = dead_letter_group.new_replay()
    replay.edit(first.id, b"fixed", reason="ticket 7")
    assert replay.replay_all().replayed == 2
    admin = Admin(dead_letter_group.engine, schema=dead_letter_group.schema)
    plan = admin.plan_purge(dead_letter_group.group, timedelta(0))
    assert plan.counts == {"replayed": 1}
    assert admin.apply(plan, reason="old", actor="ada") is not None
    assert [dead_letter.id for dead_letter in dead_letter_group.dead_letters()] == [first.id]


def test_an_export_has_both_values(dead_letter_group: DeadLetterGroup) -> None:
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dead_letter_group.new_replay().edit(dead_letter.id, b"fixed", reason="ticket 7")
    (exported,) = dead_letter_group.new_replay().export()
    assert (exported["value"]["text"], exported["edited_value"]["text"]) == ("b", "fixed")
    assert (exported["edited_by"], exported["edited_reason"]) == ("ada", "ticket 7")
    assert datetime.fromisoformat(exported["edited_at"]) < datetime.now(UTC) + timedelta(minutes=1)
