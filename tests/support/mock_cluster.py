"""librdkafka's mock cluster: a Kafka inside this process, for unit tests and the instant demo.

The brokers live in the very librdkafka that confluent-kafka bundles, so nothing is installed or started.
What they cannot do: aborted transactions and control records, compaction, added partitions, topic ids
through the Admin API, retention by time, TLS. A partition keeps the newest 5 MiB or 100,000 batches.
A waiting fetch is not woken by a new record: set ``fetch.wait.max.ms`` to 10 in tests. And they mislead
about leader epochs given to ``assign()``, which a real cluster ignores inside a group: prove truncation
on a real broker.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable
from functools import cache
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, cimpl

from seekpoint.errors import ConfigError

ALL_BROKERS: Final = -1
"""Stands for every broker in ``broker_down``, ``broker_up`` and ``rtt``."""

NO_LEADER: Final = -1
"""Stands for no broker in ``set_leader``: the partition has no leader until the next call."""

_PRODUCER: Final = 0  # rd_kafka_type_t: the mock cluster hangs on some client, and a producer is the lighter one
_CONF_OK: Final = 0

_CLUSTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_ERROR = ctypes.c_int  # rd_kafka_resp_err_t
_MOCK_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "rd_kafka_mock_topic_create": (_ERROR, _CLUSTER, _TEXT, ctypes.c_int, ctypes.c_int),
    "rd_kafka_mock_topic_delete": (_ERROR, _CLUSTER, _TEXT),
    "rd_kafka_mock_partition_delete_records": (_ERROR, _CLUSTER, _TEXT, ctypes.c_int32, ctypes.c_int64),
    "rd_kafka_mock_partition_set_leader": (_ERROR, _CLUSTER, _TEXT, ctypes.c_int32, ctypes.c_int32),
    "rd_kafka_mock_partition_push_leader_response": (
        _ERROR, _CLUSTER, _TEXT, ctypes.c_int, ctypes.c_int32, ctypes.c_int32,
    ),
    "rd_kafka_mock_broker_set_down": (_ERROR, _CLUSTER, ctypes.c_int32),
    "rd_kafka_mock_broker_set_up": (_ERROR, _CLUSTER, ctypes.c_int32),
    "rd_kafka_mock_broker_set_rtt": (_ERROR, _CLUSTER, ctypes.c_int32, ctypes.c_int),
    "rd_kafka_mock_coordinator_set": (_ERROR, _CLUSTER, _TEXT, _TEXT, ctypes.c_int32),
    "rd_kafka_mock_push_request_errors_array": (
        None, _CLUSTER, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int),
    ),
    "rd_kafka_mock_clear_request_errors": (None, _CLUSTER, ctypes.c_int16),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, _CLUSTER, ctypes.c_int32),
    "rd_kafka_mock_set_group_consumer_session_timeout_ms": (None, _CLUSTER, ctypes.c_int),
    "rd_kafka_mock_set_group_consumer_heartbeat_interval_ms": (None, _CLUSTER, ctypes.c_int),
}  # fmt: skip


@cache
def _library() -> ctypes.CDLL:
    """The librdkafka this process already runs.

    Symbols are looked up through the extension module, whose dependencies the loader searches on Linux and
    macOS alike: no file name is guessed, and no second copy is loaded beside the one confluent-kafka uses.
    """
    library = ctypes.CDLL(cimpl.__file__)
    try:
        for name, result, *arguments in (
            ("rd_kafka_conf_new", ctypes.c_void_p),
            ("rd_kafka_conf_set", ctypes.c_int, ctypes.c_void_p, _TEXT, _TEXT, _TEXT, ctypes.c_size_t),
            ("rd_kafka_conf_destroy", None, ctypes.c_void_p),
            ("rd_kafka_new", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, _TEXT, ctypes.c_size_t),
            ("rd_kafka_destroy", None, ctypes.c_void_p),
            ("rd_kafka_clusterid", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
            ("rd_kafka_mem_free", None, ctypes.c_void_p, ctypes.c_void_p),
            ("rd_kafka_handle_mock_cluster", _CLUSTER, ctypes.c_void_p),
            ("rd_kafka_mock_cluster_bootstraps", _TEXT, _CLUSTER),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as missing:
        raise _not_exported(str(missing)) from missing
    return library


def _not_exported(detail: str) -> ConfigError:
    return ConfigError(
        f"the librdkafka {confluent_kafka.libversion()[0]} loaded by confluent-kafka "
        f"{confluent_kafka.version()[0]} does not export the mock cluster ({detail}): install "
        f"confluent-kafka from its published wheel, 2.16 or newer"
    )


def _mock_function(name: str) -> Any:
    try:
        function = getattr(_library(), name)
    except AttributeError as missing:
        raise _not_exported(str(missing)) from missing
    function.restype, *function.argtypes = _MOCK_FUNCTIONS[name]
    return function


def _check(code: int, action: str) -> None:
    if code != KafkaError.NO_ERROR:
        raise KafkaException(KafkaError(code, f"mock cluster: {action}: {KafkaError(code).str()}"))


class MockCluster:
    """A Kafka cluster of ``brokers`` brokers on free loopback ports, gone when the ``with`` block ends.

    ``bootstrap`` is its ``bootstrap.servers``, ``brokers`` are the ids: 1, 2, ... Offsets and leader epochs
    start at 0. Methods may be called from any thread while clients are connected; what they change has
    happened when they return. They raise ``KafkaException`` for what the cluster refuses (an unknown topic,
    broker or offset), ``ConfigError`` when the loaded librdkafka lacks the function, and ``RuntimeError``
    after ``close()``. Do not carry a cluster across ``fork``.
    """

    def __init__(self, brokers: int = 1) -> None:
        if brokers < 1:
            raise ConfigError(f"a mock cluster needs at least one broker, not {brokers}")
        self._handle: int | None = _new_client(brokers)
        self._cluster: int = _library().rd_kafka_handle_mock_cluster(self._handle)
        self.brokers: Final = tuple(range(1, brokers + 1))
        self.bootstrap: Final[str] = _library().rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        # The first join of a classic group would wait 3 s for more members.
        self.group_initial_rebalance_delay(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the brokers. Close clients first, or they go on looking for them; closing twice is fine."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _library().rd_kafka_destroy(handle)

    @property
    def cluster_id(self) -> str:
        """The cluster id that clients see, unlike that of any other mock cluster running at the same time."""
        found = _library().rd_kafka_clusterid(self._open(), 5000)
        if not found:
            raise KafkaException(
                KafkaError(KafkaError.REQUEST_TIMED_OUT, "mock cluster: no broker told the cluster id")
            )
        try:
            return ctypes.string_at(found).decode()
        finally:
            _library().rd_kafka_mem_free(self._handle, found)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic, its partitions' leaders spread over the brokers. An existing name is refused."""
        self._do(f"create topic {name!r}", "topic_create", name.encode(), partitions, len(self.brokers))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; created again it starts at offset 0."""
        self._do(f"delete topic {name!r}", "topic_delete", name.encode())

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Trim the partition as retention does: ``before`` becomes the first offset that is left."""
        action = f"delete records of {topic}[{partition}] before {before}"
        self._do(action, "partition_delete_records", topic.encode(), partition, before)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Make ``broker`` the leader (``NO_LEADER``: nobody); each call raises the leader epoch by one.

        A topic that does not exist is created, with the mock's default of 4 partitions.
        """
        action = f"make broker {broker} leader of {topic}[{partition}]"
        self._do(action, "partition_set_leader", topic.encode(), partition, broker)

    def push_leader_response(self, topic: str, partition: int, broker: int, epoch: int) -> None:
        """Answer the next metadata request for the partition, and only that, with this leader and epoch.

        Any client's request counts, also those that a client sends on its own: push more than one to be sure.
        """
        action = f"answer leader {broker}, epoch {epoch} for {topic}[{partition}]"
        self._do(action, "partition_push_leader_response", topic.encode(), partition, broker, epoch)

    def broker_down(self, broker: int = ALL_BROKERS) -> None:
        """Cut the broker's connections and refuse new ones; leaders stay where they are."""
        self._do(f"take broker {broker} down", "broker_set_down", broker)

    def broker_up(self, broker: int = ALL_BROKERS) -> None:
        """Let the broker accept connections again."""
        self._do(f"bring broker {broker} up", "broker_set_up", broker)

    def rtt(self, broker: int, milliseconds: int) -> None:
        """Delay every answer of the broker (or of ``ALL_BROKERS``); 0 ends it."""
        self._do(f"set the round trip of broker {broker}", "broker_set_rtt", broker, milliseconds)

    def set_coordinator(self, group: str, broker: int) -> None:
        """Make ``broker`` the group's coordinator; members look for it when the old one refuses them."""
        self._do(
            f"make broker {broker} coordinator of {group!r}",
            "coordinator_set",
            b"group",
            group.encode(),
            broker,
        )

    def push_request_errors(self, api_key: int, errors: Iterable[int]) -> None:
        """Answer the next requests of this kind with these error codes, one each, in order.

        ``api_key`` is the protocol's number: 0 Produce, 1 Fetch, 2 ListOffsets, 3 Metadata, and so on;
        ``KafkaError._TRANSPORT`` drops the connection instead of answering.
        """
        codes = list(errors)
        _mock_function("rd_kafka_mock_push_request_errors_array")(
            self._open_cluster(), api_key, len(codes), (ctypes.c_int * len(codes))(*codes)
        )

    def clear_request_errors(self, api_key: int) -> None:
        """Forget the errors pushed for ``api_key`` that no request has used up."""
        _mock_function("rd_kafka_mock_clear_request_errors")(self._open_cluster(), api_key)

    def group_initial_rebalance_delay(self, milliseconds: int) -> None:
        """How long a new classic group waits for more members before its first assignment; 0 unless set."""
        _mock_function("rd_kafka_mock_group_initial_rebalance_delay_ms")(self._open_cluster(), milliseconds)

    def group_timing(self, *, session_ms: int, heartbeat_ms: int) -> None:
        """Set the timing of groups with ``group.protocol=consumer``, for members to come."""
        cluster = self._open_cluster()
        _mock_function("rd_kafka_mock_set_group_consumer_session_timeout_ms")(cluster, session_ms)
        _mock_function("rd_kafka_mock_set_group_consumer_heartbeat_interval_ms")(cluster, heartbeat_ms)

    def _do(self, action: str, name: str, *arguments: object) -> None:
        _check(_mock_function(f"rd_kafka_mock_{name}")(self._open_cluster(), *arguments), action)

    def _open(self) -> int:
        if self._handle is None:
            raise RuntimeError("this mock cluster is closed")
        return self._handle

    def _open_cluster(self) -> int:
        self._open()
        return self._cluster


def _new_client(brokers: int) -> int:
    """A librdkafka client that starts the mock cluster, is connected to it and owns it."""
    library, why = _library(), ctypes.create_string_buffer(512)
    settings = {
        "test.mock.num.brokers": str(brokers),
        "client.id": f"seekpoint-mock-{next(_serial)}",
        "log_level": "0",  # its brokers go down on purpose: nobody wants to read about it
    }
    conf = library.rd_kafka_conf_new()
    for name, value in settings.items():
        if library.rd_kafka_conf_set(conf, name.encode(), value.encode(), why, len(why)) != _CONF_OK:
            library.rd_kafka_conf_destroy(conf)
            raise _not_exported(why.value.decode())
    handle = library.rd_kafka_new(_PRODUCER, conf, why, len(why))
    if not handle:
        library.rd_kafka_conf_destroy(conf)
        raise ConfigError(f"the mock cluster could not be started: {why.value.decode()}")
    return int(handle)


_serial = itertools.count(1)
