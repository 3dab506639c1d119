"""What a batch asks the brokers: the cluster and topic ids, and which offsets can be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from seekpoint.errors import ConfigError, RangeLost
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.range_checks import bounded_config, require_known
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import Claim
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import Partition


class Brokers:
    """Asks as a worker of the same ``kafka`` mapping would; ``partitions`` and ``ids`` are as of now.

    Raises KafkaUnavailable, and ConfigError for a topic that does not exist and a mapping that no consumer takes.
    """

    def __init__(self, kafka: Mapping[str, Any], pipeline: Pipeline, timeout: float) -> None:
        require_known(kafka)
        config = bounded_config(kafka)
        self._identity = Identity(config, timeout)
        self._readable = Watermarks(self._identity, committed=config["isolation.level"] != "read_uncommitted")
        self._written = Watermarks(self._identity, committed=False)
        self._pipeline = pipeline
        self.cluster_id = self._identity.cluster_id()
        counts = self._identity.partitions(pipeline.topics)
        self.partitions = [Partition(topic, n) for topic in pipeline.topics for n in range(counts[topic])]
        self.ids = self._ids()

    def _ids(self) -> dict[str, UUID]:
        found = self._identity.ask(self._pipeline.topics).result()
        if gone := sorted(topic for topic, topic_id in found.items() if topic_id is None):
            raise ConfigError(f"topic {gone[0]!r} was deleted a moment ago: create it, or correct topics=")
        return {topic: topic_id for topic, topic_id in found.items() if topic_id is not None}

    def start(self, topic: str) -> Mapping[Partition, int]:
        """The first positions of a topic that the group has not read, as the pipeline's StartAt says."""
        return self._readable.resolve(topic, self._pipeline.start, self._pipeline.group)

    def ends(self) -> dict[Partition, int]:
        """The offsets after the last records that can be read now."""
        return {at: edge.offset for at, edge in self._readable.ends(self.partitions).items()}

    def plan(self, claims: Mapping[Partition, Claim]) -> dict[Partition, int]:
        """Where each partition's range ends; where it begins, if there is nothing new.

        Raises RangeLost where the log does not have the position (any more).
        """
        ends = {at: edge.offset for at, edge in self._readable.ends(claims).items()}
        starts, written = self._readable.starts(claims), self._written.ends(claims)
        for at, claim in claims.items():
            if (first := starts[at].offset) > claim.next_offset:
                raise RangeLost(
                    at,
                    claim.next_offset,
                    f"retention has passed it: the first offset left is {first}. Ledger.reset_offset({at.topic!r}, "
                    f"{at.number}, to={first}, log=({first}, {written[at].offset}), reason=..., lost='retention') "
                    "gives the records between up, on record; then run the batch again",
                )
            if claim.next_offset > (end := written[at].offset):
                raise RangeLost(
                    at,
                    claim.next_offset,
                    f"it is past the end of the log ({end}): the log was truncated, or belongs to other brokers. "
                    f"Check bootstrap.servers; where the log was truncated, decide: Ledger.reset_offset({at.topic!r}, "
                    f"{at.number}, to={end}, log=({first}, {end}), reason=...) continues there",
                )
        return {at: max(claim.next_offset, ends[at]) for at, claim in claims.items()}
