"""Checks a range against the brokers (topic id, ends of the log); raises errors that explain missing records."""

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
    """The configuration of a consumer that reads ranges: that of a worker, without the group.

    Raises ConfigError as ``consumer_config`` does. The client reports the log's end at once (``fetch.wait.max.ms`` 10)
    unless the mapping says otherwise.
    """
    require_mapping(kafka)
    settings = {
        key: value
        for key, value in kafka.items()
        if not key.startswith("group.") and key != "partition.assignment.strategy"
    }
    # librdkafka requires a group name. It never joins the group, but looks up its coordinator.
    return consumer_config({"fetch.wait.max.ms": 10, **settings}, group="seekpoint-ranges")


def require_known(kafka: Mapping[str, Any]) -> None:
    """Raise ConfigError for a configuration that a consumer of ranges would refuse; waits for no broker.

    This includes keys and values that librdkafka does not know. Call it before anything is stored.
    """
    make_consumer({"log_level": 0, **bounded_config(kafka)}).close()


def end_epochs(kafka: Mapping[str, Any], partitions: Collection[Partition]) -> dict[Partition, int | None]:
    """The leader epochs at the ends of the logs, None if the brokers report none. Raises KafkaUnavailable.

    No record before these ends has a later epoch. If an earlier position is stored with such an epoch, a later reader
    detects whether the log was truncated and written again.
    """
    return {partition: edge.leader_epoch for partition, edge in RangeChecks(kafka).readable.ends(partitions).items()}


class RangeChecks:
    """Asks for a topic's id and the ends of its log, as a worker with the same ``kafka`` mapping sees them."""

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        self.config = bounded_config(kafka)
        self._identity = Identity(self.config, ASK)
        self.readable = Watermarks(self._identity, committed=self.config["isolation.level"] != "read_uncommitted")
        self._written = Watermarks(self._identity, committed=False)

    def wait_at_most(self, seconds: float) -> None:
        """Wait ``seconds`` for each answer, but at most ``ASK``."""
        self._identity.timeout = min(ASK, seconds)

    def counts(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has; omits missing topics. Raises KafkaUnavailable."""
        return self._identity.known(topics)

    def ask(self, topics: Collection[str]) -> Answer:
        """Send the question for the topics' ids."""
        return self._identity.ask(topics)

    def check(self, answer: Answer, partition: Partition, topic_id: UUID, position: int) -> None:
        """Raise TopicRecreated if the topic has another id than ``topic_id``, RangeLost if it was deleted."""
        answered_id = answer.result()[partition.topic]
        if answered_id == topic_id:
            return
        if answered_id is None:
            raise RangeLost(
                partition,
                position,
                f"topic {partition.topic!r} does not exist any more: start again without the topic, or from an archive "
                "of it",
            )
        raise TopicRecreated(
            partition,
            position,
            f"topic {partition.topic!r} was deleted and created again: the range belongs to topic id {topic_id}, but "
            f"the brokers report {answered_id}. Discard everything that this run has read from it",
            choices=(
                "decide for the group first (`seekpoint status` names the choices), then start another run",
                "read the old topic from an archive of it",
            ),
        )

    def raise_for(self, error: KafkaError, partition: Partition, topic_id: UUID, position: int, end: int) -> None:
        """Raise an error for a message that is an error; ignore errors from which the client recovers."""
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
            "the brokers refused this offset, although the log now has it, so the log has changed: read the range "
            f"again, up to {end}; if that fails too, start another run",
        )

    def _lost(self, partition: Partition, position: int, end: int) -> RangeLost | None:
        start = self.readable.starts([partition])[partition].offset
        written = self._written.ends([partition])[partition].offset
        if position < start:
            return RangeLost(
                partition,
                position,
                f"retention has passed it: the first offset left is {start}, and the range ends at {end}. Read it from "
                f"an archive, or start another run from {start}; raise retention.ms or retention.bytes first",
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
        """The error if nothing of ``[position, end)`` arrives, with the reason. Raises TopicRecreated,
        KafkaUnavailable.
        """
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
                f"because of an open transaction, the log can be read only up to {readable}. Plan with stable_ends(), "
                "or wait until it is committed or times out (kafka-transactions.sh finds and aborts it)"
            )
        else:
            why = (
                "the brokers have it but sent nothing: check the network and the brokers' load, then read the "
                "range again, with a larger idle= if they are slow"
            )
        return RangeStuck(partition, position, end, why)
