"""What the brokers answer about the logs of a group's partitions, when a reset is planned."""

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
    """Asks the brokers of ``settings``; with none, or where none answers, what needs no broker can be planned.

    The brokers must have the cluster and the topics that the positions belong to. Raises ClusterChanged, Fenced.
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
        """Start and end of each log, past open transactions; none, and a ``doubt``, where the brokers cannot be asked.

        The end is of what was written: a position that is after the last stable offset is still in the log.
        """
        if not self._settings:
            self.doubt = "no brokers are named: it was not checked that the offsets are in the logs"
            return {}
        try:
            written = Watermarks(self.identity, committed=False)
            starts, ends = (ask(self._topic_ids.keys()) for ask in (written.starts, written.ends))
        except KafkaUnavailable as error:
            self.doubt = f"{error}; it was not checked that the offsets are in the logs"
            return {}
        return {at: (starts[at].offset, ends[at].offset) for at in starts}

    def edges(self, at: Collection[Partition], kind: str) -> dict[Partition, int]:
        """The ``earliest`` or ``latest`` offset of each log. Raises KafkaUnavailable."""
        found = self._watermarks.starts(at) if kind == "earliest" else self._watermarks.ends(at)
        return {partition: edge.offset for partition, edge in found.items()}

    def at_time(self, partitions: Collection[Partition], moment: datetime) -> dict[Partition, int]:
        """The first offset at or after the moment, else the end of the log. Raises KafkaUnavailable."""
        return self._watermarks.at_time(partitions, moment)

    def commits(self, partitions: Collection[Partition], group: str) -> dict[Partition, Commit]:
        """Kafka's commits of a group, without the partitions that have none. Raises KafkaUnavailable."""
        return read_commits(self.identity, group, partitions) if partitions else {}

    @cached_property
    def _watermarks(self) -> Watermarks:
        return Watermarks(self.identity, committed=self._settings.get("isolation.level") != "read_uncommitted")

    @cached_property
    def identity(self) -> Identity:
        """A client of the brokers, which have the cluster and the topics. Raises as the class says."""
        if not self._settings:
            raise ConfigError(
                "this target is asked of the brokers: name them with --kafka or --kafka-config, or Admin(kafka=...)"
            )
        identity = Identity(self._settings, self._timeout)
        cluster = identity.cluster_id()
        if self._cluster_id not in {None, cluster}:
            raise ClusterChanged(
                f"the brokers belong to cluster {cluster}, the positions of group {self.group!r} to "
                f"{self._cluster_id}: name the brokers of that cluster"
            )
        ids = identity.ask({at.topic for at in self._topic_ids}).known()
        for at, stored in self._topic_ids.items():
            if (now := ids[at.topic]) != stored:
                answered = "do not know it" if now is None else f"answer {now}"
                raise Fenced(
                    f"topic {at.topic!r} is not the one that was read: the position of {at} belongs to topic id "
                    f"{stored}, the brokers {answered}; decide first what becomes of the topic, see `seekpoint status`"
                )
        return identity
