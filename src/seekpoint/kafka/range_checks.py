"""Checks a range against the brokers (topic id, ends of the log), and raises what explains missing records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException

from seekpoint.errors import RangeLost, RangeStuck, SeekpointError, TopicRecreated
from seekpoint.kafka.client import OUT_OF_RANGE, raise_if_fatal
from seekpoint.kafka.config import consumer_config, make_consumer, require_mapping
from seekpoint.kafka.identity import Answer, Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.records import Partition

ASK = 10.0  # seconds to wait for an answer
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001


def bounded_config(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a consumer that reads ranges: a worker's, without its group.

    Raises ConfigError as ``consumer_config`` does. An end of the log is reported at once (``fetch.wait.max.ms`` 10)
    unless the mapping says otherwise.
    """
    require_mapping(kafka)
    kept = {
        key: value
        for key, value in kafka.items()
        if not key.startswith("group.") and key != "partition.assignment.strategy"
    }
    # librdkafka requires a group name. The group is never joined, but the client looks up its coordinator.
    return consumer_config({"fetch.wait.max.ms": 10, **kept}, group="seekpoint-ranges")


def require_known(kafka: Mapping[str, Any]) -> None:
    """Refuse what a consumer of ranges would refuse, before anything is stored; waits for no broker.

    Raises ConfigError, also for a key or a value that librdkafka does not know.
    """
    make_consumer({"log_level": 0, **bounded_config(kafka)}).close()


class RangeChecks:
    """Asks for a topic's id and the ends of its log, as a worker with the same ``kafka`` mapping sees them."""

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        self.config = bounded_config(kafka)
        self._identity = Identity(self.config, ASK)
        self.readable = Watermarks(self._identity, committed=self.config["isolation.level"] != "read_uncommitted")
        self._written = Watermarks(self._identity, committed=False)

    def wait_at_most(self, seconds: float) -> None:
        """Wait at most so long for each answer."""
        self._identity.timeout = min(ASK, seconds)

    def ask(self, topics: Collection[str]) -> Answer:
        """Send the question for the topics' ids."""
        return self._identity.ask(topics)

    def check(self, asked: Answer, partition: Partition, topic_id: UUID, position: int) -> None:
        """Raise TopicRecreated, or RangeLost for a topic that is gone, unless the answer is ``topic_id``."""
        answer = asked.result()[partition.topic]
        if answer == topic_id:
            return
        if answer is None:
            raise RangeLost(
                partition,
                position,
                f"topic {partition.topic!r} does not exist any more: end this run, and start another without the topic "
                "or from an archive of it",
            )
        raise TopicRecreated(
            partition,
            position,
            f"topic {partition.topic!r} was deleted and created again: the range belongs to topic id {topic_id}, the "
            f"brokers answer {answer}. Nothing that was read in this run of it counts",
            choices=(
                "decide for the group first (`seekpoint status` names the choices), then start another run",
                "read the topic that was: from an archive of it",
            ),
        )

    def raise_for(self, error: KafkaError, partition: Partition, topic_id: UUID, position: int, end: int) -> None:
        """Raise what an error in place of a record means; errors that the client recovers from are ignored."""
        raise_if_fatal(error)
        if error.code() == OUT_OF_RANGE or error.code() in _GONE:
            self._refused(partition, topic_id, position, end)
        if not error.retriable():
            raise KafkaException(error)

    def _refused(self, partition: Partition, topic_id: UUID, position: int, end: int) -> NoReturn:
        self.check(self.ask([partition.topic]), partition, topic_id, position)
        raise self._lost(partition, position, end) or RangeLost(
            partition,
            position,
            f"the brokers refused it, on the way to {end}, though the log holds it now: it changed meanwhile. "
            "Read the range again; if that fails too, start another run",
        )

    def _lost(self, partition: Partition, position: int, end: int) -> RangeLost | None:
        start = self.readable.starts([partition])[partition].offset
        written = self._written.ends([partition])[partition].offset
        if position < start:
            return RangeLost(
                partition,
                position,
                f"retention has passed it: the first offset left is {start}, and the range ends at {end}. Read it from "
                f"an archive, or start another run from {start}; raise retention.ms or retention.bytes before",
            )
        if position > written:
            return RangeLost(
                partition,
                position,
                f"it is past the end of the log ({written}): the log was truncated, or belongs to other brokers. "
                "Check bootstrap.servers, then start another run",
            )
        return None

    def stuck(self, partition: Partition, topic_id: UUID, position: int, end: int) -> SeekpointError:
        """Why nothing of ``[position, end)`` arrives, as an error. Raises TopicRecreated and KafkaUnavailable."""
        self.check(self.ask([partition.topic]), partition, topic_id, position)
        if lost := self._lost(partition, position, end):
            return lost
        written = self._written.ends([partition])[partition].offset
        readable = self.readable.ends([partition])[partition].offset
        if written < end:
            why = (
                f"the log ends at {written}: it was truncated, or the end was not read from these brokers. Plan with "
                "stable_ends(), and start another run"
            )
        elif readable < end:
            why = (
                f"a transaction that is still open ends what can be read at {readable}. Plan with stable_ends(), or "
                "wait until it is committed or times out (kafka-transactions.sh finds and aborts it)"
            )
        else:
            why = (
                "the brokers hold it and sent nothing: check the network and the brokers' load, then read it again, "
                "with a larger idle= where they are slow"
            )
        return RangeStuck(partition, position, end, why)
