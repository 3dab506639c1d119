"""The members of consumer groups, according to the brokers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from seekpoint.errors import KafkaUnavailable
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.questions import NO_RIGHT, AskingClient, Wait, answers, each_answer

# States of the classic protocol. KIP-848 assigns partitions to members one by one, and waits for none of them.
_REBALANCING = {ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupState.COMPLETING_REBALANCING}


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a consumer group: its ``client.id``, and its host according to the broker."""

    client_id: str
    host: str


def members(identity: Identity, groups: Collection[str]) -> dict[str, list[Member] | None]:
    """The members of each group, under either protocol; None if this client may not ask. Raises KafkaUnavailable."""
    described = _describe(identity, groups)
    return {group: None if answer is None else answer[1] for group, answer in described.items()}


def rebalancing(identity: Identity, groups: Collection[str]) -> dict[str, list[Member]]:
    """The members of each group that is rebalancing and waits for its members; empty if no broker answers."""
    try:
        described = _describe(identity, groups)
    except KafkaUnavailable:
        return {}
    return {group: answer[1] for group, answer in described.items() if answer is not None and answer[0] in _REBALANCING}


def _describe(
    identity: Identity, groups: Collection[str]
) -> dict[str, tuple[ConsumerGroupState | None, list[Member]] | None]:
    """Each group's state and members; None if this client may not ask. Raises KafkaUnavailable."""
    if not groups:
        return {}

    def send(client: AskingClient, timeout: float) -> Wait[dict[str, Any]]:
        futures = client.admin.describe_consumer_groups(sorted(groups), request_timeout=timeout)
        return lambda seconds: answers(futures, seconds)

    return {group: _known(group, answer) for group, answer in each_answer(identity.question(send), groups).items()}


def _known(group: str, answer: Any) -> tuple[ConsumerGroupState | None, list[Member]] | None:
    """State and members in the answer about a group; None if this client may not ask. Raises KafkaUnavailable."""
    if isinstance(answer, TimeoutError):
        raise KafkaUnavailable(f"no answer about group {group!r} in time") from answer
    if not isinstance(answer, KafkaException):
        return answer.state, [Member(str(member.client_id), str(member.host)) for member in answer.members]
    code = answer.args[0].code()
    if code in NO_RIGHT:  # no right on the group, or on a topic of its members, which KIP-848's answer would name
        return None
    if code == KafkaError.GROUP_ID_NOT_FOUND:
        return None, []
    raise KafkaUnavailable(f"no answer about group {group!r}: {answer.args[0].str()}") from answer
