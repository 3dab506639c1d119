"""Creates topics for experiments, and produces records to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.cimpl import NewTopic

from seekpoint.errors import ConfigError, KafkaUnavailable
from seekpoint.kafka.config import admin_config
from seekpoint.kafka.identity import Identity

TIMEOUT = 10.0  # seconds for an answer of the brokers, and for the delivery of a record
_WRONG = {
    KafkaError.TOPIC_EXCEPTION,  # no topic can have this name
    KafkaError.INVALID_PARTITIONS,
    KafkaError.POLICY_VIOLATION,
    KafkaError._INVALID_ARG,  # noqa: SLF001 -- librdkafka's own name
}


@dataclass
class Produced:
    """How many records were stored in each partition, and each partition's last offset."""

    topic: str
    bootstrap: str
    counts: dict[int, int] = field(default_factory=dict)
    last_offsets: dict[int, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(self.counts.values())

    def note(self, partition: int, offset: int) -> None:
        """Count one record that the brokers have stored."""
        self.counts[partition] = self.counts.get(partition, 0) + 1
        self.last_offsets[partition] = max(offset, self.last_offsets.get(partition, -1))


def create_topic(settings: Mapping[str, Any], name: str, partitions: int) -> str:
    """Create a topic and wait until its partitions have leaders; returns the brokers' address.

    Raises ConfigError for a topic that exists or that the brokers refuse, KafkaUnavailable if no broker answers.
    """
    identity = _connected(settings)
    # -1: the brokers' default number of replicas.
    orders = identity.admin.create_topics([NewTopic(name, partitions, -1)], operation_timeout=TIMEOUT)
    try:
        orders[name].result(TIMEOUT + 1)
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            count = identity.known([name]).get(name)
            has = "" if count is None else f" and has {count} partition{'s' if count > 1 else ''}"
            raise ConfigError(
                f"topic {name!r} exists at {address(settings)}{has}: produce to it with "
                f"`seekpoint dev produce {name}`, or choose another name"
            ) from None
        if reason.code() in _WRONG:
            raise ConfigError(f"topic {name!r} cannot be created at {address(settings)}: {reason.str()}") from None
        raise
    _wait_for_leaders(identity, name, partitions)
    return address(settings)


def _wait_for_leaders(identity: Identity, name: str, partitions: int) -> None:
    deadline, pause = monotonic() + TIMEOUT, threading.Event()
    while monotonic() < deadline:
        topic = identity.admin.list_topics(name, timeout=TIMEOUT).topics[name]
        if sum(partition.leader >= 0 for partition in topic.partitions.values()) == partitions:
            return
        pause.wait(0.05)
    raise KafkaUnavailable(f"topic {name!r} was created, but some partitions have no leader after {TIMEOUT:g} s")


def produce(settings: Mapping[str, Any], topic: str, records: Iterable[Outgoing]) -> Produced:
    """Append the records to the topic, in their order, and wait until the brokers have stored them.

    Raises ConfigError if the topic does not exist or a record is refused, KafkaUnavailable if the brokers do not
    answer, and the errors of ``records``; a note on the error says how many records were stored.
    """
    if topic not in _connected(settings).known([topic]):
        raise ConfigError(
            f"topic {topic!r} does not exist at {address(settings)}: create it with `seekpoint dev topic {topic}`"
        )
    writer = _Writer(settings, topic)
    try:
        for record in records:
            writer.send(record)
        writer.wait()
        writer.raise_failure()
    except BaseException as error:
        writer.wait()
        stored = writer.produced.records
        error.add_note(
            f"{stored} {'record of an earlier line was' if stored == 1 else 'records of earlier lines were'} stored"
        )
        raise
    return writer.produced


class _Writer:
    """Produces to one topic, and keeps the first failure, with the number of its line."""

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        # Idempotent, so that a repeated request stores a record once, and in order.
        config = {"enable.idempotence": True, "message.timeout.ms": int(TIMEOUT * 1000)}
        self._producer = Producer({**admin_config(settings), **config})
        self._failure: Exception | None = None
        self.produced = Produced(topic, address(settings))

    def send(self, record: Outgoing) -> None:
        while True:
            try:
                self._producer.produce(
                    self.produced.topic,
                    record.value,
                    record.key,
                    headers=[*record.headers] or None,
                    on_delivery=self._delivered(record.line),
                )
                break
            except BufferError:  # the client's queue is full: wait until some records are sent
                self._producer.poll(0.1)
            except KafkaException as error:
                raise _refused(record.line, error.args[0]) from None
        self._producer.poll(0)
        self.raise_failure()

    def _delivered(self, line: int) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.produced.note(message.partition() or 0, message.offset() or 0)
            elif self._failure is None:
                self._failure = _refused(line, error)

        return delivered

    def wait(self) -> None:
        while self._producer.flush(0.2):  # short, so that Ctrl-C works; `message.timeout.ms` bounds the whole wait
            continue

    def raise_failure(self) -> None:
        """Raise the error of the first record that was not stored."""
        if self._failure is not None:
            raise self._failure


def _refused(line: int, error: KafkaError) -> Exception:
    if error.retriable() or error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001 -- librdkafka's own name
        return KafkaUnavailable(f"the record of line {line} was not stored: {error.str()}")
    return ConfigError(f"the record of line {line} was refused: {error.str()}")


def _connected(settings: Mapping[str, Any]) -> Identity:
    """A client of brokers that have answered; raises KafkaUnavailable, in one sentence, if no broker answers."""
    identity = Identity(settings, TIMEOUT)
    identity.cluster_id()
    return identity


def address(settings: Mapping[str, Any]) -> str:
    """The brokers' address in the settings."""
    return str(settings.get("bootstrap.servers") or settings.get("metadata.broker.list"))


_EXAMPLE = '{"key": "ada", "value": {"id": 1}, "headers": {"source": "web"}}'


class Outgoing(NamedTuple):
    """A record to produce, and the number of its line (from 1)."""

    line: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class _Object(msgspec.Struct, forbid_unknown_fields=True):
    value: msgspec.Raw
    key: msgspec.Raw = msgspec.Raw(b"null")
    headers: dict[str, str | None] = {}


def read_values(lines: Iterable[bytes], source: str, separator: str | None = None) -> Iterator[Outgoing]:
    """Read one record per line: a value, or key, separator and value. Raises ConfigError for a missing separator."""

    def parse(number: int, line: bytes) -> Outgoing:
        if separator is None:
            return Outgoing(number, None, line, [])
        key, mark, value = line.partition(separator.encode())
        if not mark:
            raise ConfigError(f"{source}, line {number}: there is no {separator!r} between a key and a value")
        return Outgoing(number, key, value, [])

    yield from _numbered(lines, parse)


def read_objects(lines: Iterable[bytes], source: str) -> Iterator[Outgoing]:
    """Read one record per line: a JSON object with ``value``, and optionally ``key`` and ``headers``.

    Sends a key or value that is a JSON string as text, null as no key or no value (a tombstone), and anything else as
    the line's JSON. Raises ConfigError for any other line.
    """

    def parse(number: int, line: bytes) -> Outgoing:
        try:
            message = msgspec.json.decode(line, type=_Object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}, line {number}: {error}; expected {_EXAMPLE}") from None
        headers = [(name, None if text is None else text.encode()) for name, text in message.headers.items()]
        return Outgoing(number, _content(message.key), _content(message.value), headers)

    yield from _numbered(lines, parse)


def _numbered(lines: Iterable[bytes], parse: Callable[[int, bytes], Outgoing]) -> Iterator[Outgoing]:
    for number, line in enumerate(lines, 1):
        if text := line.rstrip(b"\r\n"):
            yield parse(number, text)


def _content(raw: msgspec.Raw) -> bytes | None:
    json = bytes(raw)
    if json == b"null":
        return None
    return msgspec.json.decode(json, type=str).encode() if json.startswith(b'"') else json
