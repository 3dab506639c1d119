"""One Kafka consumer: its rebalance callbacks assign nothing; the worker's loop assigns, at the ledger's positions.

Tested against Apache Kafka under the eager, the cooperative and the KIP-848 protocol. Callbacks only record: an
exception in a callback loses records and makes ``close()`` hang. One thread at a time uses the consumer; other threads
may call :meth:`Client.renew_membership`, :meth:`Client.committed`, :meth:`Client.is_answered` and, to give up a worker,
:meth:`Client.close`.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import methodcaller
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as _TopicPartition

from seekpoint.kafka.commits import Commit, commits_of
from seekpoint.kafka.config import is_eager
from seekpoint.kafka.questions import NO_RIGHT, is_answer
from seekpoint.records import LazyRecords, Partition, RawRecord, Record

logger = logging.getLogger("seekpoint.kafka")

END_OF_PARTITION = KafkaError._PARTITION_EOF  # noqa: SLF001 -- librdkafka's own name
OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
ENDED = KafkaError._DESTROY  # noqa: SLF001
FATAL = KafkaError._FATAL  # noqa: SLF001 -- delivered in place of a record; its fatal() returns False
_IN_USE = KafkaError(KafkaError.UNRELEASED_INSTANCE_ID).str()  # only the text of a fatal error has its cause
_REFUSED_HEARTBEAT = f"ConsumerGroupHeartbeat fatal error: {KafkaError(KafkaError.INVALID_REQUEST).str()}"
_NOT_YET = {KafkaError._STATE, KafkaError._PREV_IN_PROGRESS}  # noqa: SLF001
SEEK_TIMEOUT = 5.0  # seconds; a seek takes milliseconds
SLICE = 0.01  # seconds for which a rebalance may go unnoticed while the loop waits for a record

RARE = 10_000  # gc threshold (allocations) from which on collections count as rare

# The client may set an exception and still return a result. A call from C raises the exception at once; optimized
# bytecode does not, so that a later, unrelated call would raise it.
_HEADERS = methodcaller("headers")
UNREADABLE = (SystemError, UnicodeError)  # errors raised if headers cannot be read

_Callback = Callable[[Consumer, list[_TopicPartition]], None]
OnAssigned = Callable[[list[Partition]], None]
OnRevoked = Callable[[list[Partition], bool], None]


class Client:
    """A worker's operations on a consumer, which behave alike under every group protocol."""

    def __init__(self, consumer: Consumer, config: Mapping[str, Any]) -> None:
        self._consumer = consumer
        self._in_use = threading.Lock()
        self._asking = threading.Lock()  # held during another thread's request: the client must not be freed then
        self._eager = is_eager(config)
        self._paused: set[Partition] = set()
        self.contact = monotonic()  # time of the last poll that the group has noticed
        self.heard = monotonic()  # when the client last returned a message or an event
        self._is_closed = False
        self.rebalanced = False  # a rebalance callback has run: see continue_reading()

    # -- membership -----------------------------------------------------------------------------------

    def subscribe(self, topics: Collection[str], on_assigned: OnAssigned, on_revoked: OnRevoked) -> None:
        """Join the group. Both callbacks only record; they run inside :meth:`read` and :meth:`close`."""

        def assigned(_: Consumer, partitions: list[_TopicPartition]) -> None:
            self.rebalanced = True
            self._acknowledge()
            on_assigned(_named(partitions))

        def revoked(lost: bool) -> _Callback:
            def callback(_: Consumer, partitions: list[_TopicPartition]) -> None:
                self.rebalanced = True
                on_revoked(_named(partitions), lost)
                self._unassign_revoked(partitions)

            return callback

        self._consumer.subscribe(
            list(topics), on_assign=_quiet(assigned), on_revoke=_quiet(revoked(False)), on_lost=_quiet(revoked(True))
        )

    def _acknowledge(self) -> None:
        """Accept the assignment without reading: the offsets come from the ledger, outside the callback."""
        if self._eager:
            self._consumer.assign([])
        else:
            self._consumer.incremental_assign([])

    def _unassign_revoked(self, partitions: Collection[_TopicPartition]) -> None:
        try:
            if self._eager:
                self._consumer.unassign()
            else:
                assigned = self._assigned(_named(partitions))
                self._consumer.incremental_unassign([_TopicPartition(*partition) for partition in assigned])
        except KafkaException as error:
            # If max.poll.interval.ms was exceeded after a revocation, close() runs the revocation's callback only after
            # the client has ended, when nothing is assigned.
            if error.args[0].code() != ENDED:
                raise

    # -- assignment ------------------------------------------------------------------------------------

    def assign(self, fresh: Mapping[Partition, tuple[int, int | None]], others: Mapping[Partition, int]) -> None:
        """Read ``fresh`` partitions from (offset, leader epoch); ``others`` continue at their read positions.

        Drops records that the client had buffered for a fresh partition.
        """
        with self._in_use:
            self._paused.difference_update(fresh)
            tps = [_topic_partition(partition, offset) for partition, (offset, _) in fresh.items()]
            # Only a seek makes the broker check the epoch and report a truncated log. The partitions are paused until
            # the seek: if a broker refused the position before, the client would end the partition, and seeks would
            # fail until it is assigned again.
            sought = {
                partition: _topic_partition(partition, offset, epoch)
                for partition, (offset, epoch) in fresh.items()
                if epoch is not None
            }
            self._pause_unassigned([_TopicPartition(*partition) for partition in sought])
            if self._eager:
                self._assign(
                    tps, {partition: position for partition, position in others.items() if partition not in fresh}
                )
            else:
                self._unassign(fresh)
                self._consumer.incremental_assign(tps)
            for partition in fresh:
                if partition in sought:
                    self._seek(sought[partition])
                # Resume right after the seek: if the broker answered before the resume, reading would begin up to 1 s
                # late.
                self._consumer.resume([_TopicPartition(*partition)])  # a pause outlives revocation and re-assignment

    def _pause_unassigned(self, partitions: list[_TopicPartition]) -> None:
        """Pause partitions that may never have been assigned; the client pauses only partitions that it knows."""
        if partitions:
            self._consumer.position(partitions)  # makes the partitions known
            self._consumer.pause(partitions)

    def _assign(self, fresh: list[_TopicPartition], others: Mapping[Partition, int]) -> None:
        """Replace the whole assignment; paused partitions stay paused."""
        self._consumer.assign(fresh + [_topic_partition(partition, offset) for partition, offset in others.items()])
        if paused := [_TopicPartition(*partition) for partition in others if partition in self._paused]:
            self._consumer.pause(paused)

    def _seek(self, position: _TopicPartition) -> None:
        """Seek, and retry while the client ends its previous fetch, for a few milliseconds.

        Until then the client raises _STATE, mostly if the partition was being read.
        """
        pause, deadline = threading.Event(), monotonic() + SEEK_TIMEOUT
        while True:
            try:
                self._consumer.seek(position)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET or monotonic() > deadline:
                    raise
                pause.wait(0.002)
            else:
                return

    def unassign(self, partitions: Collection[Partition], others: Mapping[Partition, int]) -> None:
        """Stop reading these partitions, and discard their buffers; the group membership stays."""
        with self._in_use:
            if self._eager:
                self._assign(
                    [], {partition: position for partition, position in others.items() if partition not in partitions}
                )
            else:
                self._unassign(partitions)

    def _unassign(self, partitions: Collection[Partition]) -> None:
        if assigned := self._assigned(partitions):
            self._consumer.incremental_unassign([_TopicPartition(*partition) for partition in assigned])

    def _assigned(self, partitions: Collection[Partition]) -> list[Partition]:
        """Those ``partitions`` that are now assigned to the client."""
        assigned = set(_named(self._consumer.assignment()))
        return [partition for partition in partitions if partition in assigned]

    def pause(self, partitions: Collection[Partition]) -> None:
        """Stop reading these partitions until :meth:`resume`, and drop their buffered records."""
        with self._in_use:
            self._paused.update(partitions)
            self._consumer.pause([_TopicPartition(*partition) for partition in partitions])

    def resume(self, read_positions: Mapping[Partition, tuple[int, int | None]]) -> None:
        """Resume reading these partitions at (offset, leader epoch of the record before it)."""
        with self._in_use:
            self._paused.difference_update(read_positions)
            self._consumer.resume([_TopicPartition(*partition) for partition in read_positions])
            for partition in self._assigned(read_positions):  # without a seek, reading may begin a second later
                self._seek(_topic_partition(partition, *read_positions[partition]))

    def continue_reading(self, read_positions: Mapping[Partition, tuple[int, int | None]]) -> None:
        """Resume reading at once after a rebalance, at (offset, leader epoch of the record before it).

        Under an incremental protocol the client pauses all partitions during a callback, discards its buffers, and
        resumes at its next check, up to a second later. A seek makes it check at once.
        """
        with self._in_use:
            self.rebalanced = False
            if self._eager:  # this protocol assigns all partitions again
                return
            for partition in self._assigned(read_positions):
                if partition not in self._paused:
                    self._seek(_topic_partition(partition, *read_positions[partition]))

    # -- reading --------------------------------------------------------------------------------------

    def read(self, most: int, wait: float) -> list[Message]:
        """Up to ``most`` messages: waits for the first one, then adds those that have already arrived."""
        with self._in_use:
            self.contact = monotonic()
            messages = self._read(most, wait)
            if messages:
                self.heard = monotonic()
            return messages

    def _read(self, most: int, wait: float) -> list[Message]:
        if wait <= 0:
            return self._consumer.consume(most, 0)
        first = self._first(wait)  # consume() would wait the full time unless `most` arrived
        if first is None:
            return []
        return [first, *(self._consumer.consume(most - 1, 0) if most > 1 else ())]

    def _first(self, wait: float) -> Message | None:
        """The first message; None after ``wait`` seconds, or after a rebalance callback, on which the loop acts."""
        until = monotonic() + wait
        while True:
            remaining = until - monotonic()
            first = self._consumer.poll(max(0.0, min(remaining, SLICE)))  # a callback does not end a poll early
            if first is not None or remaining <= SLICE or self.rebalanced:
                return first

    def commit(self, commits: Mapping[Partition, Commit]) -> KafkaError | None:
        """Send these commits to Kafka, for display; the client's ``on_commit`` gets the answer.

        Returns the client's error if they cannot be sent.
        """
        with self._in_use:
            try:
                self._consumer.commit(
                    offsets=[commit.of(partition) for partition, commit in commits.items()], asynchronous=True
                )
            except KafkaException as error:
                return error.args[0]  # type: ignore[no-any-return]
        return None

    def committed(self, partitions: Collection[Partition], timeout: float) -> dict[Partition, Commit] | None:
        """The group's commits in Kafka, for display; None if Kafka does not answer within ``timeout`` seconds.

        May run during a read, which it does not delay. Uses no admin client: after an admin client's request for
        commits, librdkafka 2.16 aborts the process when the broker restarts.
        """
        with self._asking:
            if self._is_closed:
                return None
            try:
                offsets = self._consumer.committed([_TopicPartition(*partition) for partition in partitions], timeout)
            except KafkaException:
                return None
        return None if any(offset.error is not None for offset in offsets) else commits_of(offsets)

    def is_answered(self, topic: str, timeout: float) -> bool:
        """Whether a broker answers this client's metadata request for a topic within ``timeout`` seconds."""
        with self._asking:
            if self._is_closed:
                return True
            try:
                self._consumer.list_topics(topic, timeout)
            except KafkaException as error:
                return is_answer(error)
        return True

    def renew_membership(self) -> bool:
        """Renew the membership without reading or running a callback; False if the consumer is in use."""
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            self._consumer.consume(0, 0)
            self.contact = monotonic()
        finally:
            self._in_use.release()
        return True

    def close(self, deadline: float = 10.0) -> None:
        """Leave the group. After ``deadline`` seconds the call returns, and closing continues on its own thread."""
        if self._is_closed:  # closed by the thread that gave up the worker
            return
        self._is_closed = True
        if sys.is_finalizing():  # the interpreter shuts down, and start() of a thread would wait forever
            return
        closer = threading.Thread(target=self._close, name="seekpoint-close", daemon=True)
        closer.start()
        closer.join(deadline)
        if closer.is_alive():
            logger.warning(
                "the Kafka client did not close within %g s, and is still closing: until it has closed, or its session "
                "times out, the brokers count it as a member of its group",
                deadline,
            )

    def _close(self) -> None:
        with self._asking:
            self._consumer.close()


class InstanceInUse(Exception):  # noqa: N818 -- control: the consumer is closed, and another one opened later
    """Another member of the group has this consumer's ``group.instance.id``."""


class HeartbeatRefused(KafkaException):
    """The brokers refused a heartbeat as an invalid request, which is fatal for the client.

    Under KIP-848, librdkafka up to 2.16 may send such a heartbeat when it rejoins after exceeding max.poll.interval.ms
    (its issue 5541).
    """


def raise_if_fatal(error: KafkaError) -> None:
    """Raise errors from which the client cannot recover: fatal errors and missing rights.

    Raises HeartbeatRefused if a new client may recover. Under KIP-848, raises InstanceInUse until a killed member's
    session has ended; the classic protocol gives its partitions to the new member at once.
    """
    if error.code() == FATAL and _IN_USE in error.str():
        raise InstanceInUse(
            "another member of the group has this group.instance.id: a killed process, until its session ends (the "
            "brokers' group.consumer.session.timeout.ms), or a running one, which needs a different id"
        )
    if error.code() == FATAL and _REFUSED_HEARTBEAT in error.str():
        raise HeartbeatRefused(error)
    if error.fatal() or error.code() == FATAL or error.code() in NO_RIGHT:
        raise KafkaException(error)


def leader_epoch_and_time(message: Any) -> tuple[int | None, int | None]:
    """A message's leader epoch and timestamp in milliseconds; None for a missing one."""
    kind, milliseconds = message.timestamp()
    return message.leader_epoch(), None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds


class Unreadable(Exception):  # noqa: N818 -- passes on the client's error
    """The client cannot read a message's headers (a name is not UTF-8); ``record`` is the message without them."""

    def __init__(self, record: RawRecord, cause: BaseException) -> None:
        super().__init__(f"its headers cannot be read: {cause.__cause__ or cause}")
        self.record = record


def raw_record(message: Any) -> RawRecord:
    """Convert a message of the client (not an error) to a plain value. Raises Unreadable.

    Untyped on purpose: the client's stubs allow None and str where a consumer never returns them.
    """
    failure: BaseException | None = None
    headers: Any = None
    try:
        headers = _HEADERS(message)  # call it only once: after a failure, a second call returns an incomplete list
    except UNREADABLE as error:
        failure = error
    epoch, milliseconds = leader_epoch_and_time(message)
    record = Record(  # not RawRecord: calling a generic alias is slow, and this may run for every record
        message.topic(),
        message.partition(),
        message.offset(),
        milliseconds,
        message.key(),
        message.value(),
        tuple(headers or ()),
        epoch,
    )
    if failure is not None:
        raise Unreadable(record, failure)
    return record


def readable(message: Any) -> tuple[RawRecord, Unreadable | None]:
    """Convert a message to a plain value; if its headers cannot be read, return it without headers, and the error."""
    try:
        return raw_record(message), None
    except Unreadable as error:
        return error.record, error


def lazy_records(
    messages: list[Message], partition: Partition | None
) -> tuple[LazyRecords, list[tuple[RawRecord, Unreadable]]]:
    """Convert messages (no errors) to lazy records; also returns the records with unreadable headers, and the errors.

    Reads headers at once, before any record is applied. ``partition`` is the partition of all messages, None if they
    have several. Keeps messages only if Python's garbage collector runs rarely, because it visits each of them.
    """
    many: Any = messages
    count, headers, failures = len(many), *_headers(many)
    kind: Any = type(many[0]) if count else Message  # map() over its methods takes half the time of a comprehension
    topics: list[Any] = list(map(kind.topic, many)) if partition is None else [partition.topic] * count
    numbers = list(map(kind.partition, many)) if partition is None else [partition.number] * count
    keys, values = list(map(kind.key, many)), list(map(kind.value, many))
    offsets: Callable[[], list[Any]] = partial(_offsets, kind, many)
    late: Callable[[], tuple[Any, ...]] = partial(_times_and_epochs, kind, many)
    if gc.isenabled() and gc.get_threshold()[0] < RARE:
        offsets, late = partial(list, offsets()), partial(tuple, late())

    def make() -> list[RawRecord]:
        times, epochs = late()
        pairs = [tuple(header or ()) for header in headers]
        return list(map(Record, topics, numbers, offsets(), times, keys, values, pairs, epochs))

    size = sum(map(len, filter(None, chain(keys, values))))
    topic = topics[0] if count and topics.count(topics[0]) == count else None
    records = LazyRecords(values, make, offsets, topic=topic, size=size)
    return records, [(records[n], Unreadable(records[n], failure)) for n, failure in failures.items()]


class MessageColumns(NamedTuple):
    """Messages of one partition, field by field, in their order.

    ``kinds`` are the client's timestamp types, ``times`` milliseconds; ``epochs`` are leader epochs, None if the broker
    does not report them. ``headers`` are None for a message without headers or with unreadable ones; ``unreadable`` has
    the indexes of messages with unreadable headers.
    """

    offsets: list[int]
    kinds: Sequence[int]
    times: Sequence[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    epochs: list[int | None]
    headers: list[list[tuple[str, bytes | None]] | None]
    unreadable: set[int]

    def __len__(self) -> int:
        return len(self.offsets)


def message_columns(messages: list[Message], *, headers: bool) -> MessageColumns:
    """Convert messages (at least one, no errors) to columns, without an object for each record.

    With ``headers=False`` headers and leader epochs stay empty.
    """
    many: Any = messages
    kind: Any = type(many[0])
    pairs, failures = _headers(many) if headers else ([], {})
    kinds, times = zip(*map(kind.timestamp, many), strict=True)
    keys, values = list(map(kind.key, many)), list(map(kind.value, many))
    epochs = list(map(kind.leader_epoch, many)) if headers else []
    return MessageColumns(list(map(kind.offset, many)), kinds, times, keys, values, epochs, pairs, set(failures))


def _offsets(kind: Any, messages: list[Any]) -> list[int]:
    return list(map(kind.offset, messages))


def _times_and_epochs(kind: Any, messages: list[Any]) -> tuple[list[int | None], list[int | None]]:
    """Each message's timestamp in milliseconds, and its leader epoch; None for a missing one."""
    times = [None if of == TIMESTAMP_NOT_AVAILABLE else ms for of, ms in map(kind.timestamp, messages)]
    return times, list(map(kind.leader_epoch, messages))


def _headers(messages: list[Any]) -> tuple[list[Any], dict[int, BaseException]]:
    """Every message's headers, and the errors of unreadable headers by index. Reads each message once."""
    headers: list[Any] = []
    failures: dict[int, BaseException] = {}
    if not messages:
        return headers, failures
    unread = map(type(messages[0]).headers, messages)  # called from C, for the same reason as _HEADERS
    while True:
        try:
            headers.extend(unread)  # after a failure the list has the earlier messages' headers
        except UNREADABLE as error:
            failures[len(headers)] = error
            headers.append(None)
        else:
            assert len(headers) == len(messages)
            return headers, failures


def _topic_partition(partition: Partition, offset: int, leader_epoch: int | None = None) -> _TopicPartition:
    if leader_epoch is None:
        return _TopicPartition(*partition, offset)
    return _TopicPartition(*partition, offset, leader_epoch=leader_epoch)


def _named(partitions: Collection[_TopicPartition]) -> list[Partition]:
    return [Partition(topic_partition.topic, topic_partition.partition) for topic_partition in partitions]


def _quiet(callback: _Callback) -> _Callback:
    """Log a callback's exceptions: an exception that escaped would lose records and make close() hang."""

    def guarded(consumer: Consumer, partitions: list[_TopicPartition]) -> None:
        try:
            callback(consumer, partitions)
        except Exception:
            logger.exception("a rebalance callback failed for %s", _named(partitions))

    return guarded


__all__ = [
    "END_OF_PARTITION",
    "OUT_OF_RANGE",
    "Client",
    "HeartbeatRefused",
    "InstanceInUse",
    "KafkaException",
    "Message",
    "Unreadable",
    "lazy_records",
    "leader_epoch_and_time",
    "raise_if_fatal",
    "raw_record",
    "readable",
]
