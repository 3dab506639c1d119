"""A broker answers that there are no brokers, as one that was away does: no client stays without a connection.

``metadata.recovery.strategy=none`` makes sure that librdkafka never looks for the forgotten brokers by itself; by
default it does so most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from seekpoint import Limits, Partition, events
from seekpoint.kafka.client import Client
from seekpoint.kafka.commits import Commit, read_commits, write_commits
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.questions import AskingClient, Wait
from seekpoint.kafka.ranges import RangeFollower
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.metrics.catalogue import LAG
from seekpoint.metrics.ledger import LedgerGauges
from seekpoint.metrics.samples import Samples
from seekpoint.testing.servers.kafka import KafkaServer, start_kafka
from seekpoint.testing.servers.process import free_port
from seekpoint.worker import broker_answers
from support.events import Run
from support.kafka_proxy import KafkaProxy
from support.waiting import until
from support.worker_group import QUICK, WorkerGroup, WorkerOptions

pytestmark = [pytest.mark.usefixtures("short_backoff"), pytest.mark.long("a broker of its own, behind a proxy")]

FORGETFUL: Mapping[str, Any] = {"metadata.recovery.strategy": "none"}
SOON = Limits(kafka_timeout=1.0)


@pytest.fixture(scope="session")
def proxied_broker() -> Iterator[tuple[KafkaServer, KafkaProxy]]:
    """A broker, and the proxy through which clients of its second listener reach it."""
    port = free_port()
    with KafkaProxy("127.0.0.1", port) as proxy, start_kafka(own=True, proxied=(port, proxy.port)) as broker:
        yield broker, proxy


@pytest.fixture
def proxy(proxied_broker: tuple[KafkaServer, KafkaProxy]) -> Iterator[KafkaProxy]:
    """The proxy, which changes no answer yet."""
    yield proxied_broker[1]
    proxied_broker[1].restore()


@pytest.fixture
def worker_group(
    worker_group_on: Callable[..., WorkerGroup], proxied_broker: tuple[KafkaServer, KafkaProxy]
) -> WorkerGroup:
    """The group on the broker with a proxy; its own clients use the first listener."""
    return worker_group_on(kafka=proxied_broker[0])


def worker(worker_group: WorkerGroup, proxy: KafkaProxy, name: str, options: Mapping[str, Any], **more: Any) -> Run:
    """A worker that reaches the broker through the proxy, and forgets brokers for good."""
    arguments = {"limits": SOON, **options, **more}
    kafka = {**QUICK, **options.get("kafka", {}), **FORGETFUL, "bootstrap.servers": proxy.bootstrap}
    return worker_group.worker(name, **{**arguments, "kafka": kafka})


def test_a_worker_whose_client_for_topic_ids_forgot_the_brokers_commits_on(
    worker_group: WorkerGroup, proxy: KafkaProxy, worker_options: WorkerOptions
) -> None:
    name, stored = worker_group.log(5)
    run = worker(worker_group, proxy, name, worker_options(name, 1))
    run.reached(name, 5)
    proxy.empty_metadata("other")
    proxy.wait_emptied("other")
    stored += worker_group.produce(name, 5)
    run.finish(name, 10)
    assert not [event for event in run.seen.all(events.Assigned) if event.partitions][1:], "the consumer is kept"
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_consumer_that_forgot_the_brokers_is_closed_and_another_one_reads_on(
    worker_group: WorkerGroup, proxy: KafkaProxy, worker_options: WorkerOptions
) -> None:
    """With its mirror: commits are sent by the consumer."""
    worker_group.expire_sessions_after()
    name, stored = worker_group.log(5)
    run = worker(worker_group, proxy, name, worker_options(name, 1), mirror=True)
    run.reached(name, 5)
    mark = run.seen.mark()
    proxy.empty_metadata("consumer")  # it asks again every half second
    run.seen.wait_for(events.KafkaTrouble, lambda event: "two requests of the consumer" in event.error)
    run.seen.wait_for(events.Activated, since=mark)
    run.seen.wait_for(events.Recovered, since=mark)
    run.ready()
    stored += worker_group.produce(name, 5)
    run.reached(name, 10)
    partition = Partition(name, 0)
    identity = Identity({"bootstrap.servers": worker_group.broker}, 10.0)
    commits = partial(read_commits, identity, worker_group.group, [partition])
    until(lambda: [commit.offset for commit in commits().values()] == [10], "the mirrored position")
    run.stop()
    worker_group.record_table.assert_holds(name, stored)
    assert [row.owner for row in worker_group.ledger.read()] == [None]


@pytest.mark.long
def test_an_idle_consumer_that_brokers_answer_is_kept(
    worker_group: WorkerGroup, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bool] = []
    is_answered = Client.is_answered

    def noted(client: Client, topic: str, timeout: float) -> bool:
        checked.append(is_answered(client, topic, timeout))
        return checked[-1]

    monkeypatch.setattr(Client, "is_answered", noted)
    monkeypatch.setattr(broker_answers, "EVERY", 0.1)
    name, stored = worker_group.log(5)
    run = worker(worker_group, proxy, name, {})
    run.reached(name, 5)
    until(lambda: len(checked) > 3, "checks of a quiet consumer")
    stored += worker_group.produce(name, 5)
    run.finish(name, 10)
    assert all(checked)
    assert len(run.seen.all(events.Started)) == 1


@pytest.mark.long
def test_a_long_wait_ends_when_a_broker_answers(worker_group: WorkerGroup, proxy: KafkaProxy) -> None:
    name, stored = worker_group.log(5)
    run = worker(worker_group, proxy, name, {})
    run.reached(name, 5)
    assert run.worker._loop is not None
    run.worker._loop._waits = repeat(1000.0)
    proxy.freeze()
    try:
        run.seen.wait_for(events.KafkaTrouble, lambda event: event.wait == 1000.0)
    finally:
        proxy.thaw()
    stored += worker_group.produce(name, 5)
    run.finish(name, 10)
    worker_group.record_table.assert_holds(name, stored)


def test_the_ends_of_logs_are_answered_to_a_new_client(worker_group: WorkerGroup, proxy: KafkaProxy) -> None:
    name, _ = worker_group.log(5)
    partition = Partition(name, 0)
    identity = Identity({"bootstrap.servers": proxy.bootstrap, **FORGETFUL}, 1.0)
    watermarks = Watermarks(identity)
    assert watermarks.ends([partition])[partition].offset == 5
    proxy.empty_metadata("other")
    assert identity.ask([name]).result() == {name: worker_group.topic_id(name)}
    proxy.wait_emptied("other")
    forgetful = identity.admin
    assert watermarks.ends([partition])[partition].offset == 5
    assert identity.admin is not forgetful


def test_a_new_client_asks_leaders_when_a_broker_has_answered_it(worker_group: WorkerGroup, proxy: KafkaProxy) -> None:
    """One that looks for leaders while it connects looks again only after 3 s: lag was unknown for a scrape."""
    name, _ = worker_group.log(1)
    asked: list[tuple[AskingClient, bool]] = []

    def send(client: AskingClient, _: float) -> Wait[bool]:
        asked.append((client, client.is_connected))

        def wait(_: float) -> bool:
            if len(asked) == 2:  # as by a client that forgot its brokers
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return True

        return wait

    identity = Identity({"bootstrap.servers": proxy.bootstrap, **FORGETFUL}, 30.0)
    assert identity.question_to_leaders([name], send).answer()
    assert identity.question_to_leaders([name], send).answer()
    first, second, third = (client for client, _ in asked)
    assert first is second is not third
    assert [is_connected for _, is_connected in asked] == [True] * 3


@pytest.mark.long
def test_commits_are_answered_to_a_new_client(worker_group: WorkerGroup, proxy: KafkaProxy) -> None:
    name, _ = worker_group.log(5)
    identity = Identity({"bootstrap.servers": proxy.bootstrap, **FORGETFUL}, 1.0)

    write_commits(identity, worker_group.group, {Partition(name, 0): Commit(3)})
    proxy.empty_metadata("other")
    identity.ask([name]).result()
    proxy.wait_emptied("other")
    forgetful = identity.admin
    assert read_commits(identity, worker_group.group) == {Partition(name, 0): Commit(3)}
    assert identity.admin is not forgetful


def test_the_exporter_asks_a_new_client(worker_group: WorkerGroup, proxy: KafkaProxy) -> None:
    name, _ = worker_group.log(5)
    worker_group.worker(name).finish(name, 5)
    worker_group.produce(name, 5)
    kafka = {"bootstrap.servers": proxy.bootstrap, **FORGETFUL}
    gauges = LedgerGauges(worker_group.engine, schema=worker_group.schema, kafka=kafka)

    def lag() -> list[float]:
        samples = Samples()
        gauges.add_to(samples)
        return list(samples.of(LAG).values())

    assert lag() == [5]
    proxy.empty_metadata("other")
    assert [lag() for _ in range(4)] == [[5]] * 4
    proxy.wait_emptied("other")


@pytest.mark.long
def test_a_job_whose_consumer_forgot_the_brokers_reads_on(worker_group: WorkerGroup, proxy: KafkaProxy) -> None:
    name, _ = worker_group.log(5)
    partition, topic_id = Partition(name, 0), worker_group.topic_id(name)
    kafka = {"bootstrap.servers": proxy.bootstrap, **FORGETFUL, "topic.metadata.refresh.interval.ms": 300}
    with RangeFollower(kafka, {name: topic_id}, {partition: 0}) as follower:
        assert sum(map(len, follower.read_to({partition: 5}))) == 5
        proxy.empty_metadata("consumer")
        proxy.wait_emptied("consumer")
        worker_group.produce(name, 5)
        assert sum(map(len, follower.read_to({partition: 10}, idle=2.0))) == 5
