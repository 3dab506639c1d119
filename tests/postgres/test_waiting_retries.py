"""Retries of waiting records, without Kafka: crashes at any line, lost connections, and the order of a key."""

from __future__ import annotations

import random
import signal
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from seekpoint import Batch, events
from seekpoint.pipeline.policy import Retry
from support.dead_letter_group import DeadLetterGroup
from support.forked_process import Forked
from support.ledger_worker import backend
from support.waiting_retries import RETRY, OwnerOfRecords, change, failing_once, let_wait, rows_of

KEYS = (b"a", b"b", b"a", b"c")
KILLS = 8  # of each test


def retried(group: DeadLetterGroup, order: str, kill_at: int | None, *, is_async: bool) -> int | None:
    """Retry in another process, which ends at a line; returns how many lines there were if it is not killed."""
    dsn = group.engine.url.render_as_string(hide_password=False)
    what = {"dsn": dsn, "schema": group.schema, "order": order, "kill_at": kill_at, "is_async": is_async}
    process = Forked("support.waiting_retries", what)
    code, output, errors = process.wait(60), process.stdout.read(), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert code in ({0} if kill_at is None else {0, -signal.SIGKILL}), errors
    return int(output) if code == 0 else None


@pytest.mark.parametrize(("order", "cause"), [("key", "handler"), ("partition", "blocked")])
def test_a_record_after_a_dead_letter_of_its_key_is_blocked_and_not_tried(
    dead_letter_group: DeadLetterGroup, order: str, cause: str
) -> None:
    """It waited when the key's order was not kept, or when it was; an operator has to decide about the earlier one."""
    group = dead_letter_group
    let_wait(group, (b"a", b"a"), cause=f"'{cause}'")
    change(group, "state = 'dead_lettered', cause = 'handler'", "record_offset = 0")
    owner = OwnerOfRecords(group, group.pipeline(retry=RETRY, retry_order=order))
    owner.work(2)
    assert rows_of(group, "state", "attempts") == [(0, "dead_lettered", 1), (1, "blocked", 1)]
    assert not owner.of(events.SingleRecordAttempt)
    assert not group.applied()


def test_attempts_whose_connection_is_lost_are_no_crashes_of_the_process(
    dead_letter_group: DeadLetterGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: the process that has begun an attempt is alive, so the record does not crash it."""
    group, attempts = dead_letter_group, list[int]()
    let_wait(group, (b"a",))
    monkeypatch.setattr("seekpoint.worker.replay.group_dead_letters.TRIES", 1)

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        attempts.append(len(attempts))
        if len(attempts) <= 3:
            with group.engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backend(tx)})
        group.handle(tx, batch)

    retry = Retry(attempts=5, wait_initial=0.001, jitter=0, crashes=1)
    OwnerOfRecords(group, group.pipeline(handle=handle, retry=retry, retry_order="none")).work(4, lost=(DBAPIError,))
    assert len(attempts) == 4
    assert rows_of(group, "state", "attempts", "crashes") == [(0, "replayed", 1, 1)]
    assert group.applied() == [0]


@pytest.mark.long
@pytest.mark.repeats("is_async", "order")
@pytest.mark.parametrize("order", ["key", "none"])
@pytest.mark.parametrize("is_async", [False, True])
def test_i1_i4_an_owner_is_killed_at_any_line(dead_letter_group: DeadLetterGroup, order: str, is_async: bool) -> None:
    """Each record is applied once, each key's in order with ``key``, and only failures count as attempts."""
    group, seed = dead_letter_group, random.randrange(10**6)
    columns = {"cause": "CASE record_offset WHEN 2 THEN 'blocked' ELSE 'handler' END"} if order == "key" else {}
    let_wait(group, KEYS, **columns)
    lines = retried(group, order, None, is_async=is_async)
    assert lines is not None
    chance = random.Random(seed)
    for kill_at in sorted(chance.sample(range(lines), min(lines, KILLS))):
        with group.engine.begin() as tx:
            tx.execute(text(f'DELETE FROM "{group.schema}".applied'))
        change(group, "state = 'waiting', retry_at = clock_timestamp(), attempts = 1, crashes = 0, closed_at = NULL")
        retried(group, order, kill_at, is_async=is_async)
        begun = [crashes for _, state, crashes in rows_of(group, "state", "crashes") if state == "waiting"]
        OwnerOfRecords(group, failing_once(group, order)).work(5)
        where = f"seed {seed}, {order}, line {kill_at} of {lines}"
        assert sum(begun) <= 1, where
        assert sorted(group.applied()) == [0, 1, 2, 3], where
        assert rows_of(group, "state", "attempts") == [(0, "replayed", 2), *((n, "replayed", 1) for n in (1, 2, 3))], (
            where
        )
        if order == "key":
            assert [offset for offset in group.applied() if offset in {0, 2}] == [0, 2], where
