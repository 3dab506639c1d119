"""Asks for logs' start and end offsets, and resolves StartAt. By default, a log's end is its last stable offset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # not re-exported by its stubs

from seekpoint.errors import ConfigError, KafkaUnavailable
from seekpoint.kafka.commits import read_commits
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.questions import AskingClient, Wait, answers, each_answer
from seekpoint.pipeline.policy import StartAt
from seekpoint.records import Partition

_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Edge(NamedTuple):
    """A log's start or end: its offset, and the leader epoch there (None if the broker does not report it)."""

    offset: int
    leader_epoch: int | None

    @classmethod
    def of(cls, answer: Any) -> Self:
        """The edge in a broker's answer about a log."""
        epoch = answer.leader_epoch
        return cls(answer.offset, epoch if epoch is not None and epoch >= 0 else None)


class Watermarks:
    """Asks for logs' starts and ends with an admin client, so that no pending fetch delays the answer."""

    def __init__(self, identity: Identity, *, committed: bool = True) -> None:
        self._identity = identity
        self._isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

    def starts(self, partitions: Collection[Partition]) -> dict[Partition, Edge]:
        """The first offset that is still in each log."""
        return self._ask(dict.fromkeys(partitions, _EARLIEST))

    def ends(self, partitions: Collection[Partition], *, skip: bool = False) -> dict[Partition, Edge]:
        """The offset after each log's last readable record. ``skip``: omit logs for which no broker answers."""
        return self._ask(dict.fromkeys(partitions, _LATEST), skip=skip)

    def logs(self, partitions: Collection[Partition]) -> dict[Partition, tuple[int, int]]:
        """First and end offset of each log; omits logs for which no broker answers."""
        starts = self._ask(dict.fromkeys(partitions, _EARLIEST), skip=True)
        ends = self._ask(dict.fromkeys(starts, _LATEST), skip=True)
        return {partition: (starts[partition].offset, end.offset) for partition, end in ends.items()}

    def _ask(self, specs: Mapping[Partition, Any], *, skip: bool = False) -> dict[Partition, Edge]:
        """The answers. Raises KafkaUnavailable if one is missing; with ``skip``, omits that partition instead."""
        if not specs:
            return {}
        logs = {TopicPartition(partition.topic, partition.number): spec for partition, spec in specs.items()}

        def send(client: AskingClient, timeout: float) -> Wait[dict[TopicPartition, Any]]:
            futures = client.admin.list_offsets(logs, isolation_level=self._isolation, request_timeout=timeout)
            return lambda seconds: answers(futures, seconds)

        question = self._identity.question_to_leaders({partition.topic for partition in specs}, send)
        edges: dict[Partition, Edge] = {}
        for log, answer in each_answer(question, logs).items():
            if not isinstance(answer, KafkaException | TimeoutError):
                edges[Partition(log.topic, log.partition)] = Edge.of(answer)
            elif not skip:
                raise KafkaUnavailable(f"no answer about the log of {log.topic}/{log.partition}: {answer}") from answer
        return edges

    def resolve(self, topic: str, start: StartAt, group: str) -> dict[Partition, int]:
        """The first position of every partition of ``topic``.

        Raises KafkaUnavailable if the brokers do not answer, ConfigError if ``start`` has no position for a partition.
        """
        count = self._identity.known([topic]).get(topic)
        if count is None:  # the topic existed a moment ago, when brokers reported its id
            raise KafkaUnavailable(f"topic {topic!r} is unknown to the broker that was asked")
        partitions = [Partition(topic, n) for n in range(count)]
        match start.kind:
            case "earliest":
                return _offsets(self.starts(partitions))
            case "latest":
                return _offsets(self.ends(partitions))
            case "time":
                if start.moment is None:
                    raise ConfigError("StartAt.time needs a time")
                return self.at_time(partitions, start.moment)
            case "offsets":
                if unknown := [
                    str(partition)
                    for partition, _ in start.positions
                    if partition.topic == topic and partition not in partitions
                ]:
                    raise ConfigError(
                        f"StartAt.offsets names {', '.join(unknown)}, but topic {topic!r} has {len(partitions)} "
                        "partitions, numbered from 0"
                    )
                return _named(partitions, dict(start.positions), "StartAt.offsets names no offset for")
            case _:
                return self._committed(partitions, group)

    def at_time(self, partitions: Collection[Partition], time: datetime) -> dict[Partition, int]:
        """The first offset whose record has a timestamp at or after ``time``; the end of the log if none has."""
        milliseconds = -(
            (_EPOCH - time.astimezone(UTC)) // timedelta(milliseconds=1)
        )  # rounded up: otherwise the first record could be one before the time
        offsets = self.at_times(dict.fromkeys(partitions, milliseconds))
        late = [partition for partition, offset in offsets.items() if offset is None]
        return {partition: offset for partition, offset in offsets.items() if offset is not None} | _offsets(
            self.ends(late)
        )

    def at_times(self, milliseconds: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """The first offset whose record has its partition's timestamp or a later one; None if no record has."""
        specs = {partition: OffsetSpec.for_timestamp(time) for partition, time in milliseconds.items()}
        edges = self._ask(specs)
        return {partition: None if edge.offset < 0 else edge.offset for partition, edge in edges.items()}

    def _committed(self, partitions: Collection[Partition], group: str) -> dict[Partition, int]:
        """The group's committed offsets in Kafka, imported once (I6). Raises ConfigError if a mirror wrote one."""
        commits = read_commits(self._identity, group, partitions)
        if mirrored := sorted(partition for partition, commit in commits.items() if commit.is_mirror):
            raise ConfigError(
                f"StartAt.committed: a Seekpoint worker has mirrored the commit of group {group!r} for "
                f"{', '.join(map(str, mirrored))}, which may be older than the position in its ledger: export that "
                "(`seekpoint offsets export`), and pass it as StartAt.offsets"
            )
        offsets = {partition: commit.offset for partition, commit in commits.items()}
        return _named(partitions, offsets, f"group {group!r} has no commit in Kafka for")


def _offsets(edges: Mapping[Partition, Edge]) -> dict[Partition, int]:
    return {partition: edge.offset for partition, edge in edges.items()}


def _named(partitions: Collection[Partition], offsets: Mapping[Partition, int], problem: str) -> dict[Partition, int]:
    if missing := [str(partition) for partition in partitions if partition not in offsets]:
        raise ConfigError(
            f"{problem} {', '.join(missing)}: every partition of a new topic needs a first position. Name them all in "
            "StartAt.offsets, or choose another StartAt"
        )
    return {partition: offsets[partition] for partition in partitions}
