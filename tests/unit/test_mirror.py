"""What a worker commits to Kafka for display, decided without a broker."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from seekpoint import Limits, events
from seekpoint.kafka.commits import Commit
from seekpoint.ledger import Claim
from seekpoint.records import Partition
from seekpoint.worker.mirror import AGAIN, EVERY, TRIES, Mirror

AT = Partition("orders", 0)
BROKEN = SimpleNamespace(str=lambda: "broken")


class Desk:
    """A mirror between a ledger's claims and a Kafka that answers when the test says so."""

    def __init__(self, *, is_on: bool = True, before: Any = None) -> None:
        self.claims: dict[Partition, Claim] = {}
        self.sent: list[dict[Partition, Commit]] = []
        self.announced: list[events.Event] = []
        self.before = before or {}
        self.is_slow = False  # the coordinator does not answer in time
        self.asked = 0
        self.now = 100.0
        resources: Any = SimpleNamespace(
            client=SimpleNamespace(commit=self._send, committed=self._committed, read=self._read),
            ledger=SimpleNamespace(limits=Limits()),
            announce=self.announced.append,
        )
        owner: Any = SimpleNamespace(current_claims=lambda: list(self.claims.values()))
        self.mirror = Mirror(resources, owner, is_on=is_on)

    def _send(self, commits: dict[Partition, Commit]) -> None:
        self.sent.append(dict(commits))

    def _committed(self, *_: Any) -> Any:
        self.asked += 1
        return None if self.is_slow else self.before

    def _read(self, *_: Any) -> None:
        self.answered()

    def at(self, offset: int, partition: Partition = AT, epoch: int = 1) -> None:
        """The ledger has this position."""
        self.claims[partition] = Claim(partition, uuid4(), epoch, offset, 7, uuid4())

    def later(self, seconds: float = EVERY) -> None:
        """Between two batches, so much later."""
        self.now += seconds
        self.mirror.maintain(self.now)
        if (question := self.mirror._question) is not None:
            assert question.is_over.wait(10)
            self.mirror.maintain(self.now)

    def answered(self, error: Any = None) -> None:
        """Kafka answers the commit."""
        self.mirror.answered(error, [])


def test_what_has_moved_is_committed_and_seldom() -> None:
    desk = Desk()
    desk.later()
    assert desk.sent == []
    desk.at(10)
    desk.later()
    assert desk.sent == [{AT: Commit(10, 7, "seekpoint epoch=1")}]
    desk.answered()
    desk.at(20)
    desk.later(EVERY / 2)
    assert len(desk.sent) == 1
    desk.later(EVERY / 2)
    assert desk.sent[1:] == [{AT: Commit(20, 7, "seekpoint epoch=1")}]
    desk.answered()
    desk.later()
    assert len(desk.sent) == 2, "it has not moved"
    desk.at(4, epoch=2)
    desk.later()
    assert desk.sent[2:] == [{AT: Commit(4, 7, "seekpoint epoch=2")}], "a rewind, too"
    desk.answered()
    desk.later(AGAIN)
    assert len(desk.sent) == 4, "Kafka deletes what is not committed again"


def test_nothing_is_committed_while_an_answer_is_outstanding_and_a_failure_is_tried_again() -> None:
    desk = Desk()
    desk.at(10)
    desk.later()
    desk.at(11)
    desk.later()
    assert len(desk.sent) == 1
    for n in range(1, 3 * TRIES):
        desk.answered(BROKEN)
        desk.later()
        assert desk.sent[n] == {AT: Commit(11, 7, "seekpoint epoch=1")}
    failed = [event for event in desk.announced if isinstance(event, events.MirrorFailed)]
    assert failed == [events.MirrorFailed(error="broken")], "once"


def test_commits_of_another_consumer_are_reported_before_they_are_replaced() -> None:
    other = Partition("orders", 1)
    desk = Desk(before={AT: Commit(3), other: Commit.mirror(5, None, 1)})
    desk.at(10)
    desk.at(10, other)
    desk.mirror.finish()
    assert desk.sent == [], "it ended before it has asked"
    desk.later()
    assert desk.announced == [events.OtherCommits(commits={AT: 3})]
    assert desk.sent == [desk.sent[0]]
    assert desk.sent[0].keys() == {AT, other}
    desk.answered()
    desk.later()
    desk.later()
    assert len(desk.announced) == 1


def test_commits_are_not_replaced_before_kafka_has_answered_which_there_are() -> None:
    desk = Desk(before={AT: Commit(3)})
    desk.is_slow = True
    desk.at(10)
    for _ in range(2 * TRIES):
        desk.later()
    assert desk.sent == []
    assert desk.asked == 2 * TRIES
    said = "no answer about the group's commits: none is replaced before"
    assert desk.announced == [events.MirrorFailed(error=said)]
    desk.is_slow = False
    desk.later()
    assert desk.announced[1:] == [events.OtherCommits(commits={AT: 3})]
    assert [sent.keys() for sent in desk.sent] == [{AT}]


def test_the_worker_does_not_wait_for_the_answer() -> None:
    answered = threading.Event()
    desk = Desk()
    desk.mirror._client.committed = lambda *_: {} if answered.wait(10) else None  # type: ignore[method-assign]
    desk.at(10)
    for _ in range(3):
        desk.now += EVERY
        desk.mirror.maintain(desk.now)
    assert desk.sent == []
    question = desk.mirror._question
    assert question is not None
    answered.set()
    assert question.is_over.wait(10)
    desk.mirror.maintain(desk.now)
    assert [sent.keys() for sent in desk.sent] == [{AT}]


def test_a_worker_without_a_mirror_warns_and_commits_nothing() -> None:
    desk = Desk(is_on=False, before={AT: Commit(3, None, "")})
    desk.at(10)
    for _ in range(5):
        desk.later()
    desk.mirror.finish()
    assert desk.announced == [events.OtherCommits(commits={AT: 3})]
    assert desk.sent == []


def test_an_error_of_the_client_ends_no_worker() -> None:
    def broken(commits: Any) -> None:
        raise TypeError("a client of another kind")

    desk = Desk()
    desk.mirror._client.commit = broken  # type: ignore[method-assign]
    desk.at(10)
    for _ in range(3 * TRIES):
        desk.later()
    desk.mirror.finish()
    assert desk.announced == [events.MirrorFailed(error="a client of another kind")]


def test_a_position_without_a_leader_epoch_is_a_commit_without_one() -> None:
    """As after a reset: no record was applied there."""
    commit = Commit.mirror(4, None, 2)
    at: Any = commit.at(AT)
    assert (at.offset, at.metadata, at.leader_epoch) == (4, "seekpoint epoch=2", None)
    assert commit.is_mirror
    assert not Commit(4, None, "seekpointless").is_mirror


def test_what_was_not_committed_is_at_the_end() -> None:
    desk = Desk()
    desk.at(10)
    desk.later()
    desk.at(12)
    desk.mirror.finish()
    assert desk.sent[-1] == {AT: Commit(12, 7, "seekpoint epoch=1")}


def test_the_end_waits_for_no_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.at(10)
    desk.later()
    monkeypatch.setattr("seekpoint.worker.mirror.LAST", 0.0)
    desk.at(12)
    assert not desk.mirror.finish()
    assert len(desk.sent) == 1, "nothing more is sent while an answer is outstanding"
    desk.answered()
    monkeypatch.setattr("seekpoint.worker.mirror.LAST", 10.0)
    assert desk.mirror.finish()


@pytest.mark.parametrize("seed", range(20))
def test_kafka_has_the_positions_once_it_answers_again(seed: int) -> None:
    """Positions move and are reset, partitions come and leave, commits fail: in the end Kafka has the ledger's."""
    print(f"seed {seed}")
    dice, desk = random.Random(seed), Desk()
    kafka: dict[Partition, Commit] = {}
    partitions = [Partition("orders", n) for n in range(3)]
    seen = 0

    def answer(fails: bool) -> None:
        nonlocal seen
        if len(desk.sent) > seen:
            if not fails:
                kafka.update(desk.sent[-1])
            seen = len(desk.sent)
            desk.answered(BROKEN if fails else None)

    for step in range(100):
        at = dice.choice(partitions)
        if dice.random() < 0.2:
            desk.claims.pop(at, None)
        else:
            desk.at(dice.randrange(100), at, epoch=step)
        desk.later(dice.choice([0.0, 1.0, EVERY]))
        if dice.random() < 0.7:
            answer(fails=dice.random() < 0.5)
    for _ in range(4):
        desk.later()
        answer(fails=False)
    assert {p: kafka[p].offset for p in desk.claims} == {p: claim.next_offset for p, claim in desk.claims.items()}
