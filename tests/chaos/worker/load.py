"""The load: produces records to every partition, portion by portion, during a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, repeat
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from chaos.worker.pipelines import GOOD, as_event
from seekpoint.testing.child_process import NotReached
from support.background import Background

BACKLOG = 4000  # records that may wait unapplied before the load pauses
TICK = 0.01  # seconds between portions


class Load(Background):
    """Produces on a separate thread during a ``with`` block; at its end every record is delivered.

    ``applied`` returns how many records of the topic the ledger has passed; at most ``BACKLOG`` records are ahead.
    Records have one of ``keys`` keys; without, none. ``as_events``: they are CloudEvents. The topics ``also``, of one
    partition, get a record with each portion.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        portion: int,
        applied: Callable[[], int],
        *,
        keys: int = 0,
        as_events: bool = False,
        also: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 2, "log_level": 0, "reconnect.backoff.max.ms": 300}
        )
        self._topic, self._partitions, self._portion, self._applied = topic, partitions, portion, applied
        self._as_events, self._also = as_events, also
        self._keys = cycle(f"{number}" for number in range(keys)) if keys else repeat(None)
        self._sent = 0
        self.delivered: dict[int, int] = dict.fromkeys(range(partitions), 0)  # after the last acknowledged record
        self.error: str | None = None

    def __enter__(self) -> Self:
        self._start = self._applied()
        return super().__enter__()

    def __exit__(self, kind: object = None, *_: object) -> None:
        super().__exit__()
        if kind is None:
            self._finish()

    def throw(self, partition: int, value: bytes) -> None:
        """Produce one special record among the others."""
        self._send(self._topic, partition, value)

    def _run(self) -> None:
        try:
            self._produce()
        except Exception as error:
            self.error = repr(error)
            raise

    def _produce(self) -> None:
        while not self._stop.wait(TICK):
            if self._sent - (self._applied() - self._start) < BACKLOG:
                for _ in range(self._portion):
                    for partition in range(self._partitions):
                        self._send(self._topic, partition, GOOD, next(self._keys))
                for topic in self._also:
                    self._send(topic, 0, GOOD, next(self._keys))
                self._sent += self._portion * self._partitions
            self._producer.poll(0)

    def _send(self, topic: str, partition: int, value: bytes, key: str | None = None) -> None:
        headers, value = as_event(key, value) if self._as_events else ({}, value)
        self._producer.produce(topic, value, key, partition=partition, on_delivery=self._noted, headers=headers)

    def _noted(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.error = self.error or error.str()
            return
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None and message.topic() == self._topic:
            self.delivered[partition] = max(self.delivered[partition], offset + 1)

    def _finish(self) -> None:
        if self._producer.flush(30):
            raise NotReached("the producer could not deliver within 30 s")
        if self.error:
            raise NotReached(f"the producer lost a record: {self.error}")
