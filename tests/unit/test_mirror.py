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


class MirrorHarness:
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

    def has_position(self, offset: int, partition: Partition = AT, epoch: int = 1) -> None:
        """The ledger has this position."""
        self.claims[partition] = Claim(partition, uuid4(), epoch, offset, 7, uuid4())

    def later(self, seconds: float = EVERY) -> None:
        """Between two batches, so much later."""
        self.now += seconds
        self.mirror.maintain(self.now)
        if (question := self.mirror._question) is not None:
            question[1].result(10)
            self.mirror.maintain(self.now)

    def answered(self, error: Any = None) -> None:
        """Kafka answers the commit."""
        self.mirror.answered(error, [])


def test_what_has_moved_is_committed_and_seldom() -> None:
    harness = MirrorHarness()
    harness.later()
    assert harness.sent == []
    harness.has_position(10)
    harness.later()
    assert harness.sent == [{AT: Commit(10, 7, "seekpoint epoch=1")}]
    harness.answered()
    harness.has_position(20)
    harness.later(EVERY / 2)
    assert len(harness.sent) == 1
    harness.later(EVERY / 2)
    assert harness.sent[1:] == [{AT: Commit(20, 7, "seekpoint epoch=1")}]
    harness.answered()
    harness.later()
    assert len(harness.sent) == 2, "it has not moved"
    harness.has_position(4, epoch=2)
    harness.later()
    assert harness.sent[2:] == [{AT: Commit(4, 7, "seekpoint epoch=2")}], "a rewind, too"
    harness.answered()
    harness.later(AGAIN)
    assert len(harness.sent) == 4, "Kafka deletes what is not committed again"


def test_nothing_is_committed_while_an_answer_is_outstanding_and_a_failure_is_tried_again() -> None:
    harness = MirrorHarness()
    harness.has_position(10)
    harness.later()
    harness.has_position(11)
    harness.later()
    assert len(harness.sent) == 1
    for n in range(1, 3 * TRIES):
        harness.answered(BROKEN)
        harness.later()
        assert harness.sent[n] == {AT: Commit(11, 7, "seekpoint epoch=1")}
    failed = [event for event in harness.announced if isinstance(event, events.MirrorFailed)]
    assert failed == [events.MirrorFailed(error="broken")], "once"


def test_commits_of_another_consumer_are_reported_before_they_are_replaced() -> None:
    other = Partition("orders", 1)
    harness = MirrorHarness(before={AT: Commit(3), other: Commit.mirror(5, None, 1)})
    harness.has_position(10)
    harness.has_position(10, other)
    harness.mirror.finish()
    assert harness.sent == [], "it ended before it has asked"
    harness.later()
    assert harness.announced == [events.OtherCommits(commits={AT: 3})]
    assert harness.sent == [harness.sent[0]]
    assert harness.sent[0].keys() == {AT, other}
    harness.answered()
    harness.later()
    harness.later()
    assert len(harness.announced) == 1


def test_commits_are_not_replaced_before_kafka_has_answered_which_there_are() -> None:
    harness = MirrorHarness(before={AT: Commit(3)})
    harness.is_slow = True
    harness.has_position(10)
    for _ in range(2 * TRIES):
        harness.later()
    assert harness.sent == []
    assert harness.asked == 2 * TRIES
    message = "Kafka has not answered which offsets the group has committed: none is replaced until it has"
    assert harness.announced == [events.MirrorFailed(error=message)]
    harness.is_slow = False
    harness.later()
    assert harness.announced[1:] == [events.OtherCommits(commits={AT: 3})]
    assert [sent.keys() for sent in harness.sent] == [{AT}]


def test_the_worker_does_not_wait_for_the_answer() -> None:
    answered = threading.Event()
    harness = MirrorHarness()
    harness.mirror._client.committed = lambda *_: {} if answered.wait(10) else None  # type: ignore[method-assign]
    harness.has_position(10)
    for _ in range(3):
        harness.now += EVERY
        harness.mirror.maintain(harness.now)
    assert harness.sent == []
    question = harness.mirror._question
    assert question is not None
    answered.set()
    question[1].result(10)
    harness.mirror.maintain(harness.now)
    assert [sent.keys() for sent in harness.sent] == [{AT}]


def test_a_worker_without_a_mirror_warns_and_commits_nothing() -> None:
    harness = MirrorHarness(is_on=False, before={AT: Commit(3, None, "")})
    harness.has_position(10)
    for _ in range(5):
        harness.later()
    harness.mirror.finish()
    assert harness.announced == [events.OtherCommits(commits={AT: 3})]
    assert harness.sent == []


def test_an_error_of_the_client_ends_no_worker() -> None:
    def broken(commits: Any) -> None:
        raise TypeError("a client of another kind")

    harness = MirrorHarness()
    harness.mirror._client.commit = broken  # type: ignore[method-assign]
    harness.has_position(10)
    for _ in range(3 * TRIES):
        harness.later()
    harness.mirror.finish()
    assert harness.announced == [events.MirrorFailed(error="a client of another kind")]


def test_a_position_without_a_leader_epoch_is_a_commit_without_one() -> None:
    """As after a reset: no record was applied there."""
    commit = Commit.mirror(4, None, 2)
    position: Any = commit.of(AT)
    assert (position.offset, position.metadata, position.leader_epoch) == (4, "seekpoint epoch=2", None)
    assert commit.is_mirror
    assert not Commit(4, None, "seekpointless").is_mirror


def test_what_was_not_committed_is_at_the_end() -> None:
    harness = MirrorHarness()
    harness.has_position(10)
    harness.later()
    harness.has_position(12)
    harness.mirror.finish()
    assert harness.sent[-1] == {AT: Commit(12, 7, "seekpoint epoch=1")}


def test_the_end_waits_for_no_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = MirrorHarness()
    harness.has_position(10)
    harness.later()
    monkeypatch.setattr("seekpoint.worker.mirror.LAST", 0.0)
    harness.has_position(12)
    assert not harness.mirror.finish()
    assert len(harness.sent) == 1, "nothing more is sent while an answer is outstanding"
    harness.answered()
    monkeypatch.setattr("seekpoint.worker.mirror.LAST", 10.0)
    assert harness.mirror.finish()


@pytest.mark.parametrize("seed", range(20))
def test_kafka_has_the_positions_once_it_answers_again(seed: int) -> None:
    """Positions move and are reset, partitions come and leave, commits fail: in the end Kafka has the ledger's."""
    print(f"seed {seed}")
    dice, harness = random.Random(seed), MirrorHarness()
    kafka: dict[Partition, Commit] = {}
    partitions = [Partition("orders", n) for n in range(3)]
    seen = 0

    def answer(fails: bool) -> None:
        nonlocal seen
        if len(harness.sent) > seen:
            if not fails:
                kafka.update(harness.sent[-1])
            seen = len(harness.sent)
            harness.answered(BROKEN if fails else None)

    for step in range(100):
        partition = dice.choice(partitions)
        if dice.random() < 0.2:
            harness.claims.pop(partition, None)
        else:
            harness.has_position(dice.randrange(100), partition, epoch=step)
        harness.later(dice.choice([0.0, 1.0, EVERY]))
        if dice.random() < 0.7:
            answer(fails=dice.random() < 0.5)
    for _ in range(4):
        harness.later()
        answer(fails=False)
    assert {p: kafka[p].offset for p in harness.claims} == {p: claim.next_offset for p, claim in harness.claims.items()}
