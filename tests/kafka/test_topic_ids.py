"""Ids of topics: what the brokers answer, and which transactions an answer serves."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from seekpoint import events
from seekpoint.errors import KafkaUnavailable, TopicRecreated
from seekpoint.kafka.identity import Answer, Identity, KafkaRefused
from seekpoint.pipeline.policy import Limits
from seekpoint.records import Partition
from seekpoint.testing.servers.kafka import KafkaServer
from seekpoint.worker.assignment.partitions import AssignedPartitions
from support.kafka_postgres import QUICK, Scene
from support.manual_worker import Bench

NO_BROKER = "127.0.0.1:1"
# librdkafka's texts for one cause: which of its two timers ends first, and whether its threads have begun until then.
TIMED_OUT = (
    "Failed while waiting for controller: Local: Timed out",
    "Timed out waiting for controller",
    "Timed out initializing",
)


def asking(brokers: str, timeout: float = 20.0) -> Identity:
    return Identity({**QUICK, "bootstrap.servers": brokers}, timeout)


def error_of(identity: Identity, topics: set[str]) -> tuple[type[KafkaUnavailable], str]:
    with pytest.raises(KafkaUnavailable) as raised:
        identity.ask(topics).result()
    return type(raised.value), str(raised.value)


def test_ids_of_topics_small_and_wide_and_of_one_that_is_missing(scene: Scene) -> None:
    small, wide = scene.topic(), scene.topic(1000)
    missing = f"{small}-missing"
    expected = {small: scene.topic_id(small), wide: scene.topic_id(wide), missing: None}
    identity = asking(scene.broker)
    assert identity.ask({small, wide, missing}).result() == expected
    assert identity.ask(set()).result() == {}


def test_errors_of_a_name_that_no_topic_can_have_and_of_brokers_that_are_away(scene: Scene) -> None:
    assert error_of(asking(scene.broker), {"no such/name"})[0] is KafkaRefused
    kind, message = error_of(asking(NO_BROKER, 0.5), {"a", "b"})
    assert kind is KafkaUnavailable
    reason = message.removeprefix("no answer about topic 'a': ")
    assert reason in TIMED_OUT, "the brokers' time to answer is the request's own"


def test_a_recreated_topic_has_another_id(scene: Scene) -> None:
    name = scene.topic()
    identity = asking(scene.broker)
    old = identity.ask({name}).result()[name]
    scene.delete_topic(name)
    assert identity.ask({name}).result() == {name: None}
    scene.topic(name=name)
    new = identity.ask({name}).result()[name]
    assert new == scene.topic_id(name)
    assert None not in (old, new)
    assert old != new


# -- which transactions an answer serves ----------------------------------------------------------------------------


def test_an_answer_serves_what_was_read_before_it_was_asked_for_and_nothing_else(scene: Scene) -> None:
    name, other = scene.topic(), scene.topic()
    identity, read_by = asking(scene.broker), monotonic()
    answer = identity.ask_after(read_by, {name})
    assert identity.ask_after(read_by, {name}) is answer
    assert answer.result() == answer.result() == {name: scene.topic_id(name)}
    later = identity.ask_after(answer.asked_at, {name})
    assert later is not answer, "read when it was asked for is not read before"
    assert identity.ask_after(read_by, {name}, also={other}) is later, "of what is kept no question is asked alone"
    both = identity.ask_after(monotonic(), {name}, also={other})
    assert both.result() == {name: scene.topic_id(name), other: scene.topic_id(other)}
    assert identity.ask_after(read_by, {other}) is both


@pytest.mark.pins("batch", "read_ahead")
def test_small_transactions_share_an_answer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []
    ask = Identity.ask

    def counted(identity: Identity, topics: Any) -> Answer:
        asked.append(frozenset(topics))
        return ask(identity, topics)

    monkeypatch.setattr(Identity, "ask", counted)
    name, stored = scene.log(200)
    run = scene.worker(name, limits=Limits(batch_records=1, idle_check=60))
    run.finish(name, 200)
    assert scene.book.written(name) == stored
    assert len(run.seen.all(events.Committed)) == 200
    assert 200 / 50 <= len(asked) < 20, "one for each fifty, and those of start and claims"


@pytest.mark.pins("batch", "read_ahead")
@pytest.mark.parametrize("by_handler", [False, True], ids=["sink", "handler"])
def test_small_batches_are_full_and_what_they_leave_does_not_pile_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, *, by_handler: bool
) -> None:
    """Of a size that does not divide what is read at once; the client has more at each read."""
    kept: list[int] = []
    keep = AssignedPartitions.keep

    def noted(self: AssignedPartitions, chunk: Any) -> None:
        keep(self, chunk)
        kept.append(self.kept.records)

    monkeypatch.setattr(AssignedPartitions, "keep", noted)
    name, stored = scene.log(2100)
    pipeline = scene.pipeline(name, **({"handle": scene.book.enter} if by_handler else {}))
    run = scene.worker(pipeline, limits=Limits(batch_records=7, idle_check=60))
    run.finish(name, 2100)
    assert scene.book.written(name) == stored
    assert 7 < max(kept) < 50 + 7
    assert sum(event.records == 7 for event in run.seen.all(events.Committed)) > 280


def test_an_answer_that_failed_serves_no_other_transaction() -> None:
    identity = asking(NO_BROKER, 0.3)
    read_by = monotonic()
    answer = identity.ask_after(read_by, {"a"})
    assert identity.ask_after(read_by, {"a"}) is answer
    with pytest.raises(KafkaUnavailable):
        answer.result()
    assert identity.ask_after(read_by, {"a"}) is not answer


def test_i4_a_topic_recreated_after_the_question_and_before_the_read_stops_the_partition(scene: Scene) -> None:
    """I4: the answer that served the batch before is older than what was read of the new topic."""
    name, stored = scene.log(["old"] * 5)
    with Bench(scene, name) as bench:
        bench.commit(bench.batch(5))
        bench.held.client.pause([Partition(name, 0)])  # while the new topic has no offset 5, nothing is read there
        scene.delete_topic(name)
        scene.topic(name=name)
        scene.produce(name, ["new"] * 10)
        bench.held.client.resume({Partition(name, 0): (5, None)})
        bench.commit(bench.batch(5))
        (stop,) = bench.held.stopped.values()
    assert isinstance(stop, TopicRecreated)
    assert scene.book.written(name) == stored


# -- brokers that go away, and signals ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_broker_killed_between_question_and_answer(
    scene_on: Callable[..., Scene],
    own_kafka: KafkaServer,
) -> None:
    """Each answer is the topic's id or KafkaUnavailable; the client answers again after the broker has restarted."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    scene = scene_on(kafka=own_kafka)
    name = scene.topic()
    expected = {name: scene.topic_id(name)}
    identity = asking(scene.broker, 2.0)
    answered = random.Random(seed).randrange(5, 100)
    for _ in range(answered):
        assert identity.ask({name}).result() == expected
    pending = [identity.ask({name}) for _ in range(10)]
    own_kafka.kill()
    failed = 0
    for answer in pending:
        try:
            assert answer.result() == expected
        except KafkaUnavailable:
            failed += 1
    print(f"{failed} of {len(pending)} failed")
    assert issubclass(error_of(identity, {name})[0], KafkaUnavailable)
    own_kafka.start()

    def answers() -> bool:
        try:
            return identity.ask({name}).result() == expected
        except KafkaUnavailable:
            return False

    scene.wait(answers)


def test_a_signal_is_handled_while_an_answer_is_awaited() -> None:
    class SignalError(Exception):
        pass

    def handler(*_: object) -> None:
        raise SignalError

    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    try:
        identity = asking(NO_BROKER, 20.0)
        answer = identity.ask({"a"})
        timer.start()
        began = monotonic()
        with pytest.raises(SignalError):
            answer.result()
        assert monotonic() - began < 10
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
