"""Resolves the start and end of a read by Spark's source to offsets, from the ledger, the brokers or the options."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from uuid import UUID

from seekpoint.admin.spark_offsets import EARLIEST, LATEST
from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.group_snapshot import GroupSnapshot
from seekpoint.jobs.spark.settings import resolved
from seekpoint.jobs.spark.source_options import Bound, SourceOptions
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.ranges import Range
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.positions import Position
from seekpoint.records import Partition


class Bounds:
    """Resolves the options' bounds. ``snapshot`` is the state of the options' group, None without a group."""

    def __init__(self, options: SourceOptions, snapshot: GroupSnapshot | None) -> None:
        self._options, self._snapshot = options, snapshot
        self._kafka = resolved(options.kafka)

    @cached_property
    def positions(self) -> dict[Partition, Position]:
        """The group's positions in the partitions to read; empty without a group."""
        if self._snapshot is None:
            return {}
        stored = self._snapshot.positions
        if self._options.assigned is None:
            return dict(stored)
        if unknown := sorted(self._options.assigned - stored.keys()):
            raise ConfigError(f"assign names {unknown[0]}, for which group {self._snapshot.group!r} has no offset")
        return {partition: stored[partition] for partition in sorted(self._options.assigned)}

    def ranges(self) -> list[Range]:
        """One range per partition, with the id of its offsets' topic.

        Raises ConfigError for bounds that do not match the topics, RangeLost, TopicRecreated and KafkaUnavailable.
        """
        starts, ends = self.offsets(self._options.start), self.offsets(self._options.end)
        return [
            Range(partition, self.topic_id(partition), start, ends[partition])
            for partition, start in sorted(starts.items())
        ]

    def topic_id(self, partition: Partition) -> UUID:
        """The topic id to which the partition's offsets belong, from the ledger; without a group, from the brokers.

        The ledger stores it by partition, because after a topic was recreated some partitions may still be stopped at
        offsets of the deleted topic.
        """
        row = self.positions.get(partition)
        return self.topic_ids[partition.topic] if row is None else row.topic_id

    @cached_property
    def topic_ids(self) -> dict[str, UUID]:
        """The current id of each topic in the options. Raises ConfigError for a missing topic."""
        ids = self._checks.ask(self._options.topics or ()).known()
        if missing := sorted(topic for topic, topic_id in ids.items() if topic_id is None):
            raise ConfigError(f"the brokers have no topic {missing[0]!r}: create it, or correct subscribe or assign")
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}

    @cached_property
    def partitions(self) -> list[Partition]:
        """The partitions to read, sorted."""
        if self._snapshot is not None:
            return sorted(self.positions)
        counts = self._checks.counts(self.topic_ids)
        existing = [Partition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]
        if self._options.assigned is None:
            return existing
        if unknown := sorted(self._options.assigned - set(existing)):
            raise ConfigError(
                f"assign names {unknown[0]}, and the topic has {counts[unknown[0].topic]} partitions, numbered from 0"
            )
        return sorted(self._options.assigned)

    def offsets(self, bound: Bound) -> dict[Partition, int]:
        """The offset of the bound in each partition."""
        match bound.kind:
            case "applied":
                return {partition: row.first_offset for partition, row in self.positions.items()}
            case "ledger":
                return self._ledgers(bound)
            case "earliest":
                return self._starts(self.partitions)
            case "latest":
                return self._ends(self.partitions)
            case "offsets":
                return self._named_offsets(bound)
            case _:
                return self._at_times(bound)

    def _ledgers(self, bound: Bound) -> dict[Partition, int]:
        if bound.moment is None or self._snapshot is None:
            return {partition: row.next_offset for partition, row in self.positions.items()}
        stored = self._snapshot.earlier[bound.moment]
        if missing := sorted(self.positions.keys() - stored.keys()):
            raise ConfigError(
                f"{bound.option}=ledger@{bound.moment.isoformat()}: the ledger has no sample of {missing[0]} before "
                "that: choose a later time, or read that partition from an offset (assign, startingOffsets)"
            )
        return {partition: stored[partition] for partition in self.positions}

    def _named_offsets(self, bound: Bound) -> dict[Partition, int]:
        """The offsets of the option, with Spark's -1 and -2 replaced by the end and the start of the log."""
        self._require_each(bound)
        at_end = [partition for partition, offset in bound.by_partition.items() if offset == LATEST]
        at_start = [partition for partition, offset in bound.by_partition.items() if offset == EARLIEST]
        ends = self._ends(at_end) if at_end else {}
        return {**bound.by_partition, **ends, **(self._starts(at_start) if at_start else {})}

    def _require_each(self, bound: Bound) -> None:
        """Raise ConfigError unless the option names exactly the partitions to read."""
        partitions, named = set(self.partitions), set(bound.by_partition)
        wrong = [
            f"{verb} {', '.join(map(str, sorted(difference)))}"
            for verb, difference in (("leaves out", partitions - named), ("names", named - partitions))
            if difference
        ]
        if wrong:
            every = "with -2 for a log's start" if bound.option.startswith("starting") else "with -1 for a log's end"
            raise ConfigError(
                f"{bound.option} {' and '.join(wrong)}: name exactly the partitions that are read, "
                f"{'each with a time' if bound.kind == 'times' else every}; or name the partitions to read in assign"
            )

    # -- questions to the brokers ---------------------------------------------------------------------------------

    @property
    def _topics(self) -> set[str]:
        return {partition.topic for partition in self.positions}

    @cached_property
    def _checks(self) -> RangeChecks:
        return RangeChecks(self._kafka)

    @cached_property
    def _log(self) -> RangeChecks:
        """The brokers' answers, after a comparison with the ledger.

        Raises TopicRecreated for another topic id, and ConfigError if the ledger lacks a partition.
        """
        if self._snapshot is not None:
            answer = self._checks.ask(self._topics)
            for partition, row in self.positions.items():
                self._checks.check(answer, partition, row.topic_id, row.next_offset)
            self._require_all_partitions(self._snapshot.group)
        return self._checks

    def _require_all_partitions(self, group: str) -> None:
        if self._options.assigned is not None:
            return
        counts = self._checks.counts(self._topics)
        added = [Partition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]
        if missing := [partition for partition in added if partition not in self.positions]:
            raise ConfigError(
                f"the ledger has no offset of {missing[0]} for group {group!r}, which has not read it yet: start a "
                "worker once, name the other partitions in assign, or end at the group's position "
                "(endingOffsets=ledger)"
            )

    def _starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {partition: edge.offset for partition, edge in self._log.readable.starts(partitions).items()}

    def _ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {partition: edge.offset for partition, edge in self._log.readable.ends(partitions).items()}

    def _at_times(self, bound: Bound) -> dict[Partition, int]:
        """The first offsets at or after these times; without one, the log's end, or ConfigError for a start."""
        times = dict.fromkeys(self.partitions, bound.time) if bound.kind == "time" else bound.by_partition
        self._require_each(replace(bound, by_partition=times))
        ends = self._ends(times)  # first, so that records that arrive between the two requests are included
        offsets = self._log.readable.at_times(times)
        late = sorted(partition for partition, offset in offsets.items() if offset is None)
        if late and bound.option.startswith("starting") and not self._options.late_starts_at_end:
            raise ConfigError(
                f"{bound.option}: {late[0]} has no record with the timestamp {times[late[0]]} or a later one: choose "
                "an earlier time, or begin such partitions at their ends (startingOffsetsByTimestampStrategy=latest)"
            )
        return {partition: ends[partition] if offset is None else offset for partition, offset in offsets.items()}


def group_ledger(options: SourceOptions) -> GroupLedger | None:
    """The ledger of the options' group, at the URL in the option's environment variable; None without a group."""
    if options.group is None:
        return None
    return GroupLedger(options.database.value(), options.group, schema=options.schema)
