"""What a replay would do with each dead letter, in the order of their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from seekpoint.ledger.dead_letters import DeadLetter, DeadLetters, Where, rank
from seekpoint.worker.replay.dead_letter_admin import chosen_dead_letters, lean
from seekpoint.worker.replay.preconditions import not_first_of_key

Key = tuple[str, int, UUID, bytes]  # of one partition, in one life of its topic


@dataclass(frozen=True, slots=True)
class Planned:
    """A chosen dead letter, without value and tracebacks; ``refusal``: why it would not be replayed, or None.

    ``after`` is the id of the dead letter of its key that draws it along, where it was not chosen itself.
    """

    dead_letter: DeadLetter
    refusal: str | None = None
    after: int | None = None


def key_of(dead_letter: DeadLetter) -> Key | None:
    """The key, as an order of records is kept for it; None for a null key."""
    if dead_letter.key is None:
        return None
    return dead_letter.topic, dead_letter.partition, dead_letter.topic_id, dead_letter.key


def in_key_order(
    dead_letters: DeadLetters, planned: Sequence[Planned], keeps_order: Callable[[DeadLetter], bool]
) -> tuple[Planned, ...]:
    """The plan where keys are in order, by topic, partition and offset.

    What comes after a dead letter that is not replayed is refused; what the first of a key draws along is added.
    """
    return tuple(sorted(_in_key_order(dead_letters, planned, keeps_order), key=lambda one: rank(one.dead_letter)))


def _in_key_order(
    dead_letters: DeadLetters, planned: Sequence[Planned], keeps_order: Callable[[DeadLetter], bool]
) -> Iterator[Planned]:
    chosen = {one.dead_letter.id for one in planned}
    good = {one.dead_letter.id for one in planned if one.refusal is None}
    keys = {one.dead_letter.id: key_of(one.dead_letter) for one in planned if keeps_order(one.dead_letter)}
    wanted = {key for number, key in keys.items() if key is not None and number in good}
    first: dict[Key, DeadLetter] = {}
    for topic, partition in sorted({key[:2] for key in wanted}):
        for dead_letter in map(lean, chosen_dead_letters(dead_letters, Where(topic=topic, partition=partition))):
            key = key_of(dead_letter)
            if key is None or key not in wanted:
                continue
            head = first.setdefault(key, dead_letter)
            if head.id in good and dead_letter.id not in chosen:
                yield Planned(dead_letter, after=head.id)
    for one in planned:
        key = keys.get(one.dead_letter.id)
        first_of_key = None if key is None else first.get(key)
        if one.refusal is None and first_of_key is not None and first_of_key.id not in good:
            yield replace(one, refusal=not_first_of_key(one.dead_letter, first_of_key).reason)
        else:
            yield one
