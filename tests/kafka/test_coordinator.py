"""A broker that has just started coordinates no group for a moment: what is asked about one waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from seekpoint import Partition
from seekpoint.kafka.commits import Commit, read_commits, write_commits
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.members import members
from seekpoint.testing.servers.kafka import KafkaServer, start_kafka


@pytest.fixture
def new_broker() -> Iterator[KafkaServer]:
    """A broker that no group has asked for anything: it makes the topic of commits, and loads it, when one does."""
    with start_kafka(own=True) as broker:
        yield broker


@pytest.mark.long
def test_a_coordinator_that_loads_its_log_is_waited_for(new_broker: KafkaServer, topic: Callable[..., str]) -> None:
    """Writing, reading and asking for members at the same time: each is asked before any answer about a group."""
    partition = Partition(topic(bootstrap=new_broker.bootstrap), 0)
    ready = Barrier(3)

    def first() -> Identity:
        identity = Identity({"bootstrap.servers": new_broker.bootstrap}, 20.0)
        ready.wait(30)
        return identity

    def write() -> None:
        identity = first()
        write_commits(identity, "written", {partition: Commit(3)})
        assert read_commits(identity, "written")[partition].offset == 3

    def read() -> None:
        assert read_commits(first(), "read") == {}

    def ask() -> None:
        assert members(first(), ["group", "another"]) == {"group": [], "another": []}

    with ThreadPoolExecutor(3) as pool:
        for answer in [pool.submit(question) for question in (write, read, ask)]:
            answer.result(60)
