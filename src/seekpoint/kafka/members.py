"""The members of consumer groups, as the brokers know them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from seekpoint.errors import KafkaUnavailable
from seekpoint.kafka.coordinator import answered_by_coordinator
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.questions import Wait

_NO_ANSWER = {KafkaError.GROUP_AUTHORIZATION_FAILED}
# Of the classic protocol: the other one gives partitions to members one by one, and waits for none of them.
_REBALANCING = {ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupState.COMPLETING_REBALANCING}


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a consumer group: its ``client.id``, and its host as the broker sees it."""

    client_id: str
    host: str


def members(identity: Identity, groups: Collection[str]) -> dict[str, list[Member] | None]:
    """The members of each group, under either protocol; None where this client may not ask. Raises KafkaUnavailable."""
    described = _describe(identity, groups)
    return {group: None if answer is None else answer[1] for group, answer in described.items()}


def rebalancing(identity: Identity, groups: Collection[str]) -> dict[str, list[Member]]:
    """The members of those groups that are in a rebalance, which waits for each of them; nothing where none answers."""
    try:
        described = _describe(identity, groups)
    except KafkaUnavailable:
        return {}
    return {group: answer[1] for group, answer in described.items() if answer is not None and answer[0] in _REBALANCING}


def _describe(
    identity: Identity, groups: Collection[str]
) -> dict[str, tuple[ConsumerGroupState | None, list[Member]] | None]:
    """State and members; None where this client may not ask. Raises KafkaUnavailable."""
    if not groups:
        return {}
    asked = _ask(identity, groups)

    def answer(group: str) -> Any:
        wait = asked.pop(group, None) or _ask(identity, [group])[group]  # all at once, and one again
        return wait(identity.timeout + 1)

    found: dict[str, tuple[ConsumerGroupState | None, list[Member]] | None] = {}
    for group in sorted(groups):
        try:
            described = answered_by_coordinator(partial(answer, group), identity.timeout)
        except TimeoutError as error:
            raise KafkaUnavailable(f"no answer about group {group!r} within {identity.timeout:g} s") from error
        except KafkaException as error:
            code = error.args[0].code()
            if code not in {*_NO_ANSWER, KafkaError.GROUP_ID_NOT_FOUND}:
                raise KafkaUnavailable(f"no answer about group {group!r}: {error.args[0].str()}") from error
            found[group] = None if code in _NO_ANSWER else (None, [])
            continue
        known = [Member(str(each.client_id), str(each.host)) for each in described.members]
        found[group] = described.state, known
    return found


def _ask(identity: Identity, groups: Collection[str]) -> dict[str, Wait[Any]]:
    question = identity.question()
    asked = question.admin.describe_consumer_groups(sorted(groups), request_timeout=identity.timeout)
    return {group: partial(question.answer, future.result) for group, future in asked.items()}
