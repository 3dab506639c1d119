"""Questions to a coordinator, which has no answer while it loads its groups or another broker takes them over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from seekpoint.postgres.backoff import Backoff

T = TypeVar("T")

_NOT_READY = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_WAITS = Backoff(0.1, 1.0)


def answered_by_coordinator(ask: Callable[[], T], timeout: float) -> T:
    """What ``ask`` returns; it is called again, for ``timeout`` seconds, while the coordinator is not ready.

    Raises what ``ask`` raises: KafkaException with the coordinator's error once the time is over.
    """
    pause, deadline = threading.Event(), monotonic() + timeout
    waits = _WAITS.waits()
    while True:
        try:
            return ask()
        except KafkaException as error:
            wait = next(waits)
            if error.args[0].code() not in _NOT_READY or monotonic() + wait > deadline:
                raise
        pause.wait(wait)
