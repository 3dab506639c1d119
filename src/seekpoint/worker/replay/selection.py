"""Which dead letters are chosen: by their ids, or by conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from seekpoint.errors import ConfigError
from seekpoint.ledger.dead_letters import OPEN, DeadLetter, DeadLetters
from seekpoint.records import Cause, State

PAGE = 500  # dead letters that are asked for at once, without their values


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Dead letters that meet every condition given; by default all that are open.

    ``to_offset`` is the first one not meant; ``error`` a part of the error's text, in its own case; ``since`` the
    earliest time at which it became one (aware). Raises ConfigError for a time without a zone, and for offsets or a
    partition without their topic.
    """

    topic: str | None = None
    partition: int | None = None
    states: tuple[State, ...] = OPEN
    cause: Cause | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    error: str | None = None
    since: datetime | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.since.tzinfo is None:
            raise ConfigError(f"since={self.since!r}: give an aware time, e.g. datetime(..., tzinfo=UTC)")
        narrow = (self.partition, self.from_offset, self.to_offset)
        if self.topic is None and any(one is not None for one in narrow):
            raise ConfigError("a partition or an offset means nothing without its topic: name the topic, too")


Chosen = Where | Iterable[int] | int
"""A condition, ids, or one id."""


def chosen_dead_letters(dead_letters: DeadLetters, chosen: Chosen, limit: int | None = None) -> Iterator[DeadLetter]:
    """The dead letters that are meant, in the order of topic, partition and offset; their values are left out.

    Raises ConfigError for an id that the group does not have.
    """
    if isinstance(chosen, Where):
        yield from _pages(dead_letters, chosen, limit)
        return
    ids = {chosen} if isinstance(chosen, int) else set(chosen)
    yield from sorted((replace(dead_letters.get(each), value=None) for each in ids), key=rank)


def lean(dead_letter: DeadLetter) -> DeadLetter:
    """The dead letter without value and tracebacks: a hundred thousand of them fit in memory."""
    return replace(dead_letter, value=None, traceback=None, replay_traceback=None)


def rank(dead_letter: DeadLetter) -> tuple[str, int, int, int]:
    """The order among others."""
    return dead_letter.topic, dead_letter.partition, dead_letter.offset, dead_letter.id


def _pages(dead_letters: DeadLetters, where: Where, limit: int | None) -> Iterator[DeadLetter]:
    after: DeadLetter | None = None
    left = limit
    while left is None or left > 0:
        most = PAGE if left is None else min(PAGE, left)
        page = dead_letters.list(**asdict(where), limit=most, after=after, with_values=False)
        yield from page
        if len(page) < most:
            return
        after = page[-1]
        left = None if left is None else left - most
