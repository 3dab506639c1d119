"""Topic ids by librdkafka's own call, on the handle inside the Python client.

The Python client makes an object for each partition of a topic and hands the answer over on a thread of its own. On a
topic of 1,000 partitions that costs milliseconds, in each transaction. librdkafka's call does neither.

The handle is a member of the client's C structure, which is no public interface: a wrong place is a segfault and not
an exception. Therefore only builds on which both ways were compared are called this way (``KNOWN``), and that is
decided before any pointer is read. Other builds are asked through the Python client.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import sys
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, cimpl
from confluent_kafka.admin import AdminClient

logger = logging.getLogger("seekpoint.kafka")

_SLICE = 0.1  # seconds: no Python signal handler runs during a call into the library
_HEAD = 16  # bytes of a Python object before its own members, in builds with a GIL
_ANY_OPERATION = 0  # RD_KAFKA_ADMIN_OP_ANY


class Build(NamedTuple):
    """What decides where the handle is and which structures the library has. ``size``: bytes of the client's object."""

    version: str
    librdkafka: int
    system: str
    machine: str
    size: int


KNOWN = frozenset(
    Build(version, librdkafka, "linux", "x86_64", size)
    for version, librdkafka, size in (
        ("2.11.0", 0x020B00FF, 136),
        ("2.11.1", 0x020B01FF, 136),
        ("2.12.1", 0x020C01FF, 136),
        ("2.12.2", 0x020C01FF, 136),
        ("2.13.0", 0x020D00FF, 144),
        ("2.13.2", 0x020D02FF, 144),
        ("2.14.0", 0x020E00FF, 144),
        ("2.14.2", 0x020E02FF, 144),
        ("2.15.0", 0x020F00FF, 144),
        ("2.15.1", 0x020F01FF, 144),
        ("2.16.0", 0x021000FF, 176),
        ("2.16.1", 0x021000FF, 176),
    )
)
"""Builds on which ``tests/kafka/test_topic_ids.py`` has passed."""


def this_build() -> Build:
    """The installed client, as its compiled part reports it."""
    version: Any = confluent_kafka.version()  # before 2.12 a pair of text and number
    name = version if isinstance(version, str) else version[0]
    size = cimpl._AdminClientImpl.__basicsize__  # noqa: SLF001 -- the class whose structure has the handle
    return Build(name, confluent_kafka.libversion()[1], sys.platform, platform.machine(), size)


def is_known() -> bool:
    """Whether the handle may be read: a compared build, in a CPython with a GIL."""
    return sys.implementation.name == "cpython" and object.__basicsize__ == _HEAD and this_build() in KNOWN


class _Library:
    """The functions of the librdkafka that the Python client itself is linked to."""

    def __init__(self) -> None:
        self._loaded = ctypes.CDLL(cimpl.__file__)  # a name is searched in what it is linked to, too
        void, names = c_void_p, POINTER(c_char_p)
        self.queue_new = self._function("queue_new", void, void)
        self.queue_destroy = self._function("queue_destroy", None, void)
        self.queue_poll = self._function("queue_poll", void, void, c_int)
        self.options_new = self._function("AdminOptions_new", void, void, c_int)
        self.options_destroy = self._function("AdminOptions_destroy", None, void)
        self.set_timeout = self._function("AdminOptions_set_request_timeout", c_int, void, c_int, c_char_p, c_size_t)
        self.topics_new = self._function("TopicCollection_of_topic_names", void, names, c_size_t)
        self.topics_destroy = self._function("TopicCollection_destroy", None, void)
        self.describe = self._function("DescribeTopics", None, void, void, void, void)
        self.event_error = self._function("event_error", c_int, void)
        self.event_text = self._function("event_error_string", c_char_p, void)
        self.event_result = self._function("event_DescribeTopics_result", void, void)
        self.event_destroy = self._function("event_destroy", None, void)
        self.descriptions = self._function("DescribeTopics_result_topics", POINTER(void), void, POINTER(c_size_t))
        self.name = self._function("TopicDescription_name", c_char_p, void)
        self.error = self._function("TopicDescription_error", void, void)
        self.code = self._function("error_code", c_int, void)
        self.text = self._function("error_string", c_char_p, void)
        self.topic_id = self._function("TopicDescription_topic_id", void, void)
        self.high = self._function("Uuid_most_significant_bits", c_int64, void)
        self.low = self._function("Uuid_least_significant_bits", c_int64, void)

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._loaded, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
        return function


_library = cache(_Library)


def _pointer(client: AdminClient) -> int | None:
    """librdkafka's handle, None after the client was closed: what belonged to it is freed. Read before each use."""
    return c_void_p.from_address(id(client) + _HEAD).value


class Handle:
    """librdkafka's handle of an admin client, in a known build."""

    def __init__(self, client: AdminClient) -> None:
        self._library = _library()
        self._client = client
        self._last: _Request | None = None

    def ask(self, topics: Sequence[str], timeout: float) -> TopicIds:
        """Send the request for the topics' ids. The brokers have ``timeout`` seconds to answer it."""
        library, asked = self._library, (tuple(topics), timeout)
        if (pointer := _pointer(self._client)) is None:
            raise RuntimeError("AdminClient has been closed")
        request = self._last  # another thread may put its own there: this one keeps what it uses
        if request is None or request.asked != asked:
            request = self._last = _Request(library, pointer, *asked)
        queue = library.queue_new(pointer)
        library.describe(pointer, request.topics, request.options, queue)
        return TopicIds(library, self._client, queue)


class _Request:
    """What a request for topic ids consists of. librdkafka copies it: it may be sent again, and outlive its client."""

    _owned: list[tuple[Callable[[int], None], int]] = []  # noqa: RUF012 -- of an object whose __init__ was interrupted

    def __init__(self, library: _Library, pointer: int, topics: tuple[str, ...], timeout: float) -> None:
        self._owned = []
        self.asked = topics, timeout
        names = (c_char_p * len(topics))(*[topic.encode() for topic in topics])
        self.topics: int = library.topics_new(names, len(topics))
        self._owned.append((library.topics_destroy, self.topics))
        self.options: int = library.options_new(pointer, _ANY_OPERATION)
        self._owned.append((library.options_destroy, self.options))
        refused = ctypes.create_string_buffer(256)
        if library.set_timeout(self.options, int(timeout * 1000), refused, len(refused)):
            raise ValueError(refused.value.decode())  # as the Python client does

    def __del__(self) -> None:
        while self._owned:  # taken out first: a signal handler may raise after any call
            destroy, pointer = self._owned.pop()
            destroy(pointer)


def handle_of(client: AdminClient) -> Handle | None:
    """The client's handle; None, and one line in the log of a process, in a build that was not compared."""
    if is_known():
        return Handle(client)
    _log_fallback()
    return None


@cache
def _log_fallback() -> None:
    build = this_build()
    logger.info(
        "confluent-kafka %s with librdkafka %#010x on %s, %s was not compared: topic ids are asked for through the "
        "Python client, which makes an object for each partition of a topic",
        *build[:4],
    )


class TopicIds:
    """A request that was sent. One thread at a time waits for its answer."""

    _client: AdminClient | None = None  # of an object whose __init__ was interrupted

    def __init__(self, library: _Library, client: AdminClient, queue: int) -> None:
        self._library, self._queue = library, queue
        self._client = client  # the queue has to end before its client
        self._answer: dict[str, UUID | KafkaException] | KafkaError | None = None

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        # Marked first: a signal handler may raise after any call, and a queue that is destroyed twice ends the process.
        client, self._client = self._client, None
        if client is not None:
            self._library.queue_destroy(self._queue)

    def wait(self, timeout: float) -> dict[str, UUID | KafkaException]:
        """Each topic's id, or the broker's error about it. Raises KafkaException, and TimeoutError."""
        if self._answer is None:
            self._answer = self._received(timeout)
        if isinstance(self._answer, KafkaError):
            raise KafkaException(self._answer)
        return self._answer

    def _received(self, timeout: float) -> dict[str, UUID | KafkaException] | KafkaError:
        if self._client is None:
            raise TimeoutError
        library, end = self._library, monotonic() + timeout
        event = None
        while event is None and (left := end - monotonic()) > 0:
            if _pointer(self._client) is None:
                self._close()
                return KafkaError(KafkaError._DESTROY)  # noqa: SLF001 -- its name
            event = library.queue_poll(self._queue, max(1, int(min(left, _SLICE) * 1000)))
        if event is None:
            self._close()
            raise TimeoutError
        try:
            if code := library.event_error(event):
                return KafkaError(code, library.event_text(event).decode())
            count = c_size_t()
            topics = library.descriptions(library.event_result(event), ctypes.byref(count))
            return {library.name(one).decode(): self._id_or_error(one) for one in topics[: count.value]}
        finally:
            library.event_destroy(event)
            self._close()

    def _id_or_error(self, description: int) -> UUID | KafkaException:
        library = self._library
        error = library.error(description)
        if code := library.code(error):
            return KafkaException(KafkaError(code, library.text(error).decode()))
        topic_id = library.topic_id(description)
        return uuid_of(library.high(topic_id), library.low(topic_id))


def uuid_of(high: int, low: int) -> UUID:
    """A topic's id from its two signed halves."""
    return UUID(int=(high % 2**64 << 64) | low % 2**64)
