"""Replay where keys are held: the order of a key's records under replays, discards and failures."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, Engine

from postgres.test_replay_faults import FIXTURES
from seekpoint.admin import Planned, Replayed, Where
from seekpoint.errors import Fenced
from seekpoint.records import Cause, RawRecord, State
from seekpoint.testing import raw
from support.dead_letter_group import DeadLetterGroup, Halt
from support.events import Run
from support.sink_tables import TOPIC
from support.waiting import until


class KeyOrderedGroup(DeadLetterGroup):
    """A group whose pipeline holds keys."""

    def pipeline(self, **options: Any) -> Any:
        return super().pipeline(**{"keep_key_order": True, **options})


@pytest.fixture
def dead_letter_group(seekpoint_engine: Engine, seekpoint_schema: str) -> KeyOrderedGroup:
    return KeyOrderedGroup(seekpoint_engine, seekpoint_schema).create()


def keyed(*pairs: tuple[bytes | None, bytes], start: int = 0, partition: int = 0) -> list[RawRecord]:
    """Records with these keys and values."""
    return [raw(v, topic=TOPIC, partition=partition, offset=n, key=k) for n, (k, v) in enumerate(pairs, start)]


PARKED = {0: "dead_lettered", 1: "dead_lettered", 2: "blocked", 3: "blocked", 4: "blocked"}  # states by offset


def parked(dead_letter_group: DeadLetterGroup) -> dict[int, int]:
    """Offsets 0 (bad), 2 and 4 of key k; 1 (bad) and 3 of key l: ids by offset."""
    dead_letter_group.bad = {b"bad"}
    k, l = b"k", b"l"  # noqa: E741
    dead_letters = dead_letter_group.park(
        *keyed((k, b"bad"), (l, b"bad"), (k, b"2"), (l, b"3"), (k, b"4"), (None, b"5"))
    )
    assert dead_letter_group.states() == PARKED
    assert dead_letter_group.applied() == [5]
    return {dead_letter.offset: dead_letter.id for dead_letter in dead_letters}


def offsets(done: tuple[Replayed, ...]) -> list[int]:
    return [replayed.dead_letter.offset for replayed in done]


def test_the_first_of_a_key_draws_the_others_along(dead_letter_group: KeyOrderedGroup) -> None:
    """I4: in order, one transaction each; other keys stay as they are."""
    ids = parked(dead_letter_group)
    dead_letter_group.bad.clear()
    seen: list[tuple[int, int, int]] = []
    done = dead_letter_group.new_replay().replay(
        ids[0], progress=lambda replayed, n, total: seen.append((replayed.dead_letter.offset, n, total))
    )
    assert (done.is_applied, offsets(done.followers)) == (True, [2, 4])
    assert dead_letter_group.of_key(b"k") == [(0, 0), (0, 2), (0, 4)]
    assert dead_letter_group.states() == {0: "replayed", 1: "dead_lettered", 2: "replayed", 3: "blocked", 4: "replayed"}
    assert [(o, n) for o, n, _ in seen] == [(0, 1), (2, 2), (4, 3)]
    assert dead_letter_group.actions() == [("replay", 0, "ada", f"dead letter {ids[0]}: replay")], (
        "one request, one row"
    )


def test_one_that_is_not_first_is_refused_with_the_one_to_replay_first(dead_letter_group: KeyOrderedGroup) -> None:
    """I4."""
    ids = parked(dead_letter_group)
    dead_letter_group.bad.clear()
    with pytest.raises(Fenced) as refused:
        dead_letter_group.new_replay().replay(ids[4])
    message = f"dead letter {ids[4]} (orders/0 offset 4) comes after {ids[0]} (offset 0), and records of one key"
    assert refused.value.reason.startswith(message)
    assert refused.value.reason.endswith(f"replay or discard {ids[0]} first")
    assert [p.refusal for p in dead_letter_group.new_replay().plan([ids[4]])] == [refused.value.reason]
    (refusal,) = dead_letter_group.new_replay().replay_all(Where(topic=TOPIC, from_offset=4)).refused
    assert refusal.refusal == refused.value.reason
    assert dead_letter_group.applied() == [5]


def test_one_that_fails_again_blocks_those_after_it(dead_letter_group: KeyOrderedGroup) -> None:
    """I4: and no other key."""
    ids = parked(dead_letter_group)
    dead_letter_group.bad = {b"2"}
    done = dead_letter_group.new_replay().replay(ids[0])
    assert done.is_applied
    assert [(follower.dead_letter.offset, follower.failure is not None) for follower in done.followers] == [(2, True)]
    assert dead_letter_group.states() == {0: "replayed", 1: "dead_lettered", 2: "blocked", 3: "blocked", 4: "blocked"}
    summary = dead_letter_group.new_replay().replay_all()
    assert (summary.replayed, offsets(summary.failed), offsets(summary.refused)) == (2, [2], [4])
    assert f"comes after {ids[2]} (offset 2)" in (summary.refused[0].refusal or "")
    assert dead_letter_group.of_key(b"k") == [(0, 0)]
    assert dead_letter_group.of_key(b"l") == [(0, 1), (0, 3)]
    dead_letter_group.bad.clear()
    assert dead_letter_group.new_replay().replay_all().replayed == 2
    assert dead_letter_group.of_key(b"k") == [(0, 0), (0, 2), (0, 4)]


def test_those_after_a_discarded_one_can_be_replayed(dead_letter_group: KeyOrderedGroup) -> None:
    """I4."""
    ids = parked(dead_letter_group)
    dead_letter_group.bad.clear()
    assert [discarded.refusal for discarded in dead_letter_group.new_replay().discard([ids[0]], reason="a double")] == [
        None
    ]
    assert offsets(dead_letter_group.new_replay().replay(ids[2]).followers) == [4]
    assert dead_letter_group.of_key(b"k") == [(0, 2), (0, 4)]
    assert dead_letter_group.actions()[0] == ("discard", 0, "ada", f"dead letter {ids[0]}: a double")


def test_a_plan_shows_what_would_be_done_and_does_nothing(dead_letter_group: KeyOrderedGroup) -> None:
    """I4: with those that come along, in the order of the replay."""
    ids = parked(dead_letter_group)

    def summary(planned: tuple[Planned, ...]) -> list[tuple[int, int | None, bool]]:
        return [
            (planned_replay.dead_letter.offset, planned_replay.after, planned_replay.refusal is None)
            for planned_replay in planned
        ]

    replay = dead_letter_group.new_replay()
    assert summary(replay.plan()) == [(n, None, True) for n in range(5)]
    assert summary(replay.plan(ids[1])) == [(1, None, True), (3, ids[1], True)]
    held = replay.plan(Where(cause=Cause.BLOCKED))
    assert summary(held) == [(2, None, False), (3, None, False), (4, None, False)]
    assert summary(replay.plan(Where(cause=Cause.HANDLER)))[2:] == [
        (2, ids[0], True),
        (3, ids[1], True),
        (4, ids[0], True),
    ]
    assert len(replay.plan(Where(error="'bad'"))) == 5
    assert replay.plan(Where(error="nothing of the kind")) == ()
    assert dead_letter_group.states() == PARKED
    assert dead_letter_group.actions() == []


def test_blocked_records_keep_their_order_when_keys_are_no_longer_kept(dead_letter_group: KeyOrderedGroup) -> None:
    """I4: the pipeline was changed; what was held under it before is still in order."""
    ids = parked(dead_letter_group)
    dead_letter_group.bad.clear()
    with pytest.raises(Fenced, match=f"comes after {ids[0]}"):
        dead_letter_group.new_replay(keep_key_order=False).replay(ids[2])
    summary = dead_letter_group.new_replay(keep_key_order=False).replay_all()
    assert (summary.replayed, summary.is_complete) == (5, True)
    assert dead_letter_group.of_key(b"k") == [(0, 0), (0, 2), (0, 4)]


def test_all_go_in_the_order_of_topic_partition_and_offset(dead_letter_group: KeyOrderedGroup) -> None:
    """I4: across partitions; a failure of one keeps no other back."""
    dead_letter_group.bad = {b"bad", b"worse"}
    for partition in (1, 0, 2):
        dead_letter_group.process(
            keyed((b"k", b"bad"), (None, b"worse"), (None, b"bad"), (b"k", b"x"), partition=partition)
        )
    dead_letter_group.bad = {b"worse"}
    dead_letter_group.batches.clear()
    summary = dead_letter_group.new_replay().replay_all()
    assert [(failed.dead_letter.partition, failed.dead_letter.offset) for failed in summary.failed] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    assert (summary.replayed, summary.refused) == (9, ())
    tried = [(batch[0].partition, batch[0].offset) for batch in dead_letter_group.batches]
    assert tried == [(p, o) for p in range(3) for o in range(4)]


def test_what_ends_a_replay_of_many_says_how_far_it_came(dead_letter_group: KeyOrderedGroup) -> None:
    """I1, I4: what was applied stays; the rest is as it was."""
    parked(dead_letter_group)
    dead_letter_group.bad.clear()

    def stop(tx: Connection, record: Any) -> None:
        if record.offset == 2:
            raise KeyboardInterrupt

    dead_letter_group.on_record = stop
    with pytest.raises(KeyboardInterrupt) as ended:
        dead_letter_group.new_replay().replay_all()
    assert ended.value.__notes__ == ["2 of 5 dead letters were replayed before that"]
    assert dead_letter_group.states() == {0: "replayed", 1: "replayed", 2: "blocked", 3: "blocked", 4: "blocked"}


# -- beside a worker ------------------------------------------------------------------------------------------


class RunningGroup(NamedTuple):
    """A group that has a running worker, and the topic that it reads."""

    dead_letter_group: KeyOrderedGroup
    run: Run
    send: Callable[..., list[tuple[int, int]]]
    topic: str


@pytest.fixture
def running_group(request: pytest.FixtureRequest, group: str) -> RunningGroup:
    engine, schema, topic, produce, run_worker = map(request.getfixturevalue, FIXTURES)
    dead_letter_group = KeyOrderedGroup(engine, schema, group, topic())
    dead_letter_group.create().bad = {b"bad"}
    return RunningGroup(
        dead_letter_group,
        run_worker(dead_letter_group.pipeline()),
        partial(produce, dead_letter_group.topic, partition=0),
        dead_letter_group.topic,
    )


@pytest.mark.long
def test_a_replay_includes_the_records_of_its_key_that_a_worker_still_blocks(running_group: RunningGroup) -> None:
    """I1, I4: until none of the key is open; then the worker applies what comes, and the order is the log's."""
    dead_letter_group, run, send, name = running_group
    send([(b"k", b"bad"), (b"k", b"1"), (b"x", b"2")])
    run.reached(name, 3)
    sent = [3]

    def stream() -> None:
        for _ in range(60):  # not for ever: a key whose records come faster than they are replayed is never done
            sent[0] += len(send([(b"k", b"more"), (b"x", b"other")]))

    dead_letter_group.bad.clear()
    producer = threading.Thread(target=stream)
    producer.start()
    (head,) = [dead_letter for dead_letter in dead_letter_group.open() if dead_letter.state is State.DEAD_LETTERED]
    until(lambda: len(dead_letter_group.open()) > 10, "a worker that holds more of the key")
    done = dead_letter_group.new_replay().replay(head.id)
    assert done.is_applied
    assert len(done.followers) > 10
    assert all(follower.is_applied for follower in done.followers)
    producer.join()
    run.reached(name, sent[0])
    assert dead_letter_group.open() == []
    assert sent[0] == 123
    of_k = [offset for _, offset in dead_letter_group.of_key(b"k")]
    assert of_k == [0, 1, *range(3, sent[0], 2)]
    assert [offset for _, offset in dead_letter_group.of_key(b"x")] == [2, *range(4, sent[0], 2)]


def test_a_worker_that_holds_while_the_last_of_a_key_is_replayed(running_group: RunningGroup) -> None:
    """I4: its batch waits for the replay in hand, and then applies the record instead of holding it for ever."""
    dead_letter_group, run, send, name = running_group
    send([(b"k", b"bad")])
    run.reached(name, 1)
    dead_letter_group.bad.clear()
    dead_letter_group.on_record = halt = Halt()
    (head,) = dead_letter_group.open()
    replay = threading.Thread(target=dead_letter_group.new_replay().replay, args=[head.id])
    replay.start()
    halt.wait()
    send([(b"k", b"1")])
    halt.open()
    replay.join(30)
    run.reached(name, 2)
    assert (dead_letter_group.of_key(b"k"), dead_letter_group.states()) == ([(0, 0), (0, 1)], {0: "replayed"})


# -- whatever happens -----------------------------------------------------------------------------------------


class RandomActions:
    """Things that happen to the group, drawn at random; and what must be true in the end."""

    def __init__(self, dead_letter_group: DeadLetterGroup) -> None:
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        self.chance, self.dead_letter_group = random.Random(seed), dead_letter_group
        self.log: dict[int, list[RawRecord]] = {0: [], 1: []}
        self.discarded: set[tuple[int, int]] = set()
        self.arrive()

    def arrive(self) -> None:
        for partition, log in self.log.items():
            keys = [self.chance.choice([b"a", b"b", b"c", None]) for _ in range(5)]
            values = [b"v%d" % self.chance.randrange(6) for _ in keys]
            fresh = keyed(*zip(keys, values, strict=True), start=len(log), partition=partition)
            log.extend(fresh)
            self.dead_letter_group.process(fresh)

    def replay_one(self) -> None:
        dead_letters = self.dead_letter_group.open()
        with suppress(Fenced):  # those that come after another one
            if dead_letters:
                self.dead_letter_group.new_replay().replay(self.chance.choice(dead_letters).id)

    def replay_many(self) -> None:
        choices = [Where(), Where(topic=TOPIC, partition=1), Where(cause=Cause.BLOCKED), Where(error="v1")]
        self.dead_letter_group.new_replay().replay_all(self.chance.choice(choices))

    def discard(self) -> None:
        if dead_letters := self.dead_letter_group.open():
            dead_letter = self.chance.choice(dead_letters)
            (done,) = self.dead_letter_group.new_replay().discard(dead_letter.id, reason="chance")
            assert done.refusal is None
            self.discarded.add((dead_letter.partition, dead_letter.offset))

    def change(self) -> None:
        self.dead_letter_group.bad = {b"v%d" % n for n in range(6) if self.chance.random() < 0.3}

    def step(self) -> None:
        things = [self.arrive, self.replay_one, self.replay_many, self.discard, self.change]
        self.chance.choices(things, weights=[4, 4, 2, 1, 3])[0]()

    def assert_accounted(self) -> None:
        """All that was not discarded is applied once, and each key in the order of the log."""
        dead_letter_group, discarded = self.dead_letter_group, self.discarded
        assert dead_letter_group.open() == []
        states = {
            (dead_letter.partition, dead_letter.offset): dead_letter.state
            for dead_letter in dead_letter_group.dead_letters()
        }
        assert {place for place, state in states.items() if state is State.DISCARDED} == discarded
        for partition, log in self.log.items():
            left = [record for record in log if (partition, record.offset) not in discarded]
            assert sorted(dead_letter_group.applied(partition)) == [record.offset for record in left]
            for key in (b"a", b"b", b"c"):
                written = [offset for p, offset in dead_letter_group.of_key(key) if p == partition]
                assert written == [record.offset for record in left if record.key == key]


@pytest.mark.repeats("number")
@pytest.mark.parametrize("number", range(4))
def test_keys_stay_in_order_whatever_is_done(dead_letter_group: KeyOrderedGroup, number: int) -> None:
    """I1, I4: any mix of records, failures, replays and discards: each once, each key in the log's order."""
    actions = RandomActions(dead_letter_group)
    for _ in range(25):
        actions.step()
    dead_letter_group.bad = set()
    assert dead_letter_group.new_replay().replay_all().is_complete
    actions.assert_accounted()


@pytest.mark.long
def test_keys_stay_in_order_with_several_operators(dead_letter_group: KeyOrderedGroup) -> None:
    """I1, I4: three people replay all there is, again and again, while records come, fail and are corrected."""
    actions = RandomActions(dead_letter_group)
    ended = threading.Event()

    def operate(name: str) -> int:
        replayed = 0
        while not ended.is_set():
            replayed += dead_letter_group.new_replay(name).replay_all().replayed
        return replayed

    with ThreadPoolExecutor(3) as pool:
        people = [pool.submit(operate, name) for name in ("ada", "bob", "eve")]
        try:
            for _ in range(20):
                actions.change()
                actions.arrive()
        finally:
            ended.set()
        assert sum(future.result(60) for future in people) > 0
    dead_letter_group.bad = set()
    assert dead_letter_group.new_replay().replay_all().is_complete
    actions.assert_accounted()
    actors = {action[2] for action in dead_letter_group.actions()}
    assert len(actors) > 1
