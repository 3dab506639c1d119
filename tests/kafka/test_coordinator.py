"""A broker that has just started coordinates no group for a moment: what is asked about one waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
@pytest.mark.parametrize(
    "question",
    ["write", "read", "members"],
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
