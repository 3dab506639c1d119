"""Ids of topics: what the brokers report, and which transactions an answer serves."""

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
from support.manual_worker import ManualWorker
from support.worker_group import QUICK, WorkerGroup

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


def test_ids_of_topics_small_and_wide_and_of_one_that_is_missing(worker_group: WorkerGroup) -> None:
    small, wide = worker_group.topic(), worker_group.topic(1000)
    missing = f"{small}-missing"
    expected = {small: worker_group.topic_id(small), wide: worker_group.topic_id(wide), missing: None}
    identity = asking(worker_group.broker)
    assert identity.ask({small, wide, missing}).result() == expected
    assert identity.ask(set()).result() == {}


def test_errors_of_a_name_that_no_topic_can_have_and_of_brokers_that_are_away(worker_group: WorkerGroup) -> None:
    assert error_of(asking(worker_group.broker), {"no such/name"})[0] is KafkaRefused
    kind, message = error_of(asking(NO_BROKER, 0.5), {"a", "b"})
    assert kind is KafkaUnavailable
    reason = message.removeprefix("no answer about topic 'a': ")
    assert reason.removesuffix(" [SP1301]") in TIMED_OUT, "the brokers' time to answer is the request's own"


def test_a_recreated_topic_has_another_id(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    identity = asking(worker_group.broker)
    old = identity.ask({name}).result()[name]
    worker_group.delete_topic(name)
    assert identity.ask({name}).result() == {name: None}
    worker_group.topic(name=name)
    new = identity.ask({name}).result()[name]
    assert new == worker_group.topic_id(name)
    assert None not in (old, new)
    assert old != new


# -- which transactions an answer serves ----------------------------------------------------------------------------


def test_an_answer_serves_what_was_read_before_it_was_asked_for_and_nothing_else(worker_group: WorkerGroup) -> None:
    name, other = worker_group.topic(), worker_group.topic()
    identity, read_by = asking(worker_group.broker), monotonic()
    answer = identity.ask_after(read_by, {name})
    assert identity.ask_after(read_by, {name}) is answer
    assert answer.result() == answer.result() == {name: worker_group.topic_id(name)}
    later = identity.ask_after(answer.asked_at, {name})
    assert later is not answer, "read when it was asked for is not read before"
    assert identity.ask_after(read_by, {name}, also={other}) is later, "of what is kept no question is asked alone"
    both = identity.ask_after(monotonic(), {name}, also={other})
    assert both.result() == {name: worker_group.topic_id(name), other: worker_group.topic_id(other)}
    assert identity.ask_after(read_by, {other}) is both


@pytest.mark.pins("batch", "read_ahead")
def test_small_transactions_share_an_answer(worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []
    ask = Identity.ask

    def counted(identity: Identity, topics: Any) -> Answer:
        asked.append(frozenset(topics))
        return ask(identity, topics)

    monkeypatch.setattr(Identity, "ask", counted)
    name, stored = worker_group.log(1200)
    run = worker_group.worker(name, limits=Limits(batch_records=6, idle_check=60))
    run.finish(name, 1200)
    assert worker_group.record_table.written(name) == stored
    assert len(run.seen.all(events.Committed)) == 200
    assert 1200 / 500 <= len(asked) < 20, "one for each 500 records, and those of start and claims"


@pytest.mark.pins("batch", "read_ahead")
@pytest.mark.parametrize("by_handler", [False, True], ids=["sink", "handler"])
def test_small_batches_are_full_and_what_they_leave_does_not_pile_up(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch, *, by_handler: bool
) -> None:
    """Of a size that does not divide what is read at once; the client has more at each read."""
    kept: list[int] = []
    keep = AssignedPartitions.keep

    def noted(self: AssignedPartitions, chunk: Any) -> None:
        keep(self, chunk)
        kept.append(self.queue.records)

    monkeypatch.setattr(AssignedPartitions, "keep", noted)
    name, stored = worker_group.log(2100)
    pipeline = worker_group.pipeline(name, **({"handle": worker_group.record_table.enter} if by_handler else {}))
    run = worker_group.worker(pipeline, limits=Limits(batch_records=7, idle_check=60))
    run.finish(name, 2100)
    assert worker_group.record_table.written(name) == stored
    assert 7 < max(kept) < 500 + 7
    assert sum(event.records == 7 for event in run.seen.all(events.Committed)) > 280


def test_an_answer_that_failed_serves_no_other_transaction() -> None:
    identity = asking(NO_BROKER, 0.3)
    read_by = monotonic()
    answer = identity.ask_after(read_by, {"a"})
    assert identity.ask_after(read_by, {"a"}) is answer
    with pytest.raises(KafkaUnavailable):
        answer.result()
    assert identity.ask_after(read_by, {"a"}) is not answer


def test_i4_a_topic_recreated_after_the_question_and_before_the_read_stops_the_partition(
    worker_group: WorkerGroup,
) -> None:
    """I4: the answer that served the batch before is older than what was read of the new topic."""
    name, stored = worker_group.log(["old"] * 5)
    with ManualWorker(worker_group, name, **{"group.protocol": "classic"}) as manual_worker:
        manual_worker.commit(manual_worker.batch(5))
        manual_worker.held.client.pause(
            [Partition(name, 0)]
        )  # while the new topic has no offset 5, nothing is read there
        worker_group.delete_topic(name)
        worker_group.topic(name=name)
        worker_group.produce(name, ["new"] * 10)
        manual_worker.held.client.resume({Partition(name, 0): (5, None)})
        # A rebalance may come first (under KIP-848 it does): then the claim finds the new topic, and nothing is read.
        if (batch := manual_worker.batch_unless_stopped(5)) is not None:
            manual_worker.commit(batch)
        (stop,) = manual_worker.held.stopped.values()
    assert isinstance(stop, TopicRecreated)
    assert worker_group.record_table.written(name) == stored


# -- brokers that go away, and signals ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_broker_killed_between_question_and_answer(
    worker_group_on: Callable[..., WorkerGroup],
    own_kafka: KafkaServer,
) -> None:
    """Each answer is the topic's id or KafkaUnavailable; the client answers again after the broker has restarted."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    worker_group = worker_group_on(kafka=own_kafka)
    name = worker_group.topic()
    expected = {name: worker_group.topic_id(name)}
    identity = asking(worker_group.broker, 2.0)
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

    worker_group.wait(answers)


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
