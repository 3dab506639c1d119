"""Offsets that Kafka keeps for consumer groups: asked of the brokers, and written to show the ledger's positions there.

No position is read back from what a mirror wrote: it may be older than the ledger's, or of transactions that a failover
lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from seekpoint.errors import Fenced, KafkaUnavailable
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.members import members
from seekpoint.kafka.questions import AskingClient, Wait
from seekpoint.records import Partition

MIRROR = "seekpoint"  # the first word of a mirror's metadata
_ACTIVE = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.NON_EMPTY_GROUP,
}


@dataclass(frozen=True, slots=True)
class Commit:
    """One partition's committed offset, with the leader epoch of the record before it (None: not known)."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""

    @classmethod
    def mirror(cls, offset: int, leader_epoch: int | None, epoch: int) -> Self:
        """A position of the ledger; ``epoch`` is that of its claim."""
        return cls(offset, leader_epoch, f"{MIRROR} epoch={epoch}")

    @property
    def is_mirror(self) -> bool:
        """Whether it was written from a ledger."""
        return self.metadata.split(" ", 1)[0] == MIRROR

    def at(self, partition: Partition) -> TopicPartition:
        """It, as the client takes it."""
        epoch = {} if self.leader_epoch is None else {"leader_epoch": self.leader_epoch}  # None is refused
        return TopicPartition(partition.topic, partition.number, self.offset, metadata=self.metadata, **epoch)


def read_commits(
    identity: Identity, group: str, partitions: Collection[Partition] | None = None
) -> dict[Partition, Commit]:
    """The commits of a group, of these partitions or of all; without those that have none. Raises KafkaUnavailable.

    Also where an open transaction is about to replace one. Of all partitions, one whose first commit is in an open
    transaction is not listed: name those that count.

    For commands and the start of a worker: see :meth:`seekpoint.kafka.client.Client.committed`.
    """
    named = None if partitions is None else [TopicPartition(at.topic, at.number) for at in sorted(partitions)]
    asked = [ConsumerGroupTopicPartitions(group, named)]

    def send(client: AskingClient, timeout: float) -> Wait[ConsumerGroupTopicPartitions]:
        # What an open transaction has applied must not be read again after its end: stable offsets.
        futures = client.admin.list_consumer_group_offsets(asked, require_stable=True, request_timeout=timeout)
        return futures[group].result

    # librdkafka 2.16 follows a null pointer where a broker that is not the group's coordinator, yet or any more, gets
    # this question from an admin client. A question that it survives finds out first that there is a coordinator.
    members(identity, [group])
    try:
        found = identity.question(send).answer().topic_partitions or []
        failed = {Partition(at.topic, at.partition): at.error for at in found if at.error is not None}
        if open_ := sorted(at for at, error in failed.items() if error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT):
            raise KafkaUnavailable(
                f"the commits of group {group!r} for {', '.join(map(str, open_))} are part of an open transaction: try "
                "again when it has ended"
            )
        if failed:
            raise KafkaException(*failed.values())
    except (KafkaException, TimeoutError) as error:
        raise KafkaUnavailable(f"no answer about the commits of group {group!r}: {error}") from error
    return commits_of(found)


def commits_of(found: Iterable[TopicPartition]) -> dict[Partition, Commit]:
    """What the client has answered, without the partitions that have no commit."""
    return {Partition(at.topic, at.partition): _commit(at) for at in found if at.error is None and at.offset >= 0}


def write_commits(identity: Identity, group: str, commits: Mapping[Partition, Commit]) -> None:
    """Write the commits of a group that has no members. Raises Fenced where it has some, KafkaUnavailable."""
    asked = [ConsumerGroupTopicPartitions(group, [commit.at(partition) for partition, commit in commits.items()])]

    def send(client: AskingClient, timeout: float) -> Wait[None]:
        futures = client.admin.alter_consumer_group_offsets(asked, request_timeout=timeout)
        return lambda seconds: _raise_first(futures[group].result(seconds))

    try:
        identity.question(send).answer()
    except (KafkaException, TimeoutError) as error:
        if isinstance(error, KafkaException) and error.args[0].code() in _ACTIVE:
            raise Fenced(f"group {group!r} has members in Kafka: stop them first ({error.args[0].str()})") from error
        raise KafkaUnavailable(f"the commits of group {group!r} were not written: {error}") from error


def _raise_first(written: ConsumerGroupTopicPartitions) -> None:
    """Raise the first partition's error: of a group that has members the call itself raises nothing."""
    for partition in written.topic_partitions or []:
        if partition.error is not None:
            raise KafkaException(partition.error)


def _commit(at: TopicPartition) -> Commit:
    epoch: Any = at.leader_epoch
    return Commit(at.offset, epoch if epoch is not None and epoch >= 0 else None, at.metadata or "")
