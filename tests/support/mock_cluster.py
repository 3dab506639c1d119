"""librdkafka's mock cluster: Kafka inside this process, for errors that a real broker returns only by its settings.

The brokers live in the librdkafka that confluent-kafka bundles, so nothing is installed or started.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Self

from confluent_kafka import cimpl

_POINTER, _TEXT, _PRODUCER = ctypes.c_void_p, ctypes.c_char_p, 0


def _call(name: str, result: Any, *arguments: Any) -> Any:
    """Call a function of the librdkafka that this process runs; whole numbers are passed as C's int."""
    function = getattr(ctypes.CDLL(cimpl.__file__), name)  # its dependencies are searched, too
    function.restype = result
    return function(*arguments)


class MockCluster:
    """A Kafka cluster of one broker on a free port during a ``with`` block; ``bootstrap`` is its address."""

    def __init__(self) -> None:
        why = ctypes.create_string_buffer(512)
        conf = _POINTER(_call("rd_kafka_conf_new", _POINTER))
        for name, value in ((b"test.mock.num.brokers", b"1"), (b"log_level", b"0")):
            assert _call("rd_kafka_conf_set", ctypes.c_int, conf, name, value, why, ctypes.c_size_t(512)) == 0, (
                why.value
            )
        self._handle = _POINTER(_call("rd_kafka_new", _POINTER, _PRODUCER, conf, why, ctypes.c_size_t(512)))
        assert self._handle.value, why.value
        self._cluster = _POINTER(_call("rd_kafka_handle_mock_cluster", _POINTER, self._handle))
        self.bootstrap: str = _call("rd_kafka_mock_cluster_bootstraps", _TEXT, self._cluster).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _call("rd_kafka_destroy", None, self._handle)

    def create_topic(self, name: str) -> None:
        """Create a topic of one partition."""
        assert _call("rd_kafka_mock_topic_create", ctypes.c_int, self._cluster, name.encode(), 1, 1) == 0

    def push_request_errors(self, api_key: int, errors: Sequence[int]) -> None:
        """Answer the next requests with this API key with these error codes, one each, in order."""
        codes = (ctypes.c_int * len(errors))(*errors)
        length = ctypes.c_size_t(len(errors))
        _call("rd_kafka_mock_push_request_errors_array", None, self._cluster, ctypes.c_int16(api_key), length, codes)
