"""A group's dead letters, for operators: list, get, edit, discard, export as JSON. Applies no records."""

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
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import operator
from seekpoint.ledger.dead_letters import DeadLetter, DeadLetterCause, DeadLetters, Where, name_bytes
from seekpoint.ledger.schema_connection import SchemaConnection
from seekpoint.ledger.sql import DEAD_LETTERS
from seekpoint.ledger.tables import DEFAULT_SCHEMA, LARGEST_BIGINT
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, is_transient, sqlstate
from seekpoint.records import State, storable, utc
from seekpoint.worker.replay.preconditions import again, closed, not_edited

T = TypeVar("T")

TRIES = 5
_BACKOFF = Backoff(initial=0.2, ceiling=5.0)


def retry_transient(transaction: Callable[[], T], stopping: threading.Event | None = None) -> T:
    """Run one whole transaction, and retry it after a transient error (a deadlock, a lost connection).

    The transaction must find out whether an earlier attempt took effect. It is not retried after a lock timeout, which
    the caller has set, nor once ``stopping`` is set.
    """
    return retried(transaction, _may_pass, tries=TRIES, backoff=_BACKOFF, stopping=stopping)


def _may_pass(error: BaseException) -> bool:
    if sqlstate(error) == LOCK_NOT_AVAILABLE:
        error.add_note("a worker is writing a batch of this partition, or another session has locked it: try again")
        return False
    return is_transient(error)


PAGE = 5_000  # dead letters that are fetched at once, without their values

Chosen = Where | Iterable[int] | int
"""A condition, ids, or one id."""


def chosen_dead_letters(
    dead_letters: DeadLetters, chosen: Chosen, limit: int | None = None, after: DeadLetter | None = None
) -> Iterator[DeadLetter]:
    """The chosen dead letters, in the order of topic, partition and offset; without their values.

    Raises ConfigError for an id that the group does not have.
    """
    if isinstance(chosen, Where):
        yield from _pages(dead_letters, chosen, limit, after)
        return
    yield from dead_letters.chosen([chosen] if isinstance(chosen, int) else chosen)


def without_payload(dead_letter: DeadLetter) -> DeadLetter:
    """The dead letter without value and tracebacks: a hundred thousand such fit in memory."""
    return replace(dead_letter, value=None, edited_value=None, traceback=None, replay_traceback=None)


def _pages(
    dead_letters: DeadLetters, where: Where, limit: int | None, after: DeadLetter | None
) -> Iterator[DeadLetter]:
    remaining = limit
    while remaining is None or remaining > 0:
        most = PAGE if remaining is None else min(PAGE, remaining)
        page = dead_letters.list(where, limit=most, after=after, with_values=False)
        yield from page
        if len(page) < most:
            return
        after = page[-1]
        remaining = None if remaining is None else remaining - most


@dataclass(frozen=True, slots=True)
class Discarded:
    """The outcome of a discard of one dead letter; ``refusal`` is None if it was discarded."""

    dead_letter: DeadLetter
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Edited:
    """The outcome of an edit or its undo, with the dead letter as before; ``refusal`` is None on success.

    ``value`` is the value that a replay now applies.
    """

    dead_letter: DeadLetter
    value: bytes | None
    refusal: str | None = None


class GroupDeadLetters:
    """The dead letters of one group, from :meth:`seekpoint.admin.Admin.dead_letters`.

    Each change is one durable transaction, with actor and reason.

    ``engine`` is a SQLAlchemy ``Engine`` or URL on ``postgresql+psycopg``; ``actor`` is who makes changes (by default
    the operating system's user). The constructor does no I/O. A change waits at most ``Limits.transaction_age`` seconds
    for an open batch on the dead letter's partition.
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
        self.ledger = GroupLedger(engine, group, schema=schema, limits=limits)
        self._actor = actor
        self._dead_letters = DeadLetters(self.ledger)

    @property
    def actor(self) -> str:
        """Who makes the changes; looked up only when one is made."""
        return operator(self._actor)

    def list(
        self,
        where: Where = Where(),  # noqa: B008 -- immutable
        *,
        limit: int | None = None,
        after: DeadLetter | None = None,
    ) -> Iterator[DeadLetter]:
        """Dead letters in the order of topic, partition and offset, without their values (``get`` has them).

        ``after`` is the last dead letter of the previous page.
        """
        return chosen_dead_letters(self._dead_letters, where, limit, after)

    def by_cause(self, where: Where = Where()) -> Sequence[DeadLetterCause]:  # noqa: B008
        """The number of dead letters by exception, and by line of the user's code, highest first."""
        return self._dead_letters.by_cause(where)

    def get(self, id: int) -> DeadLetter:  # noqa: A002 -- the column's name, which people type
        """One complete dead letter. Raises ConfigError if the group has no dead letter with that id."""
        return self._dead_letters.get(id)

    def first_of_key(self, dead_letter: DeadLetter) -> DeadLetter | None:
        """The first open dead letter of the same key, without its value; None for a null key, or if none is open."""
        with self.ledger.begin() as tx:
            first = self._dead_letters.first_open_of_key(tx.connection, dead_letter)
        return None if first is None else open_at(self._dead_letters, dead_letter, first)

    def export(self, where: Where = Where()) -> Iterator[dict[str, Any]]:  # noqa: B008
        """Complete dead letters as ``portable`` dictionaries, one in memory at a time."""
        for dead_letter in self.list(where):
            yield portable(self.get(dead_letter.id), self.ledger.group)

    def plan_discard(self, chosen: Chosen) -> tuple[Discarded, ...]:
        """The outcome that :meth:`discard` would have; changes nothing."""
        return tuple(
            Discarded(without_payload(dead_letter), None if dead_letter.is_open else closed(dead_letter).reason)
            for dead_letter in chosen_dead_letters(self._dead_letters, chosen)
        )

    def discard(
        self,
        chosen: Chosen,
        *,
        reason: str,
        progress: Callable[[Discarded], None] | None = None,
        as_of: datetime | None = None,
    ) -> tuple[Discarded, ...]:
        """Close open dead letters without applying their records; the rows stay, with actor and reason.

        The next record that each one blocked is then the first of its key, and can be replayed. Refuses dead letters
        that are no longer open and, with ``as_of``, those dead-lettered after that time, by the database's clock. Needs
        neither a pipeline nor a running group, and works during a pause. Raises ConfigError without a reason, and for
        an id that the group does not have.
        """
        if not reason.strip():
            raise ConfigError("a discard needs a reason: pass reason='...'")
        done: list[Discarded] = []
        closing = [without_payload(dead_letter) for dead_letter in chosen_dead_letters(self._dead_letters, chosen)]
        # The request's dead letters that will not be refused; None once the history has the request.
        among: Sequence[DeadLetter] | None = [
            dead_letter
            for dead_letter in closing
            if dead_letter.is_open and (as_of is None or dead_letter.dead_lettered_at <= as_of)
        ]
        for dead_letter in closing:
            done.append(self._discard(dead_letter, storable(reason), as_of, among))
            if done[-1].refusal is None:
                among = None
            if progress is not None:
                progress(done[-1])
        return tuple(done)

    def plan_edit(self, id: int, value: bytes | None) -> Edited:  # noqa: A002
        """The outcome that :meth:`edit` would have, or :meth:`undo_edit` if ``value`` is None; changes nothing."""
        return _edited(self._dead_letters.get(id), value)

    def edit(self, id: int, value: bytes, *, reason: str) -> Edited:  # noqa: A002
        """Give an open dead letter's record another value, which its replay applies; the log's value is kept.

        A later edit replaces the value. Reloads, verifications and batches after the replay also apply the edited
        value. A dead letter that is not open is refused. Raises ConfigError without a reason, or if the group has no
        dead letter with that id.
        """
        if not isinstance(value, bytes):
            raise ConfigError(f"edit() takes bytes, got {value!r}: encode the value, or undo an edit by undo_edit()")
        return self._edit(id, value, reason)

    def undo_edit(self, id: int, *, reason: str) -> Edited:  # noqa: A002
        """Undo an edit: a replay then applies the log's value. Refuses a dead letter that is not edited or open."""
        return self._edit(id, None, reason)

    def _edit(self, id: int, value: bytes | None, reason: str) -> Edited:  # noqa: A002
        if not reason.strip():
            raise ConfigError("an edit needs a reason: pass reason='...'")
        tries = count(1)

        def once() -> Edited:
            is_first = next(tries) == 1
            with self.ledger.begin() as tx:
                now = self._dead_letters.lock(tx.connection, id)
                edited = _edited(now, value)
                # After a COMMIT without an answer, our own edit may have been stored.
                is_done = now.edited_value == value and (value is None or now.edited_by == self.actor)
                if edited.refusal is None and (is_first or not is_done):
                    self._dead_letters.edit(tx.connection, now, value, self.actor, reason)
            return replace(edited, refusal=None) if is_done and not is_first else edited

        return retry_transient(once)

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
            # After a COMMIT without an answer, our own earlier attempt may have closed it.
            is_ours = (now.state, now.closed_by, now.closed_reason) == (State.DISCARDED, self.actor, reason)
            return Discarded(dead_letter, None if is_ours and not is_first else closed(now).reason)

        return retry_transient(once)


def _edited(dead_letter: DeadLetter, value: bytes | None) -> Edited:
    refusal = None if dead_letter.is_open else closed(dead_letter).reason
    if refusal is None and value is None and not dead_letter.is_edited:
        refusal = not_edited(dead_letter).reason
    return Edited(without_payload(dead_letter), dead_letter.value if value is None else value, refusal)


def open_at(dead_letters: DeadLetters, dead_letter: DeadLetter, offset: int) -> DeadLetter | None:
    """The open dead letter at another offset of its partition, with the same topic id; without its value."""
    where = Where(topic=dead_letter.topic, partition=dead_letter.partition, from_offset=offset, to_offset=offset + 1)
    open_dead_letters = dead_letters.list(where, with_values=False)
    return next((other for other in open_dead_letters if other.topic_id == dead_letter.topic_id), None)


def group_of(engine: Engine | URL | str, id: int, *, schema: str = DEFAULT_SCHEMA) -> str:  # noqa: A002
    """The group of a dead letter. Raises ConfigError if there is no dead letter with that id."""
    group: str | None = None
    if abs(id) <= LARGEST_BIGINT:
        with postgres_engine(engine).connect() as connection:
            group = SchemaConnection(connection, schema).execute(DEAD_LETTERS["group_of"], id=id).scalar()
    if group is None:
        raise ConfigError(
            f"the ledger in schema {schema!r} has no dead letter {id}: `seekpoint dead-letters list` shows a group's"
        )
    return str(group)


def portable(dead_letter: DeadLetter, group: str) -> dict[str, Any]:
    """Every field of the dead letter, for JSON. Bytes are ``{"base64": …}``, with ``"text"`` if they are UTF-8.

    Headers are pairs of name and value, in order, with duplicates; names are bytes, too, because some are not UTF-8.
    Times are ISO 8601.
    """
    return {field.name: portable_value(getattr(dead_letter, field.name)) for field in fields(dead_letter)} | {
        "group": group,
        "timestamp": portable_value(utc(dead_letter.timestamp_ms)),
        "headers": [[portable_value(name_bytes(name)), portable_value(value)] for name, value in dead_letter.headers],
    }


def portable_value(value: Any) -> Any:
    """Convert a field's value for ``portable``."""
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
