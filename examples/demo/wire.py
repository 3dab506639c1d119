"""Produces records as fast as the client takes them; a refused record is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not re-exported by its stubs

from seekpoint.errors import SeekpointError

Heard = Callable[[int, int], None]  # called with a record's partition and offset


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic on these brokers."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


class Wire:
    """Produces to one topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            # Idempotent: a retry writes no record twice, and reports come in the order of offsets.
            {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True, "log_level": 0}
        )
        self._refused: list[KafkaError] = []

    def send(
        self, value: bytes, key: str, headers: list[tuple[str, bytes]] | None = None, heard: Heard | None = None
    ) -> None:
        """Give a record to the client; ``heard`` gets its partition and offset, in :meth:`flush` at the latest."""
        on_delivery = self._on_delivery if heard is None else self._on_delivery_with(heard)
        options: dict[str, Any] = {} if headers is None else {"headers": headers}
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=on_delivery, **options)
            except BufferError:  # the client's queue is full: let some of it go first
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def flush(self) -> None:
        """Wait until the brokers have all that was sent; raises SeekpointError if they do not take it."""
        if self._producer.flush(60) or self._refused:
            why = str(self._refused[0]) if self._refused else "no answer within 60 s"
            raise SeekpointError(f"the broker did not take every record: {why}")

    def _on_delivery(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._refused.append(error)

    def _on_delivery_with(self, heard: Heard) -> Callable[[KafkaError | None, Any], None]:
        def on_delivery(error: KafkaError | None, message: Any) -> None:
            self._on_delivery(error, message)
            if error is None:
                heard(message.partition(), message.offset())

        return on_delivery
