"""Inserts, lists, locks and closes a group's dead letters: records that the position moved past unapplied (I1, I4).

Other modules change dead letters, too: a reset supersedes those at or past its target, a job's cut-over copies those
that the run staged, a purge or a forgotten group deletes them, and a replacement of a group exchanges the two groups'
dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Row

from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.attempts import LONGEST_WAIT, lock_claimed
from seekpoint.ledger.claim import Claim
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import DEAD_LETTERS, GROUPS, asking_for
from seekpoint.ledger.tables import LARGEST_BIGINT, LARGEST_INTEGER
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State, storable

OPEN = (State.DEAD_LETTERED, State.BLOCKED)  # an operator has to decide


class DeadLetterUnknown(ConfigError):  # noqa: N818 -- named after what happened, like the rest of the tree
    """The group has no dead letter with this id, or no longer has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that the position moved past without applying it, with the reason and its state.

    Times are the database's.

    ``value`` is None if the record has none or was skipped, or if values were not loaded; ``size`` is the length of a
    stored value in bytes, loaded or not. ``error`` and ``traceback`` say why it was dead-lettered, ``replay_error`` and
    ``replay_traceback`` why its last replay failed. ``error_line`` is the innermost line of users' code in
    ``traceback``. ``version`` is the handler version, ``dead_lettered_by`` the process. After an edit, a replay applies
    ``edited_value`` instead of ``value``, the log's value. A waiting record is due at ``retry_at``; ``crashes`` counts
    its retries that have begun without a known result.
    """

    id: int
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    size: int | None
    headers: tuple[tuple[str, bytes | None], ...]
    state: State
    cause: Cause
    error: str
    traceback: str | None
    sqlstate: str | None
    attempts: int
    version: int
    dead_lettered_at: datetime
    dead_lettered_by: UUID | None
    replays: int
    replayed_at: datetime | None
    replay_error: str | None
    replay_traceback: str | None
    closed_at: datetime | None
    closed_by: str | None
    closed_reason: str | None
    error_line: str | None = None
    edited_value: bytes | None = None
    edited_at: datetime | None = None
    edited_by: str | None = None
    edited_reason: str | None = None
    retry_at: datetime | None = None
    crashes: int = 0

    @property
    def topic_partition(self) -> Partition:
        """The partition of its record."""
        return Partition(self.topic, self.partition)

    @property
    def id_and_place(self) -> str:
        """Its id, and its record's partition and offset, for messages."""
        return f"{self.id} ({self.topic_partition} offset {self.offset})"

    @property
    def is_open(self) -> bool:
        """Whether its record was not applied, and may still be."""
        return self.state in OPEN or self.state is State.WAITING

    @property
    def failure(self) -> Failure:
        """Why it was dead-lettered."""
        return Failure(self.cause, self.error, self.traceback, self.sqlstate, self.attempts, self.error_line)

    @property
    def is_edited(self) -> bool:
        """Whether an operator has replaced its record's value."""
        return self.edited_at is not None

    @property
    def record(self) -> RawRecord:
        """The record as a replay applies it: as it was read, or with the value of an edit.

        Raises ConfigError if the value is not loaded or not stored.
        """
        value = self.edited_value if self.is_edited else self.value
        if value is None and (self.is_edited or self.size is not None or self.state is State.SKIPPED):
            why = "its value was not kept" if self.size is None else "its value was not loaded: get(id) loads it"
            raise ConfigError(f"dead letter {self.id_and_place} has no complete record: {why}")
        return RawRecord(
            self.topic,
            self.partition,
            self.offset,
            self.timestamp_ms,
            self.key,
            value,
            self.headers,
            self.leader_epoch,
        )


def dead_letter_of(row: Row[Any]) -> DeadLetter:
    """A dead letter from its row."""
    values = row._asdict()
    names, header_values = values.pop("header_names"), values.pop("header_values")
    values["offset"] = values.pop("record_offset")
    values["state"], values["cause"] = State(row.state), Cause(row.cause)
    return DeadLetter(headers=tuple(zip(map(_text, names), header_values, strict=True)), **values)


def rank(dead_letter: DeadLetter) -> tuple[str, int, int, int]:
    """The dead letter's sort key in lists."""
    return dead_letter.topic, dead_letter.partition, dead_letter.offset, dead_letter.id


def insert_parameters(new: NewDeadLetter, topic_ids: Mapping[str, UUID]) -> dict[str, Any]:
    """The insert's parameters for one record."""
    record, failure = new.record, new.failure
    return {
        "topic": record.topic,
        "topic_id": topic_ids[record.topic],
        "partition": record.partition,
        "record_offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
        "value": None if new.state is State.SKIPPED else record.value,
        "header_names": [name_bytes(name) for name, _ in record.headers],
        "header_values": [value for _, value in record.headers],
        "state": new.state.value,
        "cause": failure.cause.value,
        **explained(failure),
        "sqlstate": failure.sqlstate,
        "attempts": failure.attempts,
        "error_line": failure.where,
        "wait": None if new.wait is None else min(new.wait, LONGEST_WAIT),
    }


def explained(failure: Failure) -> dict[str, str | None]:
    """Error and traceback as Postgres can store them: dead-lettering itself must not fail."""
    trace = failure.traceback
    return {"error": storable(failure.error), "traceback": None if trace is None else storable(trace)}


def name_bytes(name: str) -> bytes:
    """The bytes of a header's name in the log: bytes that are not UTF-8 were escaped when it was read."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that escapes no byte: the record was not read from Kafka
        return name.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _are(values: Iterable[object], kind: type) -> bool:
    """Check the values' type at runtime: type checkers are optional."""
    return all(isinstance(value, kind) for value in values)


_AFTER = ("after_topic", "after_partition", "after_record_offset", "after_id")  # parameters, see rank()
# The states to which an operator may close a dead letter, each with the action's name in admin_action.
_ACTIONS = {State.REPLAYED: "replay", State.DISCARDED: "discard"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Conditions on dead letters, all of which must hold; by default the dead letters that need an operator's decision.

    ``to_offset`` is exclusive; ``error`` a part of the error's text, case-sensitive; ``exception`` and ``error_line``
    must equal those of a :class:`DeadLetterCause`; ``key`` is the record's whole key; ``since`` the earliest time of
    dead-lettering (aware). Raises ConfigError for a time without a zone, for texts as cause or states, and for offsets
    or a partition without their topic.
    """

    topic: str | None = None
    partition: int | None = None
    states: tuple[State, ...] = OPEN
    cause: Cause | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    error: str | None = None
    exception: str | None = None
    error_line: str | None = None
    key: bytes | None = None
    since: datetime | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.since.tzinfo is None:
            raise ConfigError(f"since={self.since!r}: give an aware time, e.g. datetime(..., tzinfo=UTC)")
        if self.cause is not None and not _are([self.cause], Cause):
            raise ConfigError(f"cause={self.cause!r}: give one of {', '.join(map(str, Cause))}, e.g. Cause.DECODE")
        if not _are(self.states, State):
            names = ", ".join(map(str, State))
            raise ConfigError(f"states={self.states!r}: give a tuple of some of {names}, e.g. (State.WAITING,)")
        narrow = (self.partition, self.from_offset, self.to_offset)
        if self.topic is None and any(bound is not None for bound in narrow):
            raise ConfigError("a partition or an offset needs its topic: name the topic, too")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCause:
    """Dead letters with the same cause, exception type and line of the user's own code.

    ``exception`` is None if none was raised (a blocked record), ``error_line`` if the traceback has no line of the
    user's code. ``first_id`` is the id of one of the ``count`` dead letters, ``error`` the text of one of them.
    """

    cause: Cause
    exception: str | None
    error_line: str | None
    count: int
    topics: tuple[str, ...]
    first_at: datetime
    last_at: datetime
    first_id: int
    error: str


class FirstOpen(NamedTuple):
    """The first open dead letter of a key: its offset and its state."""

    offset: int
    state: State


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting record that is due in ``wait`` seconds."""

    id: int
    partition: Partition
    wait: float


class DeadLetters:
    """A group's dead letters in the ledger: its records that the position moved past without applying them.

    Creating it does no I/O. Methods with a ``tx`` run in the caller's transaction, the others open one.
    """

    def __init__(self, ledger: GroupLedger, lock_wait: float | None = None) -> None:
        self.ledger = ledger
        self._lock_wait = ledger.limits.transaction_age if lock_wait is None else lock_wait

    # -- one worker's transaction ---------------------------------------------------------------------

    def insert(
        self, tx: Connection, dead_letters: Sequence[NewDeadLetter], topic_ids: Mapping[str, UUID], version: int
    ) -> None:
        """Store records that are dead-lettered, or skipped (without their values), in the batch's transaction (I1, I4).

        ``version`` is the handler's. If a record already has a dead letter, in any state, that one is opened again.
        """
        if not dead_letters:
            return
        attributes = {"version": version, "dead_lettered_by": self.ledger.owner}
        ordered = sorted(dead_letters, key=lambda new: (new.record.topic, new.record.partition, new.record.offset))
        self.ledger.group_connection(tx).execute(
            DEAD_LETTERS["insert"], [insert_parameters(new, topic_ids) | attributes for new in ordered]
        )

    def open_keys(self, tx: Connection, partitions: Iterable[Partition]) -> dict[tuple[Partition, bytes], FirstOpen]:
        """The keys with open dead letters in these partitions, each with the first one; call it after hold.

        Omits null keys, and dead letters of a deleted topic of the same name: they block nothing.
        """
        parameters = asking_for(sorted(partitions))
        rows = self.ledger.group_connection(tx).execute(DEAD_LETTERS["open_keys"], **parameters)
        return {
            (Partition(row.topic, row.partition), bytes(row.key)): FirstOpen(row.first, State(row.state))
            for row in rows
        }

    def count_waiting(self, tx: Connection, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The number of waiting records of each of these partitions."""
        rows = self.ledger.group_connection(tx).execute(DEAD_LETTERS["count_waiting"], **asking_for(sorted(partitions)))
        return {Partition(row.topic, row.partition): row.n for row in rows}

    # -- retries of waiting records -------------------------------------------------------------------

    def waiting(self, partitions: Iterable[Partition], most: int, *, keeps_order: bool) -> Sequence[Waiting]:
        """The waiting records of these partitions that are due first, at most ``most`` of each.

        With ``keeps_order`` only the first record of each key.
        """
        with self.ledger.begin() as tx:
            rows = tx.execute(
                DEAD_LETTERS["waiting"], most=most, keeps_order=keeps_order, **asking_for(sorted(partitions))
            )
            return [Waiting(row.id, Partition(row.topic, row.partition), row.wait) for row in rows]

    def lock_waiting(self, tx: Connection, id: int, claim: Claim) -> DeadLetter | None:  # noqa: A002
        """Lock a waiting record under its partition's claim, as :meth:`lock` does; None if it no longer waits.

        Raises Fenced if the claim is not current (I2).
        """
        try:
            dead_letter = self.lock(tx, id)
        except DeadLetterUnknown:  # deleted with its group, or moved to another group by a replacement
            return None
        lock_claimed(self.ledger.group_connection(tx), [claim])
        return dead_letter if dead_letter.state is State.WAITING else None

    def begin_retry(self, tx: Connection, dead_letter: DeadLetter, *, is_again: bool) -> None:
        """Record that an attempt at a locked waiting record begins. ``is_again``: this process has begun it before."""
        scope = self.ledger.group_connection(tx)
        scope.execute(DEAD_LETTERS["begin_retry"], id=dead_letter.id, is_again=is_again)

    def end_retry(
        self, tx: Connection, dead_letter: DeadLetter, failure: Failure, wait: float | None, version: int
    ) -> None:
        """Store that a locked waiting record failed again: it waits longer or, without ``wait``, is dead-lettered.

        A dead-lettered record blocks the records of its key that wait for it.
        """
        scope = self.ledger.group_connection(tx)
        scope.execute(
            DEAD_LETTERS["end_retry"],
            id=dead_letter.id,
            state=(State.DEAD_LETTERED if wait is None else State.WAITING).value,
            cause=failure.cause.value,
            **explained(failure),
            sqlstate=failure.sqlstate,
            error_line=failure.where,
            attempts=failure.attempts,
            version=version,
            owner=self.ledger.owner,
            wait=None if wait is None else min(wait, LONGEST_WAIT),
        )

    def postpone_retry(self, tx: Connection, dead_letter: DeadLetter, failure: Failure, wait: float) -> None:
        """Let a locked waiting record wait longer after an error that does not count as an attempt."""
        scope = self.ledger.group_connection(tx)
        wait = min(wait, LONGEST_WAIT)
        scope.execute(DEAD_LETTERS["postpone_retry"], id=dead_letter.id, wait=wait, **explained(failure))

    def block_waiting(self, tx: Connection, dead_letter: DeadLetter) -> None:
        """Block the waiting records of its key from this one on: an operator has to decide about an earlier one."""
        if dead_letter.key is None:
            return
        self.ledger.group_connection(tx).execute(
            DEAD_LETTERS["block_waiting"],
            topic_id=dead_letter.topic_id,
            partition=dead_letter.partition,
            key=dead_letter.key,
            from_offset=dead_letter.offset,
        )

    # -- for operators -----------------------------------------------------------------------------------

    def count_open(self) -> Mapping[Partition, int]:
        """The number of open dead letters by partition; omits partitions without any."""
        with self.ledger.begin() as tx:
            return {Partition(row.topic, row.partition): row.n for row in tx.execute(DEAD_LETTERS["count_open"])}

    def get(self, id: int) -> DeadLetter:  # noqa: A002 -- the column's name, which people type
        """One dead letter with its value. Raises ConfigError if the group has no dead letter with this id."""
        self._refuse_no_id(id)
        with self.ledger.begin() as tx:
            row = tx.execute(DEAD_LETTERS["get"], id=id).one_or_none()
        if row is None:
            raise self._unknown(id)
        return dead_letter_of(row)

    def list(
        self, where: Where, *, limit: int = 100, after: DeadLetter | None = None, with_values: bool = True
    ) -> Sequence[DeadLetter]:
        """Dead letters that meet every condition, in the order of topic, partition and offset; ``limit`` at most.

        ``after`` is the last dead letter of the previous page. Without ``with_values`` the values stay in the database,
        and ``record`` raises. Raises ConfigError for a condition that Postgres cannot compare: a NUL in a text, a
        number beyond its column's type.
        """
        conditions = _conditions(where)
        previous = dict.fromkeys(_AFTER) if after is None else dict(zip(_AFTER, rank(after), strict=True))
        with self.ledger.begin() as tx:
            rows = tx.execute(DEAD_LETTERS["list"], most=limit, with_values=with_values, **conditions, **previous)
            return [dead_letter_of(row) for row in rows]

    def chosen(self, ids: Iterable[int]) -> Sequence[DeadLetter]:
        """These dead letters, sorted, without values. Raises ConfigError for an id that the group does not have."""
        distinct_ids = set(ids)
        for dead_letter_id in distinct_ids:
            self._refuse_no_id(dead_letter_id)
        with self.ledger.begin() as tx:
            dead_letters = [dead_letter_of(row) for row in tx.execute(DEAD_LETTERS["chosen"], ids=sorted(distinct_ids))]
        if unknown := distinct_ids - {dead_letter.id for dead_letter in dead_letters}:
            raise self._unknown(min(unknown))
        return dead_letters

    def by_cause(self, where: Where) -> Sequence[DeadLetterCause]:
        """Count the dead letters that meet every condition by cause, most first.

        Raises ConfigError for a condition that Postgres cannot compare, as :meth:`list` does.
        """
        conditions = _conditions(where)
        with self.ledger.begin() as tx:
            rows = [row._asdict() for row in tx.execute(DEAD_LETTERS["by_cause"], **conditions)]
        return [DeadLetterCause(**row | {"cause": Cause(row["cause"]), "topics": tuple(row["topics"])}) for row in rows]

    # -- replay and discard  ----------------------------------------------------------------------------

    def lock(self, tx: Connection, id: int) -> DeadLetter:  # noqa: A002
        """Lock a dead letter and return it with its value; the first statement of the transaction.

        Locks in the ledger's order: the group's row FOR SHARE; the partition's row, so that no batch commits and no
        reset runs meanwhile; the dead letter. Waits for the open batch, at most ``Limits.transaction_age`` seconds.
        Makes the transaction durable. The caller checks whether the dead letter is still open. Raises ConfigError if
        the group has no dead letter with this id.
        """
        self._refuse_no_id(id)
        self.ledger.configure(tx, self._lock_wait)
        scope = self.ledger.group_connection(tx)
        scope.execute(GROUPS["share"]).one_or_none()
        where = scope.execute(DEAD_LETTERS["find"], id=id).one_or_none()
        if where is not None:
            scope.execute(GROUPS["lock_position"], topic=where.topic, partition=where.partition).one_or_none()
            if (row := scope.execute(DEAD_LETTERS["lock"], id=id).one_or_none()) is not None:
                return dead_letter_of(row)
        raise self._unknown(id)

    def first_open_of_key(self, tx: Connection, dead_letter: DeadLetter) -> int | None:
        """The offset of the first open dead letter of its key and partition; None without a key or an open dead letter.

        With ``keep_key_order`` only that dead letter may be replayed.
        """
        if dead_letter.key is None:
            return None
        offset: int | None = (
            self.ledger.group_connection(tx)
            .execute(
                DEAD_LETTERS["first_of_key"],
                topic_id=dead_letter.topic_id,
                partition=dead_letter.partition,
                key=dead_letter.key,
            )
            .scalar_one_or_none()
        )
        return offset

    def close(
        self,
        tx: Connection,
        dead_letter: DeadLetter,
        state: State,
        actor: str,
        reason: str,
        *,
        among: Sequence[DeadLetter] | None = (),
    ) -> None:
        """Close an open dead letter as replayed or discarded, and write who did it and why to ``admin_action``.

        ``among`` are all dead letters of the request, which gets one row there (by default only this one); None if that
        row exists. Raises Fenced if the dead letter is no longer open: then nothing may be committed.
        """
        if state not in _ACTIONS:
            raise ConfigError(f"a dead letter is closed as {', '.join(_ACTIONS)}, not as {state}")
        actor, reason = storable(actor), storable(reason)
        scope = self.ledger.group_connection(tx)
        closed = scope.execute(
            DEAD_LETTERS["close"],
            id=dead_letter.id,
            state=state.value,
            actor=actor,
            reason=reason,
            replayed=state is State.REPLAYED,
        )
        if closed.rowcount != 1:
            raise _closed(dead_letter)
        if among is not None:
            _record(scope, _ACTIONS[state], among or (dead_letter,), actor, reason)

    def edit(self, tx: Connection, dead_letter: DeadLetter, value: bytes | None, actor: str, reason: str) -> None:
        """Replace the value of an open dead letter's record, or with None undo the edit; adds a row to
        ``admin_action``.

        Raises Fenced if the dead letter is no longer open: then nothing may be committed.
        """
        actor, reason = storable(actor), storable(reason)
        scope = self.ledger.group_connection(tx)
        edited = scope.execute(DEAD_LETTERS["edit"], id=dead_letter.id, value=value, actor=actor, reason=reason)
        if edited.rowcount != 1:
            raise _closed(dead_letter)
        _record(scope, "edit" if value is not None else "undo edit", (dead_letter,), actor, reason)

    def failed_again(self, tx: Connection, dead_letter: DeadLetter, failure: Failure) -> None:
        """Store the error of a failed replay; the dead letter stays open, and keeps its first error.

        Call it after the replay's rows were rolled back. Raises Fenced if the dead letter is no longer open.
        """
        scope = self.ledger.group_connection(tx)
        updated = scope.execute(DEAD_LETTERS["failed_again"], id=dead_letter.id, **explained(failure))
        if updated.rowcount != 1:
            raise _closed(dead_letter)

    def _refuse_no_id(self, id: int) -> None:  # noqa: A002
        if not _are([id], int) or abs(id) > LARGEST_BIGINT:
            raise self._unknown(id)

    def _unknown(self, id: int) -> DeadLetterUnknown:  # noqa: A002
        return DeadLetterUnknown(f"group {self.ledger.group!r} has no dead letter {id}: `list` shows its dead letters")


def _conditions(where: Where) -> dict[str, Any]:
    """The conditions as parameters. Raises ConfigError for one that Postgres cannot compare."""
    _refuse_texts(topic=where.topic, error=where.error, exception=where.exception, error_line=where.error_line)
    _refuse_numbers(LARGEST_INTEGER, partition=where.partition)
    _refuse_numbers(LARGEST_BIGINT, from_offset=where.from_offset, to_offset=where.to_offset)
    return {
        **asdict(where),
        "states": [state.value for state in where.states],
        "cause": None if where.cause is None else where.cause.value,
    }


def _refuse_texts(**conditions: str | None) -> None:
    for name, text in conditions.items():
        if text is not None and storable(text) != text:
            raise ConfigError(
                f"{name}={text!r}: no dead letter has this, because Postgres stores no NUL and no lone surrogate; "
                f"errors have them escaped: {storable(text)!r}"
            )


def _refuse_numbers(largest: int, **conditions: int | None) -> None:
    for name, number in conditions.items():
        if number is not None and abs(number) > largest:
            raise ConfigError(
                f"{name}={number}: no dead letter has this number, the largest is {largest}; omit {name} to select all"
            )


def _record(scope: GroupConnection, action: str, closing: Sequence[DeadLetter], actor: str, reason: str) -> None:
    """Record a request in one row, with partition and offsets if all its dead letters are of one partition."""
    subject = f"dead letter {closing[0].id}" if len(closing) == 1 else f"{len(closing):,} dead letters"
    span: dict[str, Any] = {}
    if len({dead_letter.topic_partition for dead_letter in closing}) == 1:
        offsets = [dead_letter.offset for dead_letter in closing]
        span = {"partition": closing[0].topic_partition, "from_offset": min(offsets), "to_offset": max(offsets) + 1}
    record_action(scope, action, actor=actor, reason=f"{subject}: {reason}", **span)


def _closed(dead_letter: DeadLetter) -> Fenced:
    return Fenced(f"dead letter {dead_letter.id_and_place} is no longer open: fetch the dead letter again")
