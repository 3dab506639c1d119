"""A group's dead letters, for operators: list, get, discard, export as JSON. Needs no pipeline: nothing is applied."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import Enum
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import URL, Engine

from seekpoint.backoff import Backoff, retried
from seekpoint.errors import ConfigError
from seekpoint.ledger import Ledger
from seekpoint.ledger.admin_actions import operator
from seekpoint.ledger.dead_letters import DeadLetter, DeadLetterCause, DeadLetters, Where, name_bytes
from seekpoint.ledger.schema_connection import SchemaConnection
from seekpoint.ledger.sql import DEAD_LETTERS
from seekpoint.ledger.tables import DEFAULT_SCHEMA, LARGEST_BIGINT
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, is_transient, sqlstate
from seekpoint.records import State, storable, utc
from seekpoint.worker.replay.preconditions import again, closed

T = TypeVar("T")

TRIES = 5
_BACKOFF = Backoff(initial=0.2, ceiling=5.0)


def retry_locked(transaction: Callable[[], T], stopping: threading.Event | None = None) -> T:
    """Run one whole transaction; again where its error may pass (a deadlock, a lost connection).

    It must find out by itself what became of it the time before. A lock that was waited for in vain is not waited for
    again: the limit is the caller's. Nor is anything once ``stopping`` is set.
    """
    return retried(transaction, _may_pass, tries=TRIES, backoff=_BACKOFF, stopping=stopping)


def _may_pass(error: BaseException) -> bool:
    if sqlstate(error) == LOCK_NOT_AVAILABLE:
        error.add_note("a batch of this partition is being written, or another session has locked it: try again")
        return False
    return is_transient(error)


PAGE = 5_000  # dead letters that are asked for at once, without their values

Chosen = Where | Iterable[int] | int
"""A condition, ids, or one id."""


def chosen_dead_letters(
    dead_letters: DeadLetters, chosen: Chosen, limit: int | None = None, after: DeadLetter | None = None
) -> Iterator[DeadLetter]:
    """The dead letters that are meant, in the order of topic, partition and offset; their values are left out.

    Raises ConfigError for an id that the group does not have.
    """
    if isinstance(chosen, Where):
        yield from _pages(dead_letters, chosen, limit, after)
        return
    yield from dead_letters.chosen([chosen] if isinstance(chosen, int) else chosen)


def lean(dead_letter: DeadLetter) -> DeadLetter:
    """The dead letter without value and tracebacks: a hundred thousand of them fit in memory."""
    return replace(dead_letter, value=None, traceback=None, replay_traceback=None)


def _pages(
    dead_letters: DeadLetters, where: Where, limit: int | None, after: DeadLetter | None
) -> Iterator[DeadLetter]:
    left = limit
    while left is None or left > 0:
        most = PAGE if left is None else min(PAGE, left)
        page = dead_letters.list(where, limit=most, after=after, with_values=False)
        yield from page
        if len(page) < most:
            return
        after = page[-1]
        left = None if left is None else left - most


@dataclass(frozen=True, slots=True)
class Discarded:
    """What became of a dead letter that was to be discarded; ``refusal`` is None where it was."""

    dead_letter: DeadLetter
    refusal: str | None = None


class DeadLetterAdmin:
    """The dead letters of one group. Each change is a transaction of its own, durable, with actor and reason.

    ``engine`` is a SQLAlchemy ``Engine`` or URL on ``postgresql+psycopg``; ``actor`` who does it (by default the
    operating system's user). Making one does no I/O. A change waits for an open batch on the dead letter's partition,
    at most ``Limits.transaction_age`` seconds.
    """

    def __init__(
        self,
        engine: Engine | URL | str,
        group: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        actor: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.ledger = Ledger(engine, group, schema=schema, limits=limits)
        self._actor = actor
        self._dead_letters = DeadLetters(self.ledger)

    @property
    def actor(self) -> str:
        """Who does it. Asked only where something is changed."""
        return operator(self._actor)

    def list(
        self,
        where: Where = Where(),  # noqa: B008 -- immutable
        *,
        limit: int | None = None,
        after: DeadLetter | None = None,
    ) -> Iterator[DeadLetter]:
        """Dead letters in the order of topic, partition and offset, without their values (``get`` has them).

        ``after`` is the last one of the page before.
        """
        return chosen_dead_letters(self._dead_letters, where, limit, after)

    def by_cause(self, where: Where = Where()) -> Sequence[DeadLetterCause]:  # noqa: B008
        """How many dead letters there are of each cause, most first: by exception, and by line of the user's code."""
        return self._dead_letters.by_cause(where)

    def get(self, id: int) -> DeadLetter:  # noqa: A002 -- the column's name, which people type
        """One dead letter, whole. Raises ConfigError where the group has none of that id."""
        return self._dead_letters.get(id)

    def first_of_key(self, dead_letter: DeadLetter) -> DeadLetter | None:
        """The first open dead letter of its key, without its value; None for a null key, or where none is open."""
        with self.ledger.begin() as tx:
            first = self._dead_letters.first_open_of_key(tx.connection, dead_letter)
        return None if first is None else open_at(self._dead_letters, dead_letter, first)

    def export(self, where: Where = Where()) -> Iterator[dict[str, Any]]:  # noqa: B008
        """Dead letters as :func:`portable` dictionaries, whole, one in memory at a time."""
        for dead_letter in self.list(where):
            yield portable(self.get(dead_letter.id), self.ledger.group)

    def plan_discard(self, chosen: Chosen) -> tuple[Discarded, ...]:
        """What a discard of these would do, without doing it."""
        return tuple(
            Discarded(lean(one), None if one.is_open else closed(one).reason)
            for one in chosen_dead_letters(self._dead_letters, chosen)
        )

    def discard(
        self,
        chosen: Chosen,
        *,
        reason: str,
        progress: Callable[[Discarded], None] | None = None,
        as_of: datetime | None = None,
    ) -> tuple[Discarded, ...]:
        """Close open dead letters without applying their records; each stays, with actor and reason.

        What was blocked by a dead letter is then the first of its key, and can be replayed. One that is not open any
        more is refused, and with ``as_of`` one that was dead-lettered after that time of the database. Needs neither a
        pipeline nor a running group, and a pause does not hinder it.
        Raises ConfigError where no reason is given, and for an id that the group does not have.
        """
        if not reason.strip():
            raise ConfigError("a record is given up for a reason: give reason='...'")
        done: list[Discarded] = []
        closing = [lean(dead_letter) for dead_letter in chosen_dead_letters(self._dead_letters, chosen)]
        among: Sequence[DeadLetter] | None = closing  # of the request; None once it is in the history
        for dead_letter in closing:
            done.append(self._discard(dead_letter, storable(reason), as_of, among))
            if done[-1].refusal is None:
                among = None
            if progress is not None:
                progress(done[-1])
        return tuple(done)

    def _discard(
        self, dead_letter: DeadLetter, reason: str, as_of: datetime | None, among: Sequence[DeadLetter] | None
    ) -> Discarded:
        tries = count(1)

        def once() -> Discarded:
            is_first = next(tries) == 1
            with self.ledger.begin() as tx:
                now = self._dead_letters.lock(tx.connection, dead_letter.id)
                if now.is_open and as_of is not None and now.dead_lettered_at > as_of:
                    return Discarded(dead_letter, again(now).reason)
                if now.is_open:
                    self._dead_letters.close(tx.connection, now, State.DISCARDED, self.actor, reason, among=among)
                    return Discarded(dead_letter)
            # Perhaps it was COMMIT that had no answer: then this is our own doing.
            ours = (now.state, now.closed_by, now.closed_reason) == (State.DISCARDED, self.actor, reason)
            return Discarded(dead_letter, None if ours and not is_first else closed(now).reason)

        return retry_locked(once)


def open_at(dead_letters: DeadLetters, dead_letter: DeadLetter, offset: int) -> DeadLetter | None:
    """The open dead letter at another offset of its partition, in the same life of the topic; without its value."""
    there = Where(topic=dead_letter.topic, partition=dead_letter.partition, from_offset=offset, to_offset=offset + 1)
    found = dead_letters.list(there, with_values=False)
    return next((one for one in found if one.topic_id == dead_letter.topic_id), None)


def group_of(engine: Engine | URL | str, id: int, *, schema: str = DEFAULT_SCHEMA) -> str:  # noqa: A002
    """The group that a dead letter belongs to. Raises ConfigError where there is none of that id."""
    found: str | None = None
    if abs(id) <= LARGEST_BIGINT:
        with postgres_engine(engine).connect() as connection:
            found = SchemaConnection(connection, schema).execute(DEAD_LETTERS["group_of"], id=id).scalar()
    if found is None:
        raise ConfigError(f"the ledger in schema {schema!r} has no dead letter {id}: `list` shows those of a group")
    return str(found)


def portable(dead_letter: DeadLetter, group: str) -> dict[str, Any]:
    """Every field of the dead letter. Bytes are ``{"base64": …}`` with ``"text"`` beside it where they are UTF-8.

    Headers are pairs of name and value, in order, duplicates kept; names are bytes too: not all of them are UTF-8.
    Times are ISO 8601.
    """
    return {each.name: portable_value(getattr(dead_letter, each.name)) for each in fields(dead_letter)} | {
        "group": group,
        "timestamp": portable_value(utc(dead_letter.timestamp_ms)),
        "headers": [[portable_value(name_bytes(name)), portable_value(value)] for name, value in dead_letter.headers],
    }


def portable_value(value: Any) -> Any:
    """A field's value as ``portable`` has it."""
    match value:
        case bytes():
            encoded = {"base64": b64encode(value).decode("ascii")}
            try:
                return encoded | {"text": value.decode()}
            except UnicodeDecodeError:
                return encoded
        case datetime():
            return value.isoformat()
        case Enum():
            return value.value
        case UUID():
            return str(value)
    return value
