"""What the client says of itself: what ends the worker, and what it recovers from alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from seekpoint.errors import ConfigError
from seekpoint.kafka.client import Client, HeartbeatRefused, raise_if_fatal
from seekpoint.kafka.config import admin_config, consumer_config, make_admin, make_consumer
from seekpoint.kafka.range_checks import bounded_config
from seekpoint.ledger import GroupLedger
from seekpoint.records import Partition

COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


@pytest.mark.parametrize(
    "code", [KafkaError._FATAL, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED]
)
def test_a_client_beyond_recovery_or_without_rights_ends_the_work(code: int) -> None:
    """In the stream a fatal error carries its code, and `fatal()` says no: nothing would be read any more."""
    error = KafkaError(code, "no way back")
    assert not error.fatal()
    with pytest.raises(KafkaException, match="no way back"):
        raise_if_fatal(error)


def test_a_heartbeat_that_is_no_valid_request_is_an_error_of_its_own() -> None:
    """Another client may get over it."""
    message = "Fatal error: Broker: Invalid request: ConsumerGroupHeartbeat fatal error: Broker: Invalid request"
    with pytest.raises(HeartbeatRefused, match="Invalid request"):
        raise_if_fatal(KafkaError(KafkaError._FATAL, message))


@pytest.mark.parametrize("code", [KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._MAX_POLL_EXCEEDED])
def test_what_passes_is_waited_for(code: int) -> None:
    raise_if_fatal(KafkaError(code, "away"))


class _Consumer:
    """Rebalances at its second poll, and has no record."""

    def __init__(self, held: list[TopicPartition]) -> None:
        self._held, self.polls = held, 0
        self.sought: list[tuple[int, int, int | None]] = []

    def subscribe(self, _topics: list[str], *, on_assign: Callable[..., None], **_: object) -> None:
        self._on_assign = on_assign

    def poll(self, _timeout: float) -> None:
        self.polls += 1
        if self.polls == 2:
            self._on_assign(self, [])

    def assign(self, _partitions: list[TopicPartition]) -> None: ...

    incremental_assign = pause = assign

    def assignment(self) -> list[TopicPartition]:
        return self._held

    def seek(self, partition: TopicPartition) -> None:
        self.sought.append((partition.partition, partition.offset, partition.leader_epoch))


def rebalanced_client(config: dict[str, Any]) -> tuple[Client, _Consumer]:
    """A client with partitions 0 and 1, in which a rebalance's callback has just run."""
    consumer = _Consumer([TopicPartition("t", 0), TopicPartition("t", 1)])
    client = Client(consumer, config)  # type: ignore[arg-type]  # what of a consumer it uses here
    client.subscribe(["t"], lambda _: None, lambda *_: None)
    assert client.read(500, 600) == []
    return client, consumer


@pytest.mark.timeout(30)
def test_a_wait_for_a_record_ends_when_a_rebalance_callback_has_run() -> None:
    client, consumer = rebalanced_client(COOPERATIVE)
    assert client.rebalanced
    assert consumer.polls == 2, "the other 600 s are not waited for"


def test_remaining_partitions_are_read_at_once_after_a_cooperative_rebalance() -> None:
    client, consumer = rebalanced_client(COOPERATIVE)
    client.pause([Partition("t", 1)])
    client.continue_reading({Partition("t", 0): (7, 3), Partition("t", 1): (8, None), Partition("t", 2): (9, None)})
    assert consumer.sought == [(0, 7, 3)], "not what is paused, and not what the client does not have"
    assert not client.rebalanced


def test_after_an_eager_rebalance_no_partition_is_sought() -> None:
    client, consumer = rebalanced_client({})
    client.continue_reading({Partition("t", 0): (7, None)})
    assert consumer.sought == []
    assert not client.rebalanced


class _Ended:
    """Calls a revocation back in ``close()`` after it has ended, as librdkafka does past max.poll.interval.ms."""

    def subscribe(self, _topics: list[str], *, on_revoke: Callable[..., None], **_: object) -> None:
        self._on_revoke = on_revoke

    def close(self) -> None:
        self._on_revoke(self, [TopicPartition("t", 0)])

    def assignment(self) -> list[TopicPartition]:
        raise KafkaException(KafkaError(KafkaError._DESTROY))

    unassign = assignment


@pytest.mark.parametrize("config", [{}, COOPERATIVE], ids=["eager", "incremental"])
def test_a_revocation_is_noted_where_the_client_has_ended(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    revoked: list[Partition] = []
    client = Client(_Ended(), config)  # type: ignore[arg-type]  # what of a consumer it uses here
    client.subscribe(["t"], lambda _: None, lambda partitions, _: revoked.extend(partitions))
    client.close()
    assert revoked == [Partition("t", 0)]
    assert caplog.messages == []


def test_a_client_that_is_closed_while_python_ends_does_not_keep_it() -> None:
    """As that of a reader which was not closed: no thread can be started then."""
    script = """
        from types import SimpleNamespace
        from seekpoint.kafka.client import Client

        class Left:
            def __init__(self):
                client = SimpleNamespace(_consumer=SimpleNamespace(close=print), _is_closed=False)
                self.close = lambda close=Client.close: close(client)

            def __del__(self):
                self.close()
                print("closed", flush=True)

        left = Left()
        left.itself = left
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout == "closed\n", done.stderr


BROKERS = {"bootstrap.servers": "127.0.0.1:1"}


def test_the_client_id_names_the_group_the_host_and_the_process() -> None:
    expected = f"seekpoint-billing-{socket.gethostname()}-{os.getpid()}"
    assert consumer_config(BROKERS, group="billing")["client.id"] == expected
    assert admin_config(consumer_config(BROKERS, group="billing"))["client.id"] == expected
    assert consumer_config({**BROKERS, "client.id": "mine"}, group="billing")["client.id"] == "mine"


@pytest.mark.parametrize("config", ["localhost:9092", ["localhost:9092"], None])
def test_a_configuration_that_is_no_dict_is_refused(config: Any) -> None:
    refused = rf"kafka= takes a dict, e.g. {{'bootstrap.servers': 'localhost:9092'}}, got {type(config).__name__}"
    with pytest.raises(ConfigError, match=refused):
        consumer_config(config, group="g")
    with pytest.raises(ConfigError, match=refused):
        bounded_config(config)


@pytest.mark.parametrize("group", ["", " ", "\t", " \n "])
def test_a_blank_group_is_refused_before_the_client_aborts_the_process(group: str) -> None:
    with pytest.raises(ConfigError, match="a group needs a name that is not blank"):
        consumer_config(BROKERS, group=group)
    with pytest.raises(ConfigError, match="a group needs a name that is not blank"):
        GroupLedger("postgresql://u@h/db", group)


@pytest.mark.parametrize("make", [make_consumer, make_admin])
@pytest.mark.parametrize("key", ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location"])
def test_a_file_that_is_missing_is_named(make: Any, key: str) -> None:
    config = {**BROKERS, "security.protocol": "ssl", key: "/nowhere/it.pem", "log_level": 0}
    with pytest.raises(ConfigError, match=rf"{key} failed: .*; {key}: /nowhere/it\.pem does not exist \[SP1001\]$"):
        make(consumer_config(config, group="g"))


def test_a_close_that_is_given_up_says_that_the_member_may_still_be_there(caplog: pytest.LogCaptureFixture) -> None:
    may_end, ended = threading.Event(), threading.Event()

    class Slow(_Consumer):
        def close(self) -> None:
            assert may_end.wait(30)
            ended.set()

    Client(Slow([]), COOPERATIVE).close(deadline=0)  # type: ignore[arg-type]  # a consumer as far as it is used
    assert "did not close within 0 s, and is still closing" in caplog.text
    may_end.set()
    assert ended.wait(30)
