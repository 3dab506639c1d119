"""A proxy that reads Kafka's protocol, and can answer Metadata requests with no brokers, as a fenced broker does.

A broker that was away for longer than ``broker.session.timeout.ms`` is fenced: until it is registered again, it answers
with the topics, no broker and controller -1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

from support.proxy import Link, Proxy
from support.waiting import until

Asker = Literal["consumer", "other"]
"""Whose request it is: of a client that fetches records, or of any other one."""

_FETCH, _METADATA = 1, 3
_FLEXIBLE = 9  # from this version of Metadata on, lengths are variable and structures end with tags


class KafkaProxy(Proxy):
    """A proxy of one broker that can remove the brokers from Metadata answers."""

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        super().__init__(upstream_host, upstream_port)
        self._due: Counter[Asker] = Counter()

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers`` for clients that use the proxy."""
        return f"127.0.0.1:{self.port}"

    def empty_metadata(self, asker: Asker, count: int = 1) -> None:
        """Answer the next ``count`` Metadata requests of such clients with no brokers."""
        self._call(self._due.update, {asker: count})

    def wait_emptied(self, asker: Asker) -> None:
        """Wait until all answers that :meth:`empty_metadata` ordered were given."""
        until(lambda: self.has_emptied(asker), f"answers without brokers to a client ({asker})")

    def has_emptied(self, asker: Asker) -> bool:
        """Whether all answers that :meth:`empty_metadata` ordered were given."""
        return self._due[asker] <= 0

    def restore(self) -> None:
        """Change no more answers."""
        self._call(self._due.clear)

    # What follows runs in the loop's thread.

    def _new_link(self) -> Link:
        return KafkaLink(self)

    def is_to_be_emptied(self, asker: Asker) -> bool:
        if self._due[asker] <= 0:
            return False
        self._due[asker] -= 1
        return True


class KafkaLink(Link):
    """A link that recognizes Metadata answers, and whether its client is a consumer."""

    def __init__(self, proxy: KafkaProxy) -> None:
        super().__init__(proxy)
        self._kafka = proxy
        self._requests, self._answers = _Frames(), _Frames()
        self._metadata: dict[int, int] = {}  # version by correlation id
        self._asker: Asker = "other"

    def from_client(self, data: bytes) -> None:
        for frame in self._requests.feed(data):
            key, version, correlation = _int(frame, 0, 2), _int(frame, 2, 2), _int(frame, 4, 4)
            if key == _METADATA:
                self._metadata[correlation] = version
            elif key == _FETCH:
                self._asker = "consumer"
        self.send_server(data)

    def from_server(self, data: bytes) -> None:
        for frame in self._answers.feed(data):
            version, answer = self._metadata.pop(_int(frame, 0, 4), None), frame
            if version is not None and self._kafka.is_to_be_emptied(self._asker):
                answer = without_brokers(frame, version)
            self.send_client(len(answer).to_bytes(4, "big") + answer)


class _Frames:
    """Splits one direction's bytes into messages, each after its length."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with these bytes."""
        self._buffer += data
        complete = []
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (length := _int(self._buffer, 0, 4)):
            complete.append(bytes(self._buffer[4 : 4 + length]))
            del self._buffer[: 4 + length]
        return complete


def without_brokers(answer: bytes, version: int) -> bytes:
    """The Metadata answer without brokers, with controller -1."""
    if version < _FLEXIBLE:
        raise ValueError(f"Metadata version {version}: only {_FLEXIBLE} and later are edited here")
    cursor = _Cursor(answer, 4)  # after the correlation id
    cursor.skip_tags()
    cursor.skip(4)  # throttle time
    brokers_at = cursor.index
    for _ in range(cursor.unsigned() - 1):
        cursor.skip(4)  # id
        cursor.skip_text()
        cursor.skip(4)  # port
        cursor.skip_text()  # rack
        cursor.skip_tags()
    cluster_at = cursor.index
    cursor.skip_text()
    controller_at = cursor.index
    none, no_controller = b"\x01", b"\xff\xff\xff\xff"
    return answer[:brokers_at] + none + answer[cluster_at:controller_at] + no_controller + answer[controller_at + 4 :]


@dataclass
class _Cursor:
    """A position in a message of a flexible version."""

    data: Final[bytes]
    index: int

    def skip(self, size: int) -> None:
        self.index += size

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.index]
            self.index += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip_text(self) -> None:
        """Skip a string, whose length is stored plus one; 0 is null."""
        self.skip(max(self.unsigned() - 1, 0))

    def skip_tags(self) -> None:
        for _ in range(self.unsigned()):
            self.unsigned()
            self.skip(self.unsigned())


def _int(data: bytes | bytearray, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], "big", signed=True)
