"""Plans a replay: which dead letters would be applied or refused, in key order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from seekpoint.ledger.dead_letters import OPEN, DeadLetter, DeadLetters, Where, rank
from seekpoint.records import State
from seekpoint.worker.replay.group_dead_letters import Chosen, chosen_dead_letters, without_payload
from seekpoint.worker.replay.preconditions import not_first_of_key, replay_refusal

Key = tuple[str, int, UUID, bytes]  # dead letters of one partition, under one topic id


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned dead letter, without value and tracebacks; ``refusal``: why it would be refused, or None.

    ``after``: None if it was chosen; otherwise the id of the first dead letter of its key, which it follows.
    """

    dead_letter: DeadLetter
    refusal: str | None = None
    after: int | None = None


def key_of(dead_letter: DeadLetter) -> Key | None:
    """The key whose records are replayed in order, with its partition; None for a null key."""
    if dead_letter.key is None:
        return None
    return dead_letter.topic, dead_letter.partition, dead_letter.topic_id, dead_letter.key


def planned_replay(
    dead_letters: DeadLetters, chosen: Chosen, keeps_order: Callable[[DeadLetter], bool]
) -> tuple[Planned, ...]:
    """The plan in key order, sorted by topic, partition and offset; changes nothing.

    Refuses a dead letter if an earlier one of its key is not replayed. Adds the dead letters that follow the first of a
    key. Raises ConfigError for an id that the group does not have.
    """
    positions = {position.partition: position for position in dead_letters.ledger.read()}
    planned = []
    for dead_letter in map(without_payload, chosen_dead_letters(dead_letters, chosen)):
        refusal = replay_refusal(dead_letter, positions.get(dead_letter.topic_partition))
        planned.append(Planned(dead_letter, None if refusal is None else refusal.reason))
    return tuple(sorted(_in_key_order(dead_letters, planned, keeps_order), key=lambda entry: rank(entry.dead_letter)))


def _in_key_order(
    dead_letters: DeadLetters, planned: Sequence[Planned], keeps_order: Callable[[DeadLetter], bool]
) -> Iterator[Planned]:
    chosen = {entry.dead_letter.id for entry in planned}
    replayable = {entry.dead_letter.id for entry in planned if entry.refusal is None}
    keys = {entry.dead_letter.id: key_of(entry.dead_letter) for entry in planned if keeps_order(entry.dead_letter)}
    wanted_keys = {key for number, key in keys.items() if key is not None and number in replayable}
    first: dict[Key, DeadLetter] = {}
    for topic, partition in sorted({key[:2] for key in wanted_keys}):
        where = Where(topic=topic, partition=partition, states=(*OPEN, State.WAITING))
        for dead_letter in map(without_payload, chosen_dead_letters(dead_letters, where)):
            key = key_of(dead_letter)
            if key is None or key not in wanted_keys:
                continue
            head = first.setdefault(key, dead_letter)
            if head.id in replayable and dead_letter.id not in chosen:
                yield Planned(dead_letter, after=head.id)
    for entry in planned:
        key = keys.get(entry.dead_letter.id)
        first_of_key = None if key is None else first.get(key)
        if entry.refusal is None and first_of_key is not None and first_of_key.id not in replayable:
            yield replace(entry, refusal=not_first_of_key(entry.dead_letter, first_of_key).reason)
        else:
            yield entry
