"""What librdkafka cannot recover from ends the worker with its error: it must not stand there and read nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from seekpoint import Append, Bytes, Pipeline
from seekpoint.events import Stopped
from workers import Run


def test_a_worker_whose_client_is_beyond_recovery_ends_with_the_reason(
    run_worker: Callable[..., Run], topic: Callable[..., str], group: str, seekpoint_broker: str
) -> None:
    name = topic()
    sink = Append("nowhere", columns=["n"], row=lambda record: (record.offset,))
    member = {"group.instance.id": "the only one"}
    run = run_worker(Pipeline(group, topics=name, value=Bytes(), sinks=[sink]), kafka=member)
    run.placed()
    rival: dict[str, Any] = {"bootstrap.servers": seekpoint_broker, "group.id": group, "log_level": 0, **member}
    other = Consumer(rival)
    try:
        other.subscribe([name])
        other.poll(0)
        stopped = run.seen.wait_for(Stopped)
    finally:
        # Once in a while this close never comes back (the rival is a bare consumer in the middle of joining).
        threading.Thread(target=other.close, daemon=True).start()
    assert isinstance(stopped.error, KafkaException)
    assert stopped.error.args[0].code() == KafkaError._FATAL
    assert "group.instance.id" in str(stopped.error)
    assert not run.health().live
    with pytest.raises(KafkaException):
        run.stop()
