"""The load: produces records to every partition, portion by portion, during a round."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, repeat
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from chaos.worker.pipelines import GOOD
from seekpoint.testing.child_process import NotReached
from support.background import Background

BACKLOG = 4000  # records that may wait unapplied before the load pauses
TICK = 0.01  # seconds between portions


class Load(Background):
    """Produces on a separate thread during a ``with`` block; at its end every record is delivered.

    ``applied`` returns how many records of the topic the ledger has passed; at most ``BACKLOG`` records are ahead.
    Records have one of ``keys`` keys; without, none.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, portion: int, applied: Callable[[], int], *, keys: int = 0
    ) -> None:
        super().__init__()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 2, "log_level": 0, "reconnect.backoff.max.ms": 300}
        )
        self._topic, self._partitions, self._portion, self._applied = topic, partitions, portion, applied
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
        self._producer.produce(self._topic, value, partition=partition, on_delivery=self._noted)

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
                        self._producer.produce(
                            self._topic, GOOD, next(self._keys), partition=partition, on_delivery=self._noted
                        )
                self._sent += self._portion * self._partitions
            self._producer.poll(0)

    def _noted(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.error = self.error or error.str()
            return
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None:
            self.delivered[partition] = max(self.delivered[partition], offset + 1)

    def _finish(self) -> None:
        if self._producer.flush(30):
            raise NotReached("the producer could not deliver within 30 s")
        if self.error:
            raise NotReached(f"the producer lost a record: {self.error}")
