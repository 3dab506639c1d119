"""A worker's part in requested replays, without a broker: parts, ends, and answers of the database that are missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from seekpoint import Ledger, Record
from seekpoint.admin import Admin, ReplayRequest, Where
from seekpoint.backoff import Backoff
from seekpoint.pipeline.policy import Limits
from seekpoint.testing import raw
from seekpoint.worker.replay import dead_letter_admin, requests
from seekpoint.worker.replay.requests import RequestedReplays
from support.dead_letter_group import TOPIC, Depot, orders
from support.fixtures import NewEngine
from support.postgres_proxy import PostgresProxy

LIMITS = Limits(lag_check=0.1, claim_wait=1.0)


class Requests:
    """A group with dead letters that would be applied now, and an operator who requests that."""

    def __init__(self, depot: Depot) -> None:
        self.depot, self.admin = depot, Admin(depot.engine, schema=depot.schema)

    def dead_letters(self, count: int, start: int = 0) -> None:
        """Make the records of these offsets dead letters."""
        self.depot.bad = {b"b"}
        self.depot.process(orders(*[b"b"] * count, start=start))
        self.depot.bad.clear()

    def request(self, ids: Iterable[int] | None = None) -> ReplayRequest:
        chosen = Where() if ids is None else ids
        return self.admin.request_replay(self.depot.group, chosen, reason="fixed", actor="ada")

    def now(self, request: ReplayRequest) -> ReplayRequest:
        return self.admin.replay_request(self.depot.group, request.id)

    def worker(
        self, engine: Engine | None = None, *, stopping: threading.Event | None = None, **options: Any
    ) -> RequestedReplays:
        """What one worker does between its batches."""
        ledger = Ledger(engine or self.depot.engine, self.depot.group, schema=self.depot.schema, limits=LIMITS)
        return RequestedReplays(self.depot.pipeline(**options), ledger, stopping=stopping)

    def execute(self, statement: str) -> None:
        with self.depot.engine.begin() as tx:
            tx.execute(text(statement.format(s=f'"{self.depot.schema}"')))


@pytest.fixture
def asked(seekpoint_engine: Engine, seekpoint_schema: str) -> Requests:
    return Requests(Depot(seekpoint_engine, seekpoint_schema).create())


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


def test_a_part_ends_after_a_hundred_dead_letters_or_a_second(asked: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (requests.MOST, requests.SECONDS) == (100, 1.0)
    monkeypatch.setattr(requests, "MOST", 3)
    monkeypatch.setattr(requests, "monotonic", lambda: 0.0)
    asked.dead_letters(7)
    request, worker = asked.request(), asked.worker()
    counts = []
    for _ in range(3):
        work(worker)
        counts.append((asked.now(request).state, asked.now(request).replayed))
    assert counts == [("started", 3), ("started", 6), ("done", 7)]
    assert asked.depot.applied() == list(range(7))
    clock = iter(range(1000))
    monkeypatch.setattr(requests, "monotonic", lambda: next(clock))  # each record takes a second
    asked.dead_letters(3, 7)
    slow = asked.request()
    work(worker)
    assert (asked.now(slow).state, asked.now(slow).replayed) == ("started", 1)


def test_a_request_says_who_made_it_and_is_taken_by_one_worker(asked: Requests) -> None:
    asked.dead_letters(12)
    ids = [one.id for one in asked.depot.open()]
    made = [asked.request(reversed(ids[n : n + 3])) for n in range(0, 12, 3)]
    assert made[0].dead_letters == tuple(ids[:3])
    assert asked.depot.actions()[0] == ("request replay", None, "ada", f"request {made[0].id}, 3 dead letters: fixed")
    barrier = threading.Barrier(2)

    def compete() -> None:
        worker = asked.worker()
        barrier.wait(10)
        work(worker, lambda: all(asked.now(one).has_ended for one in made))

    threads = [threading.Thread(target=compete) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert [(asked.now(one).state, asked.now(one).replayed, asked.now(one).refused) for one in made] == [
        ("done", 3, 0)
    ] * 4
    assert sorted(asked.depot.applied()) == list(range(12))


def test_a_worker_that_ends_hands_its_request_back_with_what_is_left(
    asked: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key's blocked dead letters, which the first one draws along, are left, too."""
    monkeypatch.setattr(requests, "MOST", 1)
    asked.depot.bad = {b"b"}
    asked.depot.process(
        [*orders(*[b"b"] * 3, key=b"k"), *orders(b"b", b"b", start=3, key=b"other")], keep_key_order=True
    )
    asked.depot.bad.clear()
    first, *_, last = (one.id for one in asked.depot.open())
    request = asked.request([first, last])
    for _ in range(2):
        worker = asked.worker(keep_key_order=True)
        work(worker)
        worker.close(hand_back=True)
        handed = asked.now(request)
        assert (handed.state, handed.worker, handed.started_at) == ("requested", None, None)
    assert (handed.replayed, handed.failed, handed.refused) == (2, 0, 0)
    last_worker = asked.worker(keep_key_order=True)
    work(last_worker, lambda: asked.now(request).has_ended)
    done = asked.now(request)
    # The three of the first key; of the other key the last one is not the first, and is refused.
    assert (done.state, done.replayed, done.refused) == ("done", 3, 1)
    assert asked.depot.applied() == [0, 1, 2]


def test_a_worker_that_ends_by_an_error_fails_its_request(asked: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST", 1)
    asked.dead_letters(2)
    request, worker = asked.request(), asked.worker()
    work(worker)
    worker.close(hand_back=False)
    assert "its worker ended before it did" in (asked.now(request).error or "")
    other = asked.worker()
    work(other)
    assert (asked.now(request).state, asked.depot.applied()) == ("failed", [0])


def test_a_request_of_before_a_newer_handler_version_fails(asked: Requests) -> None:
    asked.dead_letters(2)
    request = asked.request()
    asked.execute("UPDATE {s}.consumer_group SET version = 2")
    work(asked.worker())
    assert asked.now(request).state == "failed"
    assert "newer handler version" in (asked.now(request).error or "")
    assert asked.depot.applied() == []


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
@pytest.mark.parametrize("step", ["taking it", "replaying", "storing its end"])
def test_a_commit_without_an_answer_is_no_error_of_the_worker(
    asked: Requests, proxy: PostgresProxy, new_engine: NewEngine, step: str, when: Any
) -> None:
    """Each record is applied once, and the request is done."""
    asked.dead_letters(2)
    worker = asked.worker(new_engine(proxy.dsn, pool_pre_ping=True))
    request = asked.request()
    worker.check()
    if step == "taking it":
        proxy.arm(when)
    else:
        skips = [0 if step == "replaying" else 1]

        def arm(tx: object, record: Record[Any, Any]) -> None:
            if record.offset == 1 and skips:
                proxy.arm(when, skip=skips.pop())

        asked.depot.on_record = arm
    worker.work()
    assert proxy.fired.wait(10)
    work(worker, lambda: asked.now(request).has_ended)
    assert (asked.now(request).state, asked.now(request).replayed) == ("done", 2)
    assert asked.depot.applied() == [0, 1]


def test_an_end_that_cannot_be_stored_is_reported_and_tried_again(asked: Requests) -> None:
    asked.dead_letters(2)
    worker, request = asked.worker(), asked.request()

    def rename(tx: object, record: Record[Any, Any]) -> None:
        if record.offset == 0:
            asked.execute("ALTER TABLE {s}.replay_request RENAME COLUMN replayed TO elsewhere")

    asked.depot.on_record = rename
    work(worker)
    assert not worker.is_due(is_claiming=False), "it is not tried at once"
    with pytest.raises(Exception, match='"replayed"'):
        worker.check()
    asked.execute("ALTER TABLE {s}.replay_request RENAME COLUMN elsewhere TO replayed")
    work(worker, lambda: asked.now(request).has_ended)
    worker.check()
    assert (asked.now(request).state, asked.now(request).replayed) == ("done", 2)
    assert asked.depot.applied() == [0, 1]


TERMINATE = "SELECT pg_terminate_backend(pg_backend_pid())"
CODE = "DO $$ BEGIN RAISE SQLSTATE '{}'; END $$"


def failing(asked: Requests, statement: str, times: int) -> None:
    """The replay of offset 1 runs this statement, so often."""
    left = [times]

    def run(tx: Connection, record: Record[Any, Any]) -> None:
        if record.offset == 1 and left[0]:
            left[0] -= 1
            tx.execute(text(statement))

    asked.depot.on_record = run


@pytest.mark.parametrize("statement", [TERMINATE, CODE.format("40P01")], ids=["failover", "deadlock"])
def test_an_error_that_may_pass_keeps_the_request_and_is_tried_again_later(
    asked: Requests, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """A failover amid many dead letters does not end their request."""
    monkeypatch.setattr(dead_letter_admin, "TRIES", 1)
    asked.dead_letters(3)
    worker, request = asked.worker(), asked.request()
    failing(asked, statement, 2)
    monkeypatch.setattr(requests, "monotonic", lambda: 0.0)
    work(worker)
    assert (asked.now(request).state, asked.now(request).replayed) == ("started", 1)
    assert not worker.is_due(is_claiming=False), "it is not tried at once"
    seconds = count(1)
    monkeypatch.setattr(requests, "monotonic", lambda: next(seconds))
    work(worker, lambda: asked.now(request).has_ended)
    done = asked.now(request)
    assert (done.state, done.replayed, done.error) == ("done", 3, None)
    assert asked.depot.applied() == [0, 1, 2]


def test_a_replay_that_takes_too_long_fails_the_request(asked: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take as long again."""
    monkeypatch.setattr(dead_letter_admin, "TRIES", 1)
    asked.dead_letters(2)
    worker, request = asked.worker(), asked.request()
    failing(asked, CODE.format("25P04"), 9)
    work(worker)
    assert asked.now(request).state == "failed"


def test_a_worker_that_is_to_end_does_not_wait_to_replay_again(
    asked: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_admin, "_BACKOFF", Backoff(300.0, 300.0))
    asked.dead_letters(2)
    stopping = threading.Event()
    worker, request = asked.worker(stopping=stopping), asked.request()
    failing(asked, TERMINATE, 1)
    stopping.set()
    work(worker)
    worker.close(hand_back=True)
    assert (asked.now(request).state, asked.now(request).replayed) == ("requested", 1)
    work(asked.worker(), lambda: asked.now(request).has_ended)
    assert asked.depot.applied() == [0, 1]


def test_a_worker_is_not_taken_for_dead_by_one_with_shorter_intervals(
    asked: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was given up does not keep its request either."""
    monkeypatch.setattr(requests, "MOST", 1)
    asked.dead_letters(2)
    owner, other, request = asked.worker(), asked.worker(), asked.request()
    work(owner)
    asked.execute("UPDATE {s}.replay_request SET seen_at = seen_at - interval '50 seconds'")
    other.check()
    assert asked.now(request).state == "started"
    asked.execute("UPDATE {s}.replay_request SET seen_at = seen_at - interval '11 seconds'")
    owner.cut()
    owner.check()
    other.check()
    assert asked.now(request).state == "failed"


def test_a_request_that_others_have_failed_stays_failed(asked: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker was taken for dead between two parts of it: it lets go."""
    monkeypatch.setattr(requests, "MOST", 1)
    asked.dead_letters(3)
    worker, request = asked.worker(), asked.request()
    work(worker)
    asked.execute("UPDATE {s}.replay_request SET state = 'failed'")
    for _ in range(2):
        work(worker)
    assert asked.now(request).state == "failed"
    assert asked.depot.applied() == [0, 1]


def test_a_plan_counts_what_is_drawn_along_and_refusals_are_stored_with_their_sentences(asked: Requests) -> None:
    """Key k: offsets 0, 2 and 4; key l: 1 and 3. What the plan says is what the worker does."""
    depot = asked.depot
    depot.bad = {b"bad"}
    keys = (b"k", b"l", b"k", b"l", b"k")
    records = [raw(b"bad" if n < 2 else b"good", topic=TOPIC, offset=n, key=key) for n, key in enumerate(keys)]
    depot.process(records, keep_key_order=True)
    asked.execute('UPDATE {s}.consumer_group SET declared = \'{{"orders": {{"keep_key_order": true}}}}\'')
    ids = {one.offset: one.id for one in depot.open()}
    plan = asked.admin.plan_replay(depot.group, [ids[0], ids[3]])
    assert [(one.dead_letter.offset, one.after, one.refusal is None) for one in plan.planned] == [
        (0, None, True),
        (2, ids[0], True),
        (3, None, False),
        (4, ids[0], True),
    ]
    assert (plan.ids, plan.drawn_along) == ((ids[0],), 2)
    assert plan.consequences[0].startswith("2 more are replayed with them")
    assert f"comes after {ids[1]} (offset 1)" in str(plan.refused[0].refusal)
    depot.bad.clear()
    request, worker = asked.request([ids[0], ids[3]]), asked.worker(keep_key_order=True)
    work(worker, lambda: asked.now(request).has_ended)
    done = asked.now(request)
    assert (done.state, done.replayed, done.failed, done.refused) == ("done", 3, 0, 1)
    assert done.refusals == (plan.refused[0].refusal,)
    assert depot.applied() == [0, 2, 4]
    assert [action[0] for action in depot.actions()] == ["request replay"], "one row, and none for each dead letter"
    closed = asked.admin.dead_letters(depot.group).get(ids[2])
    assert (closed.closed_by, closed.closed_reason) == ("ada", "fixed")


def test_a_plan_of_many_reads_them_in_few_statements(asked: Requests) -> None:
    """Each page is found by a scan of those before it: in pages of 500, a plan of 93,000 took half a minute."""
    asked.dead_letters(1)
    asked.execute(
        "INSERT INTO {s}.dead_letter (consumer_group, topic, topic_id, partition, record_offset, key, value, "
        "header_names, header_values, state, cause, error, attempts, version) "
        "SELECT consumer_group, topic, topic_id, partition, n, convert_to('k' || mod(n, 5000), 'UTF8'), value, "
        "header_names, header_values, CASE WHEN n < 5000 THEN 'dead_lettered' ELSE 'blocked' END, cause, error, "
        "attempts, version FROM {s}.dead_letter, generate_series(1, 5999) n"
    )
    asked.execute("UPDATE {s}.partition_offset SET next_offset = 6000")
    asked.execute('UPDATE {s}.consumer_group SET declared = \'{{"orders": {{"keep_key_order": true}}}}\'')
    statements: list[str] = []

    def note(*given: Any) -> None:
        statements.append(given[2])

    event.listen(asked.depot.engine, "before_cursor_execute", note)
    try:
        plan = asked.admin.plan_replay(asked.depot.group, Where())
    finally:
        event.remove(asked.depot.engine, "before_cursor_execute", note)
    assert len(plan.ids) == 6_000
    assert sum("dead_letter.record_offset" in statement for statement in statements) <= 4
