"""Topics on the shared broker, and the clients that a process's tests share, because each client is expensive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not re-exported by its stubs
from confluent_kafka.cimpl import NewPartitions, NewTopic

from support.waiting import until

_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_DELETED_AT_ONCE = 25  # one request for so many topics costs the broker as much as one for two


class SharedBroker:
    """One process's clients of the broker that all tests share."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._producer = new_producer(bootstrap)
        self._produced = set[str]()
        self._unused = set[str]()  # a request that has a name twice can end the process, in librdkafka
        self._deletions: list[Future[None]] = []

    def producer(self, topic: str) -> Producer:
        """The shared producer; a new one for a topic that may have been created again since the last call."""
        if topic in self._produced:
            return new_producer(self.bootstrap)
        self._produced.add(topic)
        return self._producer

    def delete(self, topic: str) -> None:
        """Delete the topic later, together with others, so that tests do not wait for it."""
        self._unused.add(topic)
        if len(self._unused) >= _DELETED_AT_ONCE:
            self._delete()

    def close(self) -> None:
        """Delete the remaining topics, and wait for all deletions."""
        if self._unused:
            self._delete()
        for deletion in self._deletions:
            _wait_for_deletion(deletion)

    def _delete(self) -> None:
        self._deletions += self.admin.delete_topics([*self._unused]).values()
        self._unused.clear()
        while self._deletions and self._deletions[0].done():
            _wait_for_deletion(self._deletions.pop(0))


@contextmanager
def shared_broker(bootstrap: str) -> Iterator[SharedBroker]:
    """The broker at this address, during the run."""
    broker = SharedBroker(bootstrap)
    yield broker
    broker.close()


def new_producer(bootstrap: str) -> Producer:
    """A producer whose records are stored in the order in which they are produced."""
    # With more than one request in flight, what a leader refuses is stored after records that were sent later. An
    # idempotent producer would be sure of it, and is half a second late.
    order = {"max.in.flight.requests.per.connection": 1}
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "log_level": 0, **order})


def create_topic(admin: AdminClient, name: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic, and return when every partition has a leader that answers.

    Metadata names a broker as leader before it accepts records. A refused record is sent again after a pause, and
    stored after records that were sent meanwhile.
    """
    order = NewTopic(name, partitions, 1, config=dict(config))
    admin.create_topics([order], operation_timeout=20)[name].result(30)
    _wait_for_leaders(admin, name, partitions)


def add_partitions(admin: AdminClient, name: str, partitions: int) -> None:
    """Add partitions until the topic has this number, and return when each has a leader that answers.

    Otherwise a new client might get the old number, and refuse to produce to the new partitions.
    """
    admin.create_partitions([NewPartitions(name, partitions)])[name].result(20)
    _wait_for_leaders(admin, name, partitions)


def _wait_for_leaders(admin: AdminClient, name: str, partitions: int) -> None:
    def has_leaders() -> bool:
        known = admin.list_topics(name, timeout=20).topics[name].partitions
        return sum(partition.leader >= 0 for partition in known.values()) == partitions

    def leaders_answer() -> bool:
        ends = {TopicPartition(name, number): _LATEST for number in range(partitions)}
        answers = [answer.exception(30) for answer in admin.list_offsets(ends, request_timeout=20).values()]
        return not any(answers)

    until(has_leaders, f"the leaders of {name}")
    until(leaders_answer, f"answers of the leaders of {name}", 300.0)  # a thousand partitions take 6 s and more


def _wait_for_deletion(deletion: Future[None]) -> None:
    try:
        deletion.result(30)
    except Exception as error:
        if _code(error) != KafkaError.UNKNOWN_TOPIC_OR_PART:  # the test deleted it
            raise


def _code(error: Exception) -> object:
    return error.args[0].code() if error.args and isinstance(error.args[0], KafkaError) else None
