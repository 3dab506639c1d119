"""What the client says of itself: what ends the worker, and what it recovers from alone."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from seekpoint.kafka.client import raise_if_fatal


@pytest.mark.parametrize(
    "code", [KafkaError._FATAL, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED]
)
def test_a_client_beyond_recovery_or_without_rights_ends_the_work(code: int) -> None:
    """In the stream a fatal error carries its code, and `fatal()` says no: nothing would be read any more."""
    error = KafkaError(code, "no way back")
    assert not error.fatal()
    with pytest.raises(KafkaException, match="no way back"):
        raise_if_fatal(error)


@pytest.mark.parametrize("code", [KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._MAX_POLL_EXCEEDED])
def test_what_passes_is_waited_for(code: int) -> None:
    raise_if_fatal(KafkaError(code, "away"))
