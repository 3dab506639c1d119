"""A group's dead letters: insert, list, lock, close; records that were passed and not applied (I1, I4).

Only this module writes ``dead_letter``, except that a reset supersedes those at or past its position, and that a job's
cut-over copies those that it has staged. A wait for a
record (``ledger.wait``) and the look-up of a dead letter's group read it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import Ledger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import DEAD_LETTERS, GROUPS, asking_for
from seekpoint.ledger.tables import LARGEST_BIGINT, LARGEST_INTEGER
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State, storable

OPEN = (State.DEAD_LETTERED, State.BLOCKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that was passed and not applied, with the reason and its state. Times are the database's.

    ``value`` is None also where the record was skipped, or where it was not asked for; then ``size`` is still its
    length in bytes, if it was stored. ``error`` and ``traceback`` say why it was dead-lettered, ``error_line`` the
    innermost line of the user's own code in it, ``replay_error`` and ``replay_traceback`` why its last replay failed.
    ``version`` is the version of the handler, ``dead_lettered_by`` its process.
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

    @property
    def at(self) -> Partition:
        """The partition that it comes from."""
        return Partition(self.topic, self.partition)

    @property
    def is_open(self) -> bool:
        """Whether an operator has to decide."""
        return self.state in OPEN

    @property
    def failure(self) -> Failure:
        """Why it was dead-lettered."""
        return Failure(self.cause, self.error, self.traceback, self.sqlstate, self.attempts, self.error_line)

    @property
    def record(self) -> RawRecord:
        """The record as it was read. Raises ConfigError where its value is not loaded or not stored."""
        if self.value is None and (self.size is not None or self.state is State.SKIPPED):
            why = "its value was not kept" if self.size is None else "its value was not asked for: get(id) has it"
            raise ConfigError(f"dead letter {self.id} ({self.at} offset {self.offset}) has no whole record: {why}")
        return RawRecord(
            self.topic,
            self.partition,
            self.offset,
            self.timestamp_ms,
            self.key,
            self.value,
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
    """The place in the order of lists."""
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
    }


def explained(failure: Failure) -> dict[str, str | None]:
    """Error and traceback as Postgres can store them: dead-lettering itself must not fail."""
    trace = failure.traceback
    return {"error": storable(failure.error), "traceback": None if trace is None else storable(trace)}


def name_bytes(name: str) -> bytes:
    """A header's name as its bytes in the log: bytes that are not UTF-8 were escaped when it was read."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that escapes no byte: the record was not read from Kafka
        return name.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


_PLACE = ("after_topic", "after_partition", "after_record_offset", "after_id")  # parameters, in the order of lists
# What people may do to an open dead letter, and what admin_action calls it.
_ACTIONS = {State.REPLAYED: "replay", State.DISCARDED: "discard"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Dead letters that meet every condition given; by default all that are open.

    ``to_offset`` is the first one not meant; ``error`` a part of the error's text, in its own case; ``exception`` the
    exception's type and ``error_line`` the line of the user's own code, both whole, as :class:`DeadLetterCause` has
    them; ``key`` the record's whole key; ``since`` the earliest time at which it became one (aware). Raises ConfigError
    for a time without a zone, and for offsets or a partition without their topic.
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
        narrow = (self.partition, self.from_offset, self.to_offset)
        if self.topic is None and any(one is not None for one in narrow):
            raise ConfigError("a partition or an offset means nothing without its topic: name the topic, too")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCause:
    """Dead letters that failed in one way: the exception's type, and the line of the user's own code it came from.

    ``exception`` is None where no exception was raised (a blocked record), ``error_line`` where the traceback has no
    line of the user's. ``first_id`` is the id of one of the ``count`` dead letters, ``error`` the text of one of them.
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


class DeadLetters:
    """The records of a group that were passed and not applied, in the ledger's schema.

    Making one does no I/O. Every method that takes a ``tx`` runs in the caller's transaction, the others in one of
    their own.
    """

    def __init__(self, ledger: Ledger, lock_wait: float | None = None) -> None:
        self.ledger = ledger
        self._lock_wait = ledger.limits.transaction_age if lock_wait is None else lock_wait

    # -- one worker's transaction ---------------------------------------------------------------------

    def insert(
        self, tx: Connection, dead_letters: Sequence[NewDeadLetter], topic_ids: Mapping[str, UUID], version: int
    ) -> None:
        """Store records that are dead-lettered, or skipped (without their values), in the batch's transaction (I1, I4).

        ``version`` is the handler's. A record that has a dead letter already, in any state, has it opened again.
        """
        if not dead_letters:
            return
        own = {"version": version, "dead_lettered_by": self.ledger.owner}
        ordered = sorted(dead_letters, key=lambda new: (new.record.topic, new.record.partition, new.record.offset))
        self.ledger.group_connection(tx).execute(
            DEAD_LETTERS["insert"], [insert_parameters(new, topic_ids) | own for new in ordered]
        )

    def open_keys(self, tx: Connection, partitions: Iterable[Partition]) -> dict[tuple[Partition, bytes], int]:
        """The keys that have open dead letters in these partitions, and the first offset of each; after hold.

        Null keys are left out; dead letters of a topic that was recreated since block nothing.
        """
        asked = asking_for(sorted(partitions))
        rows = self.ledger.group_connection(tx).execute(DEAD_LETTERS["open_keys"], **asked)
        return {(Partition(r.topic, r.partition), bytes(r.key)): r.first for r in rows}

    # -- for operators -----------------------------------------------------------------------------------

    def count_open(self) -> Mapping[Partition, int]:
        """How many dead letters wait for a decision, by partition; partitions without any are left out."""
        with self.ledger.begin() as tx:
            return {Partition(r.topic, r.partition): r.n for r in tx.execute(DEAD_LETTERS["count_open"])}

    def get(self, id: int) -> DeadLetter:  # noqa: A002 -- the column's name, which people type
        """One dead letter, whole. Raises ConfigError where the group has none of that id."""
        self._refuse_no_id(id)
        with self.ledger.begin() as tx:
            found = tx.execute(DEAD_LETTERS["get"], id=id).one_or_none()
        if found is None:
            raise self._unknown(id)
        return dead_letter_of(found)

    def list(
        self, where: Where, *, limit: int = 100, after: DeadLetter | None = None, with_values: bool = True
    ) -> Sequence[DeadLetter]:
        """Dead letters that meet every condition, in the order of topic, partition and offset; ``limit`` at most.

        ``after`` is the last dead letter of the page before. Without ``with_values`` the values stay in the database,
        and ``record`` raises. Raises ConfigError for a condition that Postgres cannot be asked: a NUL in a text, a
        number beyond its column's type.
        """
        conditions = _conditions(where)
        place = dict.fromkeys(_PLACE) if after is None else dict(zip(_PLACE, rank(after), strict=True))
        with self.ledger.begin() as tx:
            rows = tx.execute(DEAD_LETTERS["list"], most=limit, with_values=with_values, **conditions, **place)
            return [dead_letter_of(each) for each in rows]

    def chosen(self, ids: Iterable[int]) -> Sequence[DeadLetter]:
        """These dead letters without their values, in order. Raises ConfigError where the group has one not."""
        asked = set(ids)
        for each in asked:
            self._refuse_no_id(each)
        with self.ledger.begin() as tx:
            found = [dead_letter_of(row) for row in tx.execute(DEAD_LETTERS["chosen"], ids=sorted(asked))]
        if unknown := asked - {one.id for one in found}:
            raise self._unknown(min(unknown))
        return found

    def in_order(self, ids: Iterable[int]) -> Sequence[int]:
        """These ids in the order of topic, partition and offset. Raises ConfigError where the group has one not."""
        asked = set(ids)
        for each in asked:
            self._refuse_no_id(each)
        with self.ledger.begin() as tx:
            found = tx.execute(DEAD_LETTERS["in_order"], ids=sorted(asked)).scalars().all()
        if unknown := asked - {*found}:
            raise self._unknown(min(unknown))
        return found

    def by_cause(self, where: Where) -> Sequence[DeadLetterCause]:
        """How many dead letters meet every condition, by cause, most first. Raises ConfigError as :meth:`list`."""
        conditions = _conditions(where)
        with self.ledger.begin() as tx:
            rows = [row._asdict() for row in tx.execute(DEAD_LETTERS["by_cause"], **conditions)]
        return [DeadLetterCause(**row | {"cause": Cause(row["cause"]), "topics": tuple(row["topics"])}) for row in rows]

    # -- replay and discard  ----------------------------------------------------------------------------

    def lock(self, tx: Connection, id: int) -> DeadLetter:  # noqa: A002
        """Lock a dead letter and return it whole; the first statement of the transaction.

        Locks in the ledger's order: the group's row, shared; the partition's offset, so that no batch of it runs and
        none is moved meanwhile; the dead letter. Waits for a batch in hand, at most ``Limits.transaction_age`` seconds.
        The transaction is made durable. The caller checks whether it is still open. Raises ConfigError
        where the group has none of that id.
        """
        self._refuse_no_id(id)
        self.ledger.configure(tx, self._lock_wait)
        scope = self.ledger.group_connection(tx)
        scope.execute(GROUPS["share"]).one_or_none()
        where = scope.execute(DEAD_LETTERS["find"], id=id).one_or_none()
        if where is not None:
            scope.execute(GROUPS["lock_position"], topic=where.topic, partition=where.partition).one_or_none()
            if (found := scope.execute(DEAD_LETTERS["lock"], id=id).one_or_none()) is not None:
                return dead_letter_of(found)
        raise self._unknown(id)

    def first_open_of_key(self, tx: Connection, dead_letter: DeadLetter) -> int | None:
        """The offset of the first open dead letter of its key and partition; None for a null key or where none is open.

        Where keys are blocked, only that one may be replayed.
        """
        if dead_letter.key is None:
            return None
        found: int | None = (
            self.ledger.group_connection(tx)
            .execute(
                DEAD_LETTERS["first_of_key"],
                topic_id=dead_letter.topic_id,
                partition=dead_letter.partition,
                key=dead_letter.key,
            )
            .scalar_one_or_none()
        )
        return found

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

        ``among`` are the dead letters of one request (by default this one alone), which is one row there; None where
        the request has its row already. Raises Fenced where it is not open any more, and then nothing may be committed.
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

    def failed_again(self, tx: Connection, dead_letter: DeadLetter, failure: Failure) -> None:
        """Store the error of a failed replay; the dead letter stays open, and keeps its first error.

        Runs after the replay's rows were rolled back. Raises Fenced where the dead letter is not open any more.
        """
        scope = self.ledger.group_connection(tx)
        kept = scope.execute(DEAD_LETTERS["failed_again"], id=dead_letter.id, **explained(failure))
        if kept.rowcount != 1:
            raise _closed(dead_letter)

    def _refuse_no_id(self, id: int) -> None:  # noqa: A002
        if abs(id) > LARGEST_BIGINT:
            raise self._unknown(id)

    def _unknown(self, id: int) -> ConfigError:  # noqa: A002
        return ConfigError(f"group {self.ledger.group!r} has no dead letter {id}: `list` shows those it has")


def _conditions(where: Where) -> dict[str, Any]:
    """As parameters. Raises ConfigError for what Postgres cannot be asked."""
    _refuse_texts(topic=where.topic, error=where.error, exception=where.exception, error_line=where.error_line)
    _refuse_numbers(LARGEST_INTEGER, partition=where.partition)
    _refuse_numbers(LARGEST_BIGINT, from_offset=where.from_offset, to_offset=where.to_offset)
    return {
        **asdict(where),
        "states": [state.value for state in where.states],
        "cause": None if where.cause is None else where.cause.value,
    }


def _refuse_texts(**conditions: str | None) -> None:
    for name, asked in conditions.items():
        if asked is not None and storable(asked) != asked:
            raise ConfigError(
                f"{name}={asked!r}: no dead letter has this, as Postgres keeps no NUL and no lone surrogate; in "
                f"errors they are written out: {storable(asked)!r}"
            )


def _refuse_numbers(largest: int, **conditions: int | None) -> None:
    for name, asked in conditions.items():
        if asked is not None and abs(asked) > largest:
            raise ConfigError(
                f"{name}={asked}: no dead letter has this, the largest is {largest}; leave it out to mean all"
            )


def _record(scope: GroupConnection, action: str, closing: Sequence[DeadLetter], actor: str, reason: str) -> None:
    """One row for a request; its partition and offsets where it is of one partition."""
    what = f"dead letter {closing[0].id}" if len(closing) == 1 else f"{len(closing):,} dead letters"
    span: dict[str, Any] = {}
    if len({dead_letter.at for dead_letter in closing}) == 1:
        offsets = [dead_letter.offset for dead_letter in closing]
        span = {"partition": closing[0].at, "from_offset": min(offsets), "to_offset": max(offsets) + 1}
    record_action(scope, action, actor=actor, reason=f"{what}: {reason}", **span)


def _closed(dead_letter: DeadLetter) -> Fenced:
    return Fenced(
        f"dead letter {dead_letter.id} ({dead_letter.at} offset {dead_letter.offset}) is not open any more: look again"
    )
