"""Replays that an operator requests, and a running worker carries out between its batches."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text

from seekpoint import Record, events
from seekpoint.admin import Admin, ReplayRequest, Where
from seekpoint.errors import Fenced, StopTimeout
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import WORKER_CONNECTIONS
from seekpoint.worker.replay import requests as parts
from support.counted_pools import CountedPools
from support.dead_letter_group import DeadLetterGroup, Halt
from support.events import Run
from support.fixtures import NewEngine
from support.waiting import until
from support.worker_group import WorkerGroup

LIMITS = Limits(idle_check=0.1, lag_check=0.1, claim_wait=1.0)


class Requests:
    """A group with a running worker, of whose records two became dead letters."""

    def __init__(
        self, dead_letter_group: DeadLetterGroup, produce: Callable[..., object], run_worker: Callable[..., Run]
    ) -> None:
        self.produce = produce
        self.dead_letter_group, self.admin = (
            dead_letter_group,
            Admin(dead_letter_group.engine, schema=dead_letter_group.schema),
        )
        dead_letter_group.bad = {b"x", b"y"}
        produce(dead_letter_group.topic, (b"a", b"x", b"y", b"d"), partition=0)
        self._run_worker = run_worker
        self.run = self.start()
        self.run.reached(dead_letter_group.topic, 4)
        dead_letter_group.bad.clear()

    def start(self, **options: Any) -> Run:
        return self._run_worker(self.dead_letter_group.pipeline(), **{"limits": LIMITS, **options})

    def request(self) -> ReplayRequest:
        return self.admin.request_replay(self.dead_letter_group.group, Where(), reason="fixed", actor="ada")

    def now(self, request: ReplayRequest) -> ReplayRequest:
        return self.admin.replay_request(self.dead_letter_group.group, request.id)

    def ended(self, request: ReplayRequest) -> ReplayRequest:
        until(lambda: self.now(request).has_ended, "the request has ended")
        return self.now(request)

    def seen(self) -> datetime:
        """When the worker was last seen."""
        with self.dead_letter_group.engine.connect() as connection:
            row = connection.execute(
                text(f'SELECT max(seen_at) FROM "{self.dead_letter_group.schema}".worker')
            ).scalar_one()
        assert isinstance(row, datetime)
        return row

    def seen_again(self) -> None:
        before = self.seen()
        until(lambda: self.seen() > before, "the worker is seen again")

    def is_blocked(self) -> bool:
        """Whether a session waits for a lock of the group's row."""
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE :one"
        with self.dead_letter_group.engine.connect() as connection:
            count = connection.execute(text(waits), {"one": f"%{self.dead_letter_group.schema}%"}).scalar_one()
        return bool(count)

    def execute(self, statement: str) -> None:
        with self.dead_letter_group.engine.begin() as tx:
            tx.execute(text(statement.format(s=f'"{self.dead_letter_group.schema}"')))


@pytest.fixture
def requests(request: pytest.FixtureRequest, group: str, monkeypatch: pytest.MonkeyPatch) -> Requests:
    monkeypatch.setattr(parts, "LEAST_AGE", 2.0)  # less, and a worker on a busy machine counts as dead
    needed = ("seekpoint_engine", "seekpoint_schema", "topic", "produce", "run_worker")
    engine, schema, topic, produce, run_worker = map(request.getfixturevalue, needed)
    return Requests(DeadLetterGroup(engine, schema, group, topic()).create(), produce, run_worker)


def test_a_running_worker_replays_what_is_requested(requests: Requests) -> None:
    requests.dead_letter_group.bad = {b"y"}
    done = requests.ended(requests.request())
    assert (done.state, done.replayed, done.failed, done.refused, done.error) == ("done", 1, 1, 0, None)
    assert requests.dead_letter_group.applied() == [0, 3, 1]
    assert requests.dead_letter_group.actions() == [("request replay", None, "ada", "request 1, 2 dead letters: fixed")]
    requests.dead_letter_group.bad.clear()
    again = requests.ended(requests.request())
    assert (again.state, again.replayed, again.dead_letters) == ("done", 1, done.dead_letters[1:])
    assert sorted(requests.dead_letter_group.applied()) == [0, 1, 2, 3]


def test_a_worker_that_drains_hands_its_request_to_the_next(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deploy needs no new request."""
    monkeypatch.setattr(parts, "MOST", 1)
    requests.dead_letter_group.on_record = halt = Halt()
    request = requests.request()
    halt.wait()
    requests.run.worker.stop()
    halt.open()
    requests.run.stop()
    handed = requests.now(request)
    assert (handed.state, handed.replayed, handed.worker) == ("requested", 1, None)
    requests.start()
    done = requests.ended(request)
    assert (done.state, done.replayed, done.refused) == ("done", 2, 0)
    assert requests.dead_letter_group.applied() == [0, 3, 1, 2]


@pytest.mark.long
def test_a_partition_is_taken_while_its_dead_letter_is_replayed(requests: Requests) -> None:
    """The claim waits for the transaction, or ends it; a worker in a long handler is not taken for dead."""
    requests.dead_letter_group.on_record = halt = Halt()
    request = requests.request()
    halt.wait()
    other = requests.start(partitions=[(requests.dead_letter_group.topic, 0)])
    other.seen.wait_for(events.Stalled)
    other.seen.wait_for(events.LagSampled, count=16)  # it has looked for dead workers, for longer than it waits
    assert requests.now(request).state == "started"
    halt.open()
    done = requests.ended(request)
    assert (done.state, done.replayed, done.error) == ("done", 2, None)
    requests.produce(requests.dead_letter_group.topic, [b"e"], partition=0)
    until(lambda: 4 in requests.dead_letter_group.applied(), "one of the two has it, and reads on")
    for requested in (requests.run, other):
        with suppress(Fenced):  # without a group, the newest claim wins
            requested.stop()
    assert requests.dead_letter_group.applied() == [0, 3, 1, 2, 4]


def test_a_worker_in_a_long_replay_is_shown_with_what_it_does(requests: Requests) -> None:
    """Else it would be "gone" after a minute, while the handler of its dead letter works."""
    requests.dead_letter_group.on_record = halt = Halt()
    request = requests.request()
    halt.wait()

    def activity() -> str | None:
        [group], _ = requests.admin.status([requests.dead_letter_group.group])
        [worker] = group.workers
        assert worker.is_live
        assert worker.state == "running"
        return worker.activity

    until(lambda: (activity() or "").startswith(f"replaying dead letters of request {request.id} for "), "its row")
    requests.seen_again()
    halt.open()
    assert requests.ended(request).state == "done"
    until(lambda: activity() is None, "the replay has ended, for operators, too")


@pytest.mark.repeats("how")
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_i2_nothing_is_replayed_by_a_worker_that_was_given_up(requests: Requests, how: str) -> None:
    """Its handler comes back after StopTimeout; neither its rows nor its error are stored, and the request fails."""
    halt = Halt()

    def handle(tx: Any, record: Record[Any, Any]) -> None:
        halt(tx, record)
        if how == "raises":
            raise ValueError("late")

    requests.dead_letter_group.on_record = handle
    request = requests.request()
    halt.wait()
    requests.run.worker.stop(grace=0.1)
    requests.run.seen.wait_for(events.WorkerStopped)
    halt.open()
    for thread in threading.enumerate():
        if thread.name == f"seekpoint-{requests.dead_letter_group.group}":
            thread.join(30)
            assert not thread.is_alive()
    with pytest.raises(StopTimeout):
        requests.run.stop()
    assert requests.now(request).state == "started"
    assert requests.dead_letter_group.applied() == [0, 3]
    assert [dead_letter.replays for dead_letter in requests.dead_letter_group.open()] == [0, 0]
    requests.start()
    assert requests.ended(request).state == "failed"


def test_live_is_false_while_a_replayed_handler_runs_for_too_long(requests: Requests) -> None:
    requests.run.stop()
    run = requests.start(limits=Limits(idle_check=0.1, lag_check=0.1, claim_wait=1.0, transaction_age=0.3))
    requests.dead_letter_group.on_record = halt = Halt()
    request = requests.request()
    halt.wait()
    until(lambda: not run.health().live, "a worker that is not live")
    assert (run.health().stuck or 0) > 0.3
    halt.open()
    assert requests.ended(request).replayed == 2  # the first one's transaction had come to its end: it ran again
    assert run.health().live


def test_a_pause_hands_the_request_back(requests: Requests) -> None:
    """It waits for the dead letter in hand. Postgres may let the next one share the row's lock before it wakes it."""
    pauses = threading.Thread(target=lambda: requests.dead_letter_group.ledger.pause(reason="repair", actor="bob"))
    requests.dead_letter_group.on_record = halt = Halt()
    request = requests.request()
    halt.wait()
    pauses.start()
    until(requests.is_blocked, "the pause waits for the replay")
    halt.open()
    pauses.join(30)
    until(lambda: requests.now(request).state in {"requested", "done"}, "the request is handed back")
    replayed = requests.now(request).replayed
    assert requests.dead_letter_group.applied() == [0, 3, 1, 2][: 2 + replayed]
    assert requests.now(request).state == {1: "requested", 2: "done"}[replayed]
    requests.dead_letter_group.ledger.resume(actor="bob")
    done = requests.ended(request)
    assert (done.state, done.replayed, done.refused) == ("done", 2, 0)


@pytest.mark.long
def test_records_are_applied_although_the_outcome_is_not_stored(requests: Requests) -> None:
    """One warning, also where the table is not to be had for longer."""

    def rename(tx: object, record: Record[Any, Any]) -> None:
        if record.offset == 2:
            requests.execute("ALTER TABLE {s}.replay_request RENAME TO elsewhere")

    requests.dead_letter_group.on_record = rename
    request = requests.request()
    requests.run.seen.wait_for(events.StatusNotStored)
    requests.produce(requests.dead_letter_group.topic, [b"e"], partition=0)
    requests.run.reached(requests.dead_letter_group.topic, 5)
    requests.run.seen.wait_for(events.LagSampled, count=5, since=requests.run.seen.mark())
    assert len(requests.run.seen.all(events.StatusNotStored)) == 1
    requests.execute("ALTER TABLE {s}.elsewhere RENAME TO replay_request")
    done = requests.ended(request)
    assert (done.state, done.replayed) == ("done", 2)
    assert requests.dead_letter_group.applied() == [0, 3, 1, 2, 4]


@pytest.mark.repeats("seed")
@pytest.mark.parametrize("seed", range(3))
def test_a_worker_is_killed_inside_a_replay(
    worker_group: WorkerGroup, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request fails, the record that kills is not tried again, and after a new request each is applied once."""
    monkeypatch.setattr(parts, "LEAST_AGE", 0.0)
    chance = random.Random(seed)
    name, stored = worker_group.log(["fail"] * 6)
    process = worker_group.worker_process(
        name,
        handle="crashing",
        on_poison="dead_letter",
        retry={"attempts": 1},
        limits={"idle_check": 0.1, "lag_check": 0.1},
    )
    worker_group.wait_for_position(name, 6)
    kills, how = chance.randrange(6), chance.choice(["sigkill", "segfault", "exit"])
    worker_group.sql(
        "UPDATE {schema}.dead_letter SET value = convert_to('ok', 'UTF8')",
        f"UPDATE {{schema}}.dead_letter SET value = convert_to('{how}', 'UTF8') WHERE record_offset = {kills}",
    )
    admin = Admin(worker_group.engine, schema=worker_group.schema)
    request = admin.request_replay(worker_group.group, Where(), reason="fixed")
    process.ended()
    assert admin.replay_request(worker_group.group, request.id).state == "started", f"seed {seed}"
    worker_group.worker(
        worker_group.pipeline(name, handle=worker_group.record_table.enter, on_poison="dead_letter"),
        partitions=[(name, 0)],
        limits=Limits(idle_check=0.1, lag_check=0.1),
    )
    failed = until(
        lambda: (now := admin.replay_request(worker_group.group, request.id)).has_ended and now, "it has failed"
    )
    assert (failed.state, worker_group.record_table.written(name)) == ("failed", stored[:kills]), f"seed {seed}"
    again = admin.request_replay(worker_group.group, Where(), reason="fixed")
    until(lambda: admin.replay_request(worker_group.group, again.id).has_ended, "the rest is replayed")
    assert admin.replay_request(worker_group.group, again.id).replayed == 6 - kills
    worker_group.record_table.assert_holds(name, stored)


def test_a_request_that_a_dead_worker_has_started_fails_and_is_not_run(requests: Requests) -> None:
    requests.execute("UPDATE {s}.consumer_group SET version = 2")  # no worker takes it
    request = requests.request()
    requests.execute(
        "UPDATE {s}.replay_request SET version = 1, state = 'started', worker = gen_random_uuid(), "
        "seen_at = clock_timestamp()"
    )
    requests.execute("UPDATE {s}.consumer_group SET version = 1")
    ended = requests.ended(request)
    assert (ended.state, ended.replayed) == ("failed", 0)
    assert ended.error is not None
    assert "the worker ended" in ended.error
    assert requests.dead_letter_group.applied() == [0, 3]
    assert requests.ended(requests.request()).replayed == 2


def test_a_paused_group_takes_no_request(requests: Requests) -> None:
    requests.dead_letter_group.ledger.pause(reason="repair", actor="bob")
    request = requests.request()
    for _ in range(2):  # the worker has looked for requests since
        requests.seen_again()
    assert requests.now(request).state == "requested"
    assert requests.dead_letter_group.applied() == [0, 3]
    requests.dead_letter_group.ledger.resume(actor="bob")
    assert requests.ended(request).replayed == 2


def test_a_requested_replay_takes_a_third_connection(requests: Requests, new_engine: NewEngine) -> None:
    requests.run.stop()
    engine = new_engine(requests.dead_letter_group.engine.url)
    pools = CountedPools(engine)
    run = requests.start(engine=engine)
    requests.produce(requests.dead_letter_group.topic, (b"e",), partition=0)
    run.reached(requests.dead_letter_group.topic, 5)
    assert requests.ended(requests.request()).replayed == 2
    run.stop()
    assert pools.most.pop("seekpoint-status") == 1
    assert max(pools.most.values()) <= WORKER_CONNECTIONS
