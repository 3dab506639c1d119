"""Reads the offsets that groups have committed to Kafka, and commits the ledger's positions to Kafka for display.

A mirror's commit is never read back as a position: it may be older than the ledger's position, or belong to
transactions that a failover lost.
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
    """One partition's committed offset, and the leader epoch of the record before it (None: not known)."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""

    @classmethod
    def mirror(cls, offset: int, leader_epoch: int | None, epoch: int) -> Self:
        """The mirror's commit of a ledger position; ``epoch`` is the epoch of the claim."""
        return cls(offset, leader_epoch, f"{MIRROR} epoch={epoch}")

    @property
    def is_mirror(self) -> bool:
        """Whether a mirror wrote this commit."""
        return self.metadata.split(" ", 1)[0] == MIRROR

    def of(self, partition: Partition) -> TopicPartition:
        """The commit as the client's type."""
        epoch = {} if self.leader_epoch is None else {"leader_epoch": self.leader_epoch}  # None is refused
        return TopicPartition(partition.topic, partition.number, self.offset, metadata=self.metadata, **epoch)


def shown_offset(committed: int | None) -> str:
    """A committed offset for messages."""
    return "no offset" if committed is None else str(committed)


def read_commits(
    identity: Identity, group: str, partitions: Collection[Partition] | None = None
) -> dict[Partition, Commit]:
    """A group's commits, for these partitions or for all; omits partitions without a commit.

    Raises KafkaUnavailable if the brokers do not answer, or if an open transaction is about to replace a commit.
    ``partitions=None`` omits a partition whose first commit is in an open transaction: name the partitions that matter.

    For commands and a worker's start; a running worker uses :meth:`seekpoint.kafka.client.Client.committed`.
    """
    named = (
        None
        if partitions is None
        else [TopicPartition(partition.topic, partition.number) for partition in sorted(partitions)]
    )
    requests = [ConsumerGroupTopicPartitions(group, named)]

    def send(client: AskingClient, timeout: float) -> Wait[ConsumerGroupTopicPartitions]:
        # require_stable: after its end, records that a now open transaction has applied must not be read again.
        futures = client.admin.list_consumer_group_offsets(requests, require_stable=True, request_timeout=timeout)
        return futures[group].result

    # librdkafka 2.16 dereferences a null pointer if an admin client sends this request to a broker that is not, or no
    # longer, the group's coordinator. members() is safe, and finds the coordinator first.
    members(identity, [group])
    try:
        answers = identity.question(send).answer().topic_partitions or []
        failed = {
            Partition(answer.topic, answer.partition): answer.error for answer in answers if answer.error is not None
        }
        if open_ := sorted(
            partition for partition, error in failed.items() if error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
        ):
            raise KafkaUnavailable(
                f"the commits of group {group!r} for {', '.join(map(str, open_))} are part of an open transaction: try "
                "again when it has ended"
            )
        if failed:
            raise KafkaException(*failed.values())
    except (KafkaException, TimeoutError) as error:
        raise KafkaUnavailable(f"no answer about the commits of group {group!r}: {error}") from error
    return commits_of(answers)


def commits_of(answers: Iterable[TopicPartition]) -> dict[Partition, Commit]:
    """The client's answers as commits; omits partitions without one."""
    return {
        Partition(answer.topic, answer.partition): _commit(answer)
        for answer in answers
        if answer.error is None and answer.offset >= 0
    }


def write_commits(identity: Identity, group: str, commits: Mapping[Partition, Commit]) -> None:
    """Write commits of a group without members. Raises Fenced if the group has members, and KafkaUnavailable."""
    requests = [ConsumerGroupTopicPartitions(group, [commit.of(partition) for partition, commit in commits.items()])]

    def send(client: AskingClient, timeout: float) -> Wait[None]:
        futures = client.admin.alter_consumer_group_offsets(requests, request_timeout=timeout)
        return lambda seconds: _raise_first(futures[group].result(seconds))

    try:
        identity.question(send).answer()
    except (KafkaException, TimeoutError) as error:
        if isinstance(error, KafkaException) and error.args[0].code() in _ACTIVE:
            raise Fenced(f"group {group!r} has members in Kafka: stop them first ({error.args[0].str()})") from error
        raise KafkaUnavailable(f"the commits of group {group!r} were not written: {error}") from error


def _raise_first(written: ConsumerGroupTopicPartitions) -> None:
    """Raise the first partition's error, because the call itself raises none for a group with members."""
    for partition in written.topic_partitions or []:
        if partition.error is not None:
            raise KafkaException(partition.error)


def _commit(answer: TopicPartition) -> Commit:
    epoch: Any = answer.leader_epoch
    return Commit(answer.offset, epoch if epoch is not None and epoch >= 0 else None, answer.metadata or "")
