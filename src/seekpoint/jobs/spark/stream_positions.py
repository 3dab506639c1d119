"""A stream's position as stored in Spark's checkpoint, and the end of its next micro-batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

from seekpoint.admin.spark_offsets import by_topic
from seekpoint.errors import ConfigError, RangeLost
from seekpoint.jobs.spark.bounds import Bounds, group_ledger
from seekpoint.jobs.spark.settings import resolved
from seekpoint.jobs.spark.source_options import SourceOptions
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.ranges import Range, check_ranges
from seekpoint.records import Partition


class StreamPosition(NamedTuple):
    """The next offset of each partition, and each topic's id.

    ``first_offsets`` has the start offsets of partitions that are new since the previous position, so that a repeated
    micro-batch begins at the same offsets.
    """

    offsets: Mapping[Partition, int]
    topic_ids: Mapping[str, UUID]
    first_offsets: Mapping[Partition, int] = {}

    def as_json(self) -> dict[str, Any]:
        """The JSON that Spark stores: ``{"offsets": {"orders": {"0": 23}}, "topicIds": {"orders": "..."}}``."""
        added = {"firstOffsets": by_topic(self.first_offsets)} if self.first_offsets else {}
        return {
            "offsets": by_topic(self.offsets),
            "topicIds": {topic: str(topic_id) for topic, topic_id in self.topic_ids.items()},
            **added,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StreamPosition:
        """Parse the result of :meth:`as_json`. Raises ConfigError for the offsets of another source."""
        try:
            topic_ids = {topic: UUID(id_) for topic, id_ in stored["topicIds"].items()}
            return cls(_by_partition(stored["offsets"]), topic_ids, _by_partition(stored.get("firstOffsets", {})))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                "the query's checkpoint is of another source: start it with a new checkpointLocation, at the offsets "
                "that the old one has (startingOffsets), or at the ledger's (group)"
            ) from error


def _by_partition(stored: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    return {
        Partition(topic, int(number)): int(offset)
        for topic, numbers in stored.items()
        for number, offset in numbers.items()
    }


class StreamPositions:
    """Asks ledger and brokers about one stream; holds no position. The constructor does no I/O."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def first(self) -> StreamPosition:
        """The position at which the first micro-batch begins. Raises the errors of ledger and brokers."""
        bounds = Bounds(replace(self._options, topics=self._topics), None)
        if self._options.start.kind != "ledger":
            return StreamPosition(bounds.offsets(self._options.start), bounds.topic_ids)
        position = StreamPosition(self._of_group(bounds), bounds.topic_ids)
        return position._replace(offsets={**position.offsets, **self._starts(position, bounds.partitions)})

    def ends(self, position: StreamPosition) -> StreamPosition:
        """The present ends of the logs, including new partitions.

        Raises RangeLost if the position is past the end, TopicRecreated if a topic was created again, and
        KafkaUnavailable if the brokers do not answer.
        """
        ids = self._require_same(position)
        ends = {partition: edge.offset for partition, edge in self._checks.readable.ends(self._partitions()).items()}
        for partition, offset in position.offsets.items():
            if offset > (end := ends.get(partition, 0)):
                raise RangeLost(
                    partition,
                    offset,
                    f"the stream is past the end of the log ({end}): the log was truncated, or belongs to other "
                    "brokers. Check kafka.bootstrap.servers; or start the query with a new checkpointLocation and "
                    "startingOffsets",
                )
        return StreamPosition(ends, ids)

    def added(self, position: StreamPosition, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The log start offsets of partitions that the position lacks.

        Raises RangeLost if retention has removed the first records of a partition that was added to a topic.
        """
        starts = self._starts(position, partitions)
        for partition, start in starts.items():
            if start and partition.topic in position.topic_ids:
                raise RangeLost(
                    partition,
                    0,
                    f"retention has passed it: the partition was added, and its log begins at {start} now. Start the "
                    "query with a new checkpointLocation and startingOffsets, which leaves these records out",
                )
        return starts

    def _starts(self, position: StreamPosition, partitions: Collection[Partition]) -> dict[Partition, int]:
        new = [partition for partition in partitions if partition not in position.offsets]
        return {partition: edge.offset for partition, edge in self._checks.readable.starts(new).items()}

    def ranges(self, start: StreamPosition, end: StreamPosition) -> list[Range]:
        """One range per partition. Raises the errors of :func:`.check_ranges`."""
        begin = {**end.first_offsets, **start.offsets}
        ranges = [
            Range(partition, end.topic_ids[partition.topic], begin[partition], offset)
            for partition, offset in sorted(end.offsets.items())
        ]
        check_ranges(resolved(self._options.kafka), ranges)
        return ranges

    def _of_group(self, bounds: Bounds) -> dict[Partition, int]:
        """The group's positions; empty if it has none yet."""
        ledger = group_ledger(self._options)
        assert ledger is not None
        partitions = set(bounds.partitions)
        try:
            rows = [row for row in ledger.read() if row.partition in partitions]
        finally:
            ledger.engine.dispose()
        answer = self._checks.ask(bounds.topic_ids)
        for row in rows:
            self._checks.check(answer, row.partition, row.topic_id, row.next_offset)
        return {row.partition: row.next_offset for row in rows}

    def _partitions(self) -> list[Partition]:
        """The partitions to read now."""
        if self._options.assigned is not None:
            return sorted(self._options.assigned)
        counts = self._checks.counts(self._topics)
        return [Partition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]

    def _require_read(self, position: StreamPosition) -> None:
        """Raise ConfigError for a partition of the position that the stream no longer reads."""
        assigned = self._options.assigned
        for partition in position.offsets:
            if partition.topic not in self._topics or (assigned is not None and partition not in assigned):
                raise ConfigError(
                    f"the query's checkpoint has a position of {partition}, which its subscribe or assign no longer "
                    "names: name it again, or start the query with a new checkpointLocation and startingOffsets"
                )

    def _require_same(self, position: StreamPosition) -> Mapping[str, UUID]:
        """The topics' ids. Raises TopicRecreated if the position has other ids, RangeLost for a missing topic."""
        self._require_read(position)
        answer = self._checks.ask(self._topics)
        for partition, offset in position.offsets.items():
            self._checks.check(answer, partition, position.topic_ids[partition.topic], offset)
        return {topic: topic_id for topic, topic_id in answer.known().items() if topic_id is not None}

    @cached_property
    def _checks(self) -> RangeChecks:
        return RangeChecks(resolved(self._options.kafka))

    @property
    def _topics(self) -> tuple[str, ...]:
        if self._options.topics is None:
            raise ConfigError(
                "no topics are given: a stream needs subscribe or assign, because its group may not exist yet"
            )
        return self._options.topics


def limited(start: Mapping[Partition, int], ends: Mapping[Partition, int], most: int) -> dict[Partition, int]:
    """The ends, reduced to at most ``most`` offsets after ``start`` in total: equal shares of each partition's lag."""
    lag = sum(end - start[partition] for partition, end in ends.items())
    if lag <= most:
        return dict(ends)
    passed, shared_out, reduced = 0, 0, {}
    for partition, end in sorted(ends.items()):
        passed += end - start[partition]
        share = passed * most // lag - shared_out
        reduced[partition] = start[partition] + share
        shared_out += share
    return reduced
