"""A broker that has just started coordinates no group for a moment: what is asked about one waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from seekpoint import Partition
from seekpoint.kafka.commits import Commit, read_commits, write_commits
from seekpoint.kafka.coordinator import answered_by_coordinator
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.members import members
from seekpoint.testing.servers.kafka import KafkaServer, start_kafka


@pytest.fixture
def new_broker() -> Iterator[KafkaServer]:
    """A broker that no group has asked for anything: it makes the topic of commits, and loads it, when one does."""
    with start_kafka(own=True) as broker:
        yield broker


@pytest.mark.parametrize(
    "question",
    ["write", pytest.param("read", marks=pytest.mark.long), pytest.param("members", marks=pytest.mark.long)],
)
def test_a_coordinator_that_loads_its_log_is_waited_for(
    new_broker: KafkaServer, topic: Callable[..., str], question: str
) -> None:
    partition = Partition(topic(bootstrap=new_broker.bootstrap), 0)
    identity = Identity({"bootstrap.servers": new_broker.bootstrap}, 20.0)
    match question:  # each is the first that the coordinator is asked
        case "write":
            write_commits(identity, "group", {partition: Commit(3)})
            assert read_commits(identity, "group")[partition].offset == 3
        case "read":
            assert read_commits(identity, "group") == {}
        case _:
            assert members(identity, ["group", "another"]) == {"group": [], "another": []}


@pytest.mark.parametrize("code", [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR])
def test_it_is_waited_for_as_long_as_the_timeout_says(code: int) -> None:
    asked = []

    def ask() -> Any:
        asked.append(code)
        raise KafkaException(KafkaError(code))

    with pytest.raises(KafkaException):
        answered_by_coordinator(ask, 0.5)
    assert len(asked) > 1


def test_other_errors_are_raised_at_once() -> None:
    asked = []

    def ask() -> Any:
        asked.append(0)
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    with pytest.raises(KafkaException):
        answered_by_coordinator(ask, 0.5)
    assert asked == [0]
