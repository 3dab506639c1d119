"""The consumer of a job: assigned to the job's ranges, and replaced if no broker answers it any more."""

from __future__ import annotations

from collections.abc import Mapping

from seekpoint.kafka.client import Client
from seekpoint.kafka.config import make_consumer
from seekpoint.kafka.range_checks import ASK, RangeChecks
from seekpoint.records import Partition


class RangeConsumer:
    """Reads partitions without a group, through its ``client``. Close it."""

    def __init__(self, checks: RangeChecks, positions: Mapping[Partition, int]) -> None:
        self._checks = checks
        self._open(positions)

    def _open(self, positions: Mapping[Partition, int]) -> None:
        self.client = Client(make_consumer(self._checks.config), self._checks.config)
        self.assign(positions)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions from these offsets, and no others."""
        self.client.assign({partition: (offset, None) for partition, offset in positions.items()}, {})

    def replace_if_unanswered(self, topic: str, positions: Mapping[Partition, int]) -> bool:
        """Replace the client if brokers answer another client but not this one; returns whether it did.

        The new client continues at these positions. See :mod:`seekpoint.kafka.questions`. Raises KafkaUnavailable if
        brokers answer neither client.
        """
        self._checks.ask([topic]).result()
        if self.client.is_answered(topic, ASK):
            return False
        # Without a broker, librdkafka closes the client only when the session times out.
        self.client.close(deadline=0.0)
        self._open(positions)
        return True

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
