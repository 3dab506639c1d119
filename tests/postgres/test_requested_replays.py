"""A worker's part in requested replays, without a broker: parts, ends, and answers of the database that are missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from seekpoint import Record
from seekpoint.admin import Admin, ReplayRequest, Where
from seekpoint.backoff import Backoff
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.policy import Limits
from seekpoint.testing import raw
from seekpoint.worker.replay import group_dead_letters, requests
from seekpoint.worker.replay.requests import RequestedReplays
from support.dead_letter_group import DeadLetterGroup
from support.fixtures import NewEngine
from support.postgres_proxy import PostgresProxy
from support.sink_tables import TOPIC, orders

LIMITS = Limits(lag_check=0.1, claim_wait=1.0)


class Requests:
    """A group with dead letters that would be applied now, and an operator who requests that."""

    def __init__(self, dead_letter_group: DeadLetterGroup) -> None:
        self.dead_letter_group, self.admin = (
            dead_letter_group,
            Admin(dead_letter_group.engine, schema=dead_letter_group.schema),
        )

    def dead_letters(self, count: int, start: int = 0) -> None:
        """Make the records of these offsets dead letters."""
        self.dead_letter_group.bad = {b"b"}
        self.dead_letter_group.process(orders(*[b"b"] * count, start=start))
        self.dead_letter_group.bad.clear()

    def request(self, ids: Iterable[int] | None = None) -> ReplayRequest:
        chosen = Where() if ids is None else ids
        return self.admin.request_replay(self.dead_letter_group.group, chosen, reason="fixed", actor="ada")

    def now(self, request: ReplayRequest) -> ReplayRequest:
        return self.admin.replay_request(self.dead_letter_group.group, request.id)

    def worker(
        self, engine: Engine | None = None, *, stopping: threading.Event | None = None, **options: Any
    ) -> RequestedReplays:
        """What one worker does between its batches."""
        ledger = GroupLedger(
            engine or self.dead_letter_group.engine,
            self.dead_letter_group.group,
            schema=self.dead_letter_group.schema,
            limits=LIMITS,
        )
        return RequestedReplays(self.dead_letter_group.pipeline(**options), ledger, stopping=stopping)

    def execute(self, statement: str) -> None:
        with self.dead_letter_group.engine.begin() as tx:
            tx.execute(text(statement.format(s=f'"{self.dead_letter_group.schema}"')))


@pytest.fixture
def replay_requests(seekpoint_engine: Engine, seekpoint_schema: str) -> Requests:
    return Requests(DeadLetterGroup(seekpoint_engine, seekpoint_schema).create())


def work(worker: RequestedReplays, ended: Callable[[], bool] | None = None) -> None:
    """Look for requests and work between batches: once, or until something has ended."""
    for _ in range(1 if ended is None else 100):
        with suppress(Exception):  # what could not be stored: the status thread announces it
            worker.check()
        if worker.is_due(is_claiming=False):
            worker.work()
        else:
            threading.Event().wait(0.02)
        if ended is not None and ended():
            return
    assert ended is None, "it has not ended"


def test_a_part_ends_after_a_hundred_dead_letters_or_a_second(
    replay_requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (requests.MOST, requests.SECONDS) == (100, 1.0)
    monkeypatch.setattr(requests, "MOST", 3)
    monkeypatch.setattr(requests, "monotonic", lambda: 0.0)
    replay_requests.dead_letters(7)
    request, worker = replay_requests.request(), replay_requests.worker()
    counts = []
    for _ in range(3):
        work(worker)
        counts.append((replay_requests.now(request).state, replay_requests.now(request).replayed))
    assert counts == [("started", 3), ("started", 6), ("done", 7)]
    assert replay_requests.dead_letter_group.applied() == list(range(7))
    clock = iter(range(1000))
    monkeypatch.setattr(requests, "monotonic", lambda: next(clock))  # each record takes a second
    replay_requests.dead_letters(3, 7)
    slow = replay_requests.request()
    work(worker)
    assert (replay_requests.now(slow).state, replay_requests.now(slow).replayed) == ("started", 1)


def test_a_request_says_who_made_it_and_is_taken_by_one_worker(replay_requests: Requests) -> None:
    replay_requests.dead_letters(12)
    ids = [dead_letter.id for dead_letter in replay_requests.dead_letter_group.open()]
    requests = [replay_requests.request(reversed(ids[n : n + 3])) for n in range(0, 12, 3)]
    assert requests[0].dead_letters == tuple(ids[:3])
    assert replay_requests.dead_letter_group.actions()[0] == (
        "request replay",
        None,
        "ada",
        f"request {requests[0].id}, 3 dead letters: fixed",
    )
    barrier = threading.Barrier(2)

    def compete() -> None:
        worker = replay_requests.worker()
        barrier.wait(10)
        work(worker, lambda: all(replay_requests.now(request).has_ended for request in requests))

    threads = [threading.Thread(target=compete) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [
        (
            replay_requests.now(request).state,
            replay_requests.now(request).replayed,
            replay_requests.now(request).refused,
        )
        for request in requests
    ] == [("done", 3, 0)] * 4
    assert sorted(replay_requests.dead_letter_group.applied()) == list(range(12))


def test_a_worker_that_ends_hands_its_request_back_with_what_is_left(
    replay_requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key's blocked dead letters, which the first one draws along, are left, too."""
    monkeypatch.setattr(requests, "MOST", 1)
    replay_requests.dead_letter_group.bad = {b"b"}
    replay_requests.dead_letter_group.process(
        [*orders(*[b"b"] * 3, key=b"k"), *orders(b"b", b"b", start=3, key=b"other")], keep_key_order=True
    )
    replay_requests.dead_letter_group.bad.clear()
    first, *_, last = (dead_letter.id for dead_letter in replay_requests.dead_letter_group.open())
    request = replay_requests.request([first, last])
    for _ in range(2):
        worker = replay_requests.worker(keep_key_order=True)
        work(worker)
        worker.close(hand_back=True)
        handed = replay_requests.now(request)
        assert (handed.state, handed.worker, handed.started_at) == ("requested", None, None)
    assert (handed.replayed, handed.failed, handed.refused) == (2, 0, 0)
    last_worker = replay_requests.worker(keep_key_order=True)
    work(last_worker, lambda: replay_requests.now(request).has_ended)
    done = replay_requests.now(request)
    # The three of the first key; of the other key the last one is not the first, and is refused.
    assert (done.state, done.replayed, done.refused) == ("done", 3, 1)
    assert replay_requests.dead_letter_group.applied() == [0, 1, 2]


def test_a_worker_that_ends_by_an_error_fails_its_request(
    replay_requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MOST", 1)
    replay_requests.dead_letters(2)
    request, worker = replay_requests.request(), replay_requests.worker()
    work(worker)
    worker.close(hand_back=False)
    assert "the worker ended before the replay did" in (replay_requests.now(request).error or "")
    other = replay_requests.worker()
    work(other)
    assert (replay_requests.now(request).state, replay_requests.dead_letter_group.applied()) == ("failed", [0])


def test_a_request_of_before_a_newer_handler_version_fails(replay_requests: Requests) -> None:
    replay_requests.dead_letters(2)
    request = replay_requests.request()
    replay_requests.execute("UPDATE {s}.consumer_group SET version = 2")
    work(replay_requests.worker())
    assert replay_requests.now(request).state == "failed"
    assert "newer handler version" in (replay_requests.now(request).error or "")
    assert replay_requests.dead_letter_group.applied() == []


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
@pytest.mark.parametrize("step", ["taking it", "replaying", "storing its end"])
def test_a_commit_without_an_answer_is_no_error_of_the_worker(
    replay_requests: Requests, proxy: PostgresProxy, new_engine: NewEngine, step: str, when: Any
) -> None:
    """Each record is applied once, and the request is done."""
    replay_requests.dead_letters(2)
    worker = replay_requests.worker(new_engine(proxy.dsn, pool_pre_ping=True))
    request = replay_requests.request()
    worker.check()
    if step == "taking it":
        proxy.arm(when)
    else:
        skips = [0 if step == "replaying" else 1]

        def arm(tx: object, record: Record[Any, Any]) -> None:
            if record.offset == 1 and skips:
                proxy.arm(when, skip=skips.pop())

        replay_requests.dead_letter_group.on_record = arm
    worker.work()
    proxy.wait_until_fired()
    work(worker, lambda: replay_requests.now(request).has_ended)
    assert (replay_requests.now(request).state, replay_requests.now(request).replayed) == ("done", 2)
    assert replay_requests.dead_letter_group.applied() == [0, 1]


def test_an_end_that_cannot_be_stored_is_reported_and_tried_again(replay_requests: Requests) -> None:
    replay_requests.dead_letters(2)
    worker, request = replay_requests.worker(), replay_requests.request()

    def rename(tx: object, record: Record[Any, Any]) -> None:
        if record.offset == 0:
            replay_requests.execute("ALTER TABLE {s}.replay_request RENAME COLUMN replayed TO elsewhere")

    replay_requests.dead_letter_group.on_record = rename
    work(worker)
    assert not worker.is_due(is_claiming=False), "it is not tried at once"
    with pytest.raises(Exception, match='"replayed"'):
        worker.check()
    replay_requests.execute("ALTER TABLE {s}.replay_request RENAME COLUMN elsewhere TO replayed")
    work(worker, lambda: replay_requests.now(request).has_ended)
    worker.check()
    assert (replay_requests.now(request).state, replay_requests.now(request).replayed) == ("done", 2)
    assert replay_requests.dead_letter_group.applied() == [0, 1]


TERMINATE = "SELECT pg_terminate_backend(pg_backend_pid())"
CODE = "DO $$ BEGIN RAISE SQLSTATE '{}'; END $$"


def failing(replay_requests: Requests, statement: str, times: int) -> None:
    """The replay of offset 1 runs this statement, so often."""
    left = [times]

    def run(tx: Connection, record: Record[Any, Any]) -> None:
        if record.offset == 1 and left[0]:
            left[0] -= 1
            tx.execute(text(statement))

    replay_requests.dead_letter_group.on_record = run


@pytest.mark.parametrize("statement", [TERMINATE, CODE.format("40P01")], ids=["failover", "deadlock"])
def test_an_error_that_may_pass_keeps_the_request_and_is_tried_again_later(
    replay_requests: Requests, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """A failover amid many dead letters does not end their request."""
    monkeypatch.setattr(group_dead_letters, "TRIES", 1)
    replay_requests.dead_letters(3)
    worker, request = replay_requests.worker(), replay_requests.request()
    failing(replay_requests, statement, 2)
    monkeypatch.setattr(requests, "monotonic", lambda: 0.0)
    work(worker)
    assert (replay_requests.now(request).state, replay_requests.now(request).replayed) == ("started", 1)
    assert not worker.is_due(is_claiming=False), "it is not tried at once"
    seconds = count(1)
    monkeypatch.setattr(requests, "monotonic", lambda: next(seconds))
    work(worker, lambda: replay_requests.now(request).has_ended)
    done = replay_requests.now(request)
    assert (done.state, done.replayed, done.error) == ("done", 3, None)
    assert replay_requests.dead_letter_group.applied() == [0, 1, 2]


def test_a_replay_that_takes_too_long_fails_the_request(
    replay_requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take as long again."""
    monkeypatch.setattr(group_dead_letters, "TRIES", 1)
    replay_requests.dead_letters(2)
    worker, request = replay_requests.worker(), replay_requests.request()
    failing(replay_requests, CODE.format("25P04"), 9)
    work(worker)
    assert replay_requests.now(request).state == "failed"


def test_a_worker_that_is_to_end_does_not_wait_to_replay_again(
    replay_requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_dead_letters, "_BACKOFF", Backoff(300.0, 300.0))
    replay_requests.dead_letters(2)
    stopping = threading.Event()
    worker, request = replay_requests.worker(stopping=stopping), replay_requests.request()
    failing(replay_requests, TERMINATE, 1)
    stopping.set()
    work(worker)
    worker.close(hand_back=True)
    assert (replay_requests.now(request).state, replay_requests.now(request).replayed) == ("requested", 1)
    work(replay_requests.worker(), lambda: replay_requests.now(request).has_ended)
    assert replay_requests.dead_letter_group.applied() == [0, 1]


def test_a_worker_is_not_taken_for_dead_by_one_with_shorter_intervals(
    replay_requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was given up does not keep its request either."""
    monkeypatch.setattr(requests, "MOST", 1)
    replay_requests.dead_letters(2)
    owner, other, request = replay_requests.worker(), replay_requests.worker(), replay_requests.request()
    work(owner)
    replay_requests.execute("UPDATE {s}.replay_request SET seen_at = seen_at - interval '50 seconds'")
    other.check()
    assert replay_requests.now(request).state == "started"
    replay_requests.execute("UPDATE {s}.replay_request SET seen_at = seen_at - interval '11 seconds'")
    owner.cut()
    owner.check()
    other.check()
    assert replay_requests.now(request).state == "failed"


def test_a_request_that_others_have_failed_stays_failed(
    replay_requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker was taken for dead between two parts of it: it lets go."""
    monkeypatch.setattr(requests, "MOST", 1)
    replay_requests.dead_letters(3)
    worker, request = replay_requests.worker(), replay_requests.request()
    work(worker)
    replay_requests.execute("UPDATE {s}.replay_request SET state = 'failed'")
    for _ in range(2):
        work(worker)
    assert replay_requests.now(request).state == "failed"
    assert replay_requests.dead_letter_group.applied() == [0, 1]


def test_a_plan_counts_what_is_drawn_along_and_refusals_are_stored_with_their_sentences(
    replay_requests: Requests,
) -> None:
    """Key k: offsets 0, 2 and 4; key l: 1 and 3. What the plan says is what the worker does."""
    dead_letter_group = replay_requests.dead_letter_group
    dead_letter_group.bad = {b"bad"}
    keys = (b"k", b"l", b"k", b"l", b"k")
    records = [raw(b"bad" if n < 2 else b"good", topic=TOPIC, offset=n, key=key) for n, key in enumerate(keys)]
    dead_letter_group.process(records, keep_key_order=True)
    replay_requests.execute('UPDATE {s}.consumer_group SET declared = \'{{"orders": {{"keep_key_order": true}}}}\'')
    ids = {dead_letter.offset: dead_letter.id for dead_letter in dead_letter_group.open()}
    plan = replay_requests.admin.plan_replay(dead_letter_group.group, [ids[0], ids[3]])
    assert [
        (planned_replay.dead_letter.offset, planned_replay.after, planned_replay.refusal is None)
        for planned_replay in plan.planned
    ] == [
        (0, None, True),
        (2, ids[0], True),
        (3, None, False),
        (4, ids[0], True),
    ]
    assert (plan.ids, plan.drawn_along) == ((ids[0],), 2)
    assert plan.consequences[0].startswith("2 later dead letters of the same keys are replayed, too")
    assert f"comes after {ids[1]} (offset 1)" in str(plan.refused[0].refusal)
    dead_letter_group.bad.clear()
    request, worker = replay_requests.request([ids[0], ids[3]]), replay_requests.worker(keep_key_order=True)
    work(worker, lambda: replay_requests.now(request).has_ended)
    done = replay_requests.now(request)
    assert (done.state, done.replayed, done.failed, done.refused) == ("done", 3, 0, 1)
    assert done.refusals == (plan.refused[0].refusal,)
    assert dead_letter_group.applied() == [0, 2, 4]
    assert [action[0] for action in dead_letter_group.actions()] == ["request replay"], (
        "one row, and none for each dead letter"
    )
    closed = replay_requests.admin.dead_letters(dead_letter_group.group).get(ids[2])
    assert (closed.closed_by, closed.closed_reason) == ("ada", "fixed")


def test_a_plan_of_many_reads_them_in_few_statements(replay_requests: Requests) -> None:
    """Each page is found by a scan of those before it: in pages of 500, a plan of 93,000 took half a minute."""
    replay_requests.dead_letters(1)
    replay_requests.execute(
        "INSERT INTO {s}.dead_letter (consumer_group, topic, topic_id, partition, record_offset, key, value, "
        "header_names, header_values, state, cause, error, attempts, version) "
        "SELECT consumer_group, topic, topic_id, partition, n, convert_to('k' || mod(n, 5000), 'UTF8'), value, "
        "header_names, header_values, CASE WHEN n < 5000 THEN 'dead_lettered' ELSE 'blocked' END, cause, error, "
        "attempts, version FROM {s}.dead_letter, generate_series(1, 5999) n"
    )
    replay_requests.execute("UPDATE {s}.partition_offset SET next_offset = 6000")
    replay_requests.execute('UPDATE {s}.consumer_group SET declared = \'{{"orders": {{"keep_key_order": true}}}}\'')
    statements: list[str] = []

    def note(*args: Any) -> None:
        statements.append(args[2])

    event.listen(replay_requests.dead_letter_group.engine, "before_cursor_execute", note)
    try:
        plan = replay_requests.admin.plan_replay(replay_requests.dead_letter_group.group, Where())
    finally:
        event.remove(replay_requests.dead_letter_group.engine, "before_cursor_execute", note)
    assert len(plan.ids) == 6_000
    assert sum("dead_letter.record_offset" in statement for statement in statements) <= 4
