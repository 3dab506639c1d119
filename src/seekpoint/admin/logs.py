"""Asks the brokers about the logs of a group's partitions, for the plan of a reset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from seekpoint.errors import ClusterChanged, ConfigError, Fenced, KafkaUnavailable
from seekpoint.kafka.commits import Commit, read_commits
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.records import Partition


class Logs:
    """Asks brokers about the partitions' logs. Without an answer, only targets that do not need the logs can be
    planned.

    Raises ClusterChanged if the positions are of another cluster, Fenced if the brokers' topic has another id.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        timeout: float,
        *,
        group: str,
        cluster_id: str | None,
        topic_ids: Mapping[Partition, UUID],
    ) -> None:
        self._settings, self._timeout, self.group = settings, timeout, group
        self._cluster_id, self._topic_ids = cluster_id, topic_ids
        self.doubt: str | None = None

    def ranges(self) -> dict[Partition, tuple[int, int]]:
        """Start and end of each log; empty if no broker answers: ``doubt`` then has the reason.

        The end includes open transactions: a position past the last stable offset is still in the log.
        """
        if not self._settings:
            self.doubt = "no brokers are named: the offsets were not compared with the logs"
            return {}
        try:
            written = Watermarks(self.identity, committed=False)
            starts, ends = (ask(self._topic_ids.keys()) for ask in (written.starts, written.ends))
        except KafkaUnavailable as error:
            self.doubt = f"{error}; the offsets were not compared with the logs"
            return {}
        return {partition: (starts[partition].offset, ends[partition].offset) for partition in starts}

    def edges(self, partitions: Collection[Partition], kind: str) -> dict[Partition, int]:
        """The ``earliest`` or ``latest`` offset of each log. Raises KafkaUnavailable."""
        edges = self._watermarks.starts(partitions) if kind == "earliest" else self._watermarks.ends(partitions)
        return {partition: edge.offset for partition, edge in edges.items()}

    def at_time(self, partitions: Collection[Partition], moment: datetime) -> dict[Partition, int]:
        """The first offset at or after the moment, otherwise the log's end. Raises KafkaUnavailable."""
        return self._watermarks.at_time(partitions, moment)

    def commits(self, partitions: Collection[Partition], group: str) -> dict[Partition, Commit]:
        """Kafka's commits of a group; omits partitions without one. Raises KafkaUnavailable."""
        return read_commits(self.identity, group, partitions) if partitions else {}

    @cached_property
    def _watermarks(self) -> Watermarks:
        return Watermarks(self.identity, committed=self._settings.get("isolation.level") != "read_uncommitted")

    @cached_property
    def identity(self) -> Identity:
        """A client of the brokers, after a check that their cluster and topics are those of the positions.

        Raises ConfigError if no brokers are named, ClusterChanged if they belong to another cluster, Fenced if their
        topic has another id, and KafkaUnavailable if they do not answer.
        """
        if not self._settings:
            raise ConfigError(
                "only the brokers know this target: name them with --kafka or --kafka-config, or Admin(kafka=...)"
            )
        identity = Identity(self._settings, self._timeout)
        cluster = identity.cluster_id()
        if self._cluster_id not in {None, cluster}:
            raise ClusterChanged(
                f"the brokers belong to cluster {cluster}, the positions of group {self.group!r} to "
                f"{self._cluster_id}: name the brokers of that cluster"
            )
        ids = identity.ask({partition.topic for partition in self._topic_ids}).known()
        for partition, stored in self._topic_ids.items():
            if (topic_id := ids[partition.topic]) != stored:
                answered = "do not know this topic" if topic_id is None else f"have topic id {topic_id}"
                raise Fenced(
                    f"topic {partition.topic!r} is not the topic that was read: the position of {partition} belongs to "
                    f"topic id {stored}, but the brokers {answered}; decide first what to do about the topic, see "
                    "`seekpoint status`"
                )
        return identity
