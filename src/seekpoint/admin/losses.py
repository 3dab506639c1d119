"""What was lost, and the decisions that let a partition continue: lost offsets, and topics that were created again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from seekpoint.admin.by import By
from seekpoint.admin.groups import known_group, within
from seekpoint.admin.history import last_resets
from seekpoint.errors import ClusterChanged, ConfigError, Fenced, OffsetLost
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import Ledger, Position
from seekpoint.ledger.admin_actions import is_offset, reset_offset, unknown_truncation
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.schema_connection import GroupConnection, SchemaConnection
from seekpoint.ledger.sql import GROUPS, STATUS
from seekpoint.records import Partition


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets that no worker applies, from ``from_offset`` to before ``to_offset`` (None: not known).

    ``reason`` is what happened to them, ``operator_reason`` why ``actor`` has decided so.
    """

    group: str
    partition: Partition
    topic_id: UUID
    from_offset: int
    to_offset: int | None
    reason: str
    decision: str
    actor: str
    operator_reason: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One partition continues at ``to_offset``: of another topic, where ``new_topic_id`` is one.

    ``log`` is the first offset and the end of its log, as the brokers answered when the plan was made; ``last_reset``
    the id of the partition's last reset, as it is on record: the plan holds until the next one.
    ``truncated_at`` is where the log ended before the position, None where it did not.
    """

    partition: Partition
    topic_id: UUID
    new_topic_id: UUID | None
    from_offset: int
    to_offset: int
    log: tuple[int, int]
    last_reset: int | None
    truncated_at: int | None = None


@dataclass(frozen=True, slots=True)
class AcceptPlan:
    """To accept what was lost, as it was when the plan was made; ``consequences`` in words."""

    group: str
    acceptances: tuple[Acceptance, ...]
    consequences: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self.acceptances


def lost_ranges(
    tx: SchemaConnection, names: Sequence[str], partition: Partition | None = None, limit: int | None = None
) -> list[LostRange]:
    """What these groups, or all, have lost, or the last ``limit`` of it; the oldest first.

    Raises ConfigError for an unknown group.
    """
    for name in names:
        known_group(GroupConnection(tx.connection, tx.schema, name))
    topic, number = (None, None) if partition is None else partition
    wanted = list(names) or [row.name for row in tx.execute(STATUS["groups"])]
    return [
        LostRange(
            row.consumer_group,
            Partition(row.topic, row.partition),
            row.topic_id,
            *(row.from_offset, row.to_offset, row.reason, row.decision, row.actor, row.operator_reason, row.at),
        )
        for row in reversed(
            tx.execute(STATUS["lost_ranges"], names=wanted, topic=topic, partition=number, most=limit).all()
        )
    ]


def plan_lost(
    ledger: Ledger,
    partition: Partition | str | None,
    to_offset: int | None,
    settings: Mapping[str, Any],
    timeout: float,
) -> AcceptPlan:
    """See :meth:`seekpoint.admin.Admin.plan_accept_lost`."""
    topic, number = partition if isinstance(partition, Partition) else (partition, None)
    if to_offset is not None and number is None:
        raise ConfigError("an offset to continue at needs the partition that it is of: name TOPIC:PARTITION")
    rows, last = _stored(ledger)
    topics = None if topic is None else {topic: None if number is None else [number]}
    by_topic: dict[str, list[Position]] = {}
    for at in within(ledger.group, rows, topics).values():
        by_topic.setdefault(at.partition.topic, []).append(at)
    accepted: list[Acceptance] = []
    other: list[str] = []  # why partitions are no part of it
    for name, positions in by_topic.items():
        new, logs = _brokers(ledger, positions, settings, timeout)
        if new != positions[0].topic_id:
            said = f"topic {name!r} was created again: seekpoint topics accept {ledger.group} {name}"
            if topic is not None:
                raise ConfigError(said)
            other.append(said)
            continue
        for at in positions:
            log = logs.get(at.partition)
            if log is None or not _is_lost(at, log):
                other += _not_lost(ledger.group, at, is_alone=number is not None)
            else:
                accepted.append(_acceptance(ledger.group, at, log, to_offset, last.get(at.partition)))
    if not accepted:
        where = (
            f"{topic}/{number}" if number is not None else f"topic {topic!r}" if topic else f"group {ledger.group!r}"
        )
        return AcceptPlan(ledger.group, (), (*other, f"{where} has lost nothing"))
    words = [line for acceptance in accepted for line in _lost_in_words(acceptance)]
    return AcceptPlan(ledger.group, tuple(accepted), (*words, *other))


def _is_lost(at: Position, log: tuple[int, int]) -> bool:
    is_lost = at.stop is not None and at.stop.kind == OffsetLost.__name__
    return is_lost or not log[0] <= at.next_offset <= log[1]


def _not_lost(group: str, at: Position, *, is_alone: bool) -> Iterator[str]:
    """A sentence about a partition that is stopped for another cause; an error where it alone was meant."""
    if at.stop is not None:
        see = f"seekpoint status {shlex.quote(group)} shows what can be done"
        said = f"{at.partition} is stopped at {at.stop.offset} for another cause, {at.stop.kind}: {see}"
        if is_alone:
            raise Fenced(said)
        yield said


def _acceptance(
    group: str, at: Position, log: tuple[int, int], to_offset: int | None, last_reset: int | None
) -> Acceptance:
    if at.next_offset >= log[0]:
        return _truncated(group, at, log, to_offset, last_reset)
    if to_offset is not None:
        raise ConfigError(
            f"{at.partition}: retention has passed it, and it continues at {log[0]}: leave --to-offset out"
        )
    return Acceptance(at.partition, at.topic_id, None, at.next_offset, log[0], log, last_reset)


def _truncated(
    group: str, at: Position, log: tuple[int, int], to_offset: int | None, last_reset: int | None
) -> Acceptance:
    """A log that ended before the position continues there, or at ``to_offset``; what was written since is read."""
    (start, end), last = log, at.next_offset
    ends = (end, None if at.stop is None else at.stop.log_end)
    truncated = min((each for each in ends if each is not None and each < last), default=None)
    if truncated is None:  # it was longer again when a worker came to it
        if to_offset is None:
            raise Fenced(unknown_truncation(group, at))
        truncated, last = to_offset, last - 1
    to = max(truncated, start) if to_offset is None else to_offset
    if not is_offset(to) or not start <= to <= min(last, end):
        raise ConfigError(f"{at.partition}: --to-offset {to} is not from {start} to {min(last, end)}")
    return Acceptance(at.partition, at.topic_id, None, at.next_offset, to, log, last_reset, truncated)


def plan_topic(
    ledger: Ledger, topic: str, at_offset: int | None, settings: Mapping[str, Any], timeout: float
) -> AcceptPlan:
    """``at_offset`` None: from the beginning. Raises as plan_lost, and ConfigError for an offset out of range."""
    stored, last = _stored(ledger)
    rows = list(within(ledger.group, stored, {topic: None}).values())
    new, logs = _brokers(ledger, rows, settings, timeout)
    accepted = []
    for each in rows:
        if each.topic_id == new or each.partition not in logs:
            continue
        start, end = log = logs[each.partition]
        to = start if at_offset is None else at_offset
        if not is_offset(to) or not start <= to <= end:
            raise ConfigError(f"{each.partition}: offset {to} is not in its log, which is from {start} to {end}")
        last_reset = last.get(each.partition)
        accepted.append(Acceptance(each.partition, each.topic_id, new, each.next_offset, to, log, last_reset))
    if not accepted:
        return AcceptPlan(ledger.group, (), (f"topic {topic!r} was not created again: its id is the stored one",))
    return AcceptPlan(ledger.group, tuple(accepted), tuple(map(_topic_in_words, accepted)))


def accept(ledger: Ledger, plan: AcceptPlan, by: By) -> None:
    """Carry the plan out, in one transaction. Raises Fenced where a partition is not as it was."""
    with ledger.begin(lock_wait=ledger.limits.transaction_age) as tx:
        tx.execute(GROUPS["share"])
        acceptances = sorted(plan.acceptances, key=lambda one: one.partition)
        rows = [
            tx.execute(
                GROUPS["lock_position"], topic=each.partition.topic, partition=each.partition.number
            ).one_or_none()
            for each in acceptances
        ]
        last = last_resets(tx)  # under the locks
        for each, row in zip(acceptances, rows, strict=True):
            where = each.partition
            if row is None or (row.topic_id, row.next_offset) != (each.topic_id, each.from_offset):
                now = "gone" if row is None else f"at offset {row.next_offset} of topic id {row.topic_id}"
                planned = f"{each.from_offset} of topic id {each.topic_id}"
                raise Fenced(f"{where} is {now}, and was at {planned}: nothing was done; make another plan")
            if last.get(where) != each.last_reset:
                raise Fenced(f"{where} was acted on since the plan was made: nothing was done; make another plan")
            reset_offset(
                tx,
                where,
                each.to_offset,
                actor=by.actor,
                reason=by.reason,
                log=each.log,
                topic_id=each.new_topic_id,
                truncated_at=each.truncated_at,
            )


def _stored(ledger: Ledger) -> tuple[list[Position], dict[Partition, int]]:
    """The positions of a group, and the ids of their last resets; these first: a reset in between outdates the plan.

    Raises ConfigError for a group that the ledger does not know, GroupForgotten for one that was forgotten.
    """
    with ledger.begin() as tx:
        refuse_forgotten(known_group(tx))
        last = last_resets(tx)
    return ledger.read(), last


def _brokers(
    ledger: Ledger, rows: Sequence[Position], settings: Mapping[str, Any], timeout: float
) -> tuple[UUID, dict[Partition, tuple[int, int]]]:
    """The topic's id, and the logs of those of its partitions that there are, as the brokers answer."""
    topic = rows[0].partition.topic
    with ledger.begin() as tx:
        stored = tx.execute(GROUPS["read"]).one().cluster_id
    identity = Identity(settings, timeout)
    cluster = identity.cluster_id()
    if stored not in {None, cluster}:
        raise ClusterChanged(
            f"group {ledger.group!r} holds offsets of Kafka cluster {stored}, these brokers are cluster {cluster}"
        )
    new = identity.ask([topic]).known()[topic]
    if new is None:
        raise ConfigError(f"topic {topic!r} does not exist on these brokers: create it, or check --kafka")
    count = identity.partitions([topic])[topic]
    there = [each.partition for each in rows if each.partition.number < count]
    logs = Watermarks(identity, committed=False).logs(there)  # open transactions are no end of the log
    if missing := [str(each) for each in there if each not in logs]:
        raise ConfigError(f"no broker answers for the log of {', '.join(missing)}: try again")
    return new, logs


def _lost_in_words(each: Acceptance) -> Iterator[str]:
    (start, end), at = each.log, each.from_offset
    if at < start:
        yield f"{each.partition}: {start - at:,} offsets, {at} to {start - 1}, are given up (lost_range)"
    elif each.truncated_at is not None:
        ended = f"ends at {end}" if at > end else f"ended at {each.truncated_at}, and was written again since"
        lost = f"{each.truncated_at} to {at - 1}"
        yield f"{each.partition}: the log {ended}: what was applied from {lost} is not in it any more (lost_range)"
        if each.to_offset > each.truncated_at:
            yield f"{each.partition}: records from {each.truncated_at} to {each.to_offset - 1} are not read"
    yield f"{each.partition} continues at {each.to_offset}; its owner is fenced before its next commit"


def _topic_in_words(each: Acceptance) -> str:
    left_out = each.to_offset - each.log[0]
    before = f"{left_out:,} records before it are left out (lost_range); " if left_out else ""
    return (
        f"{each.partition} continues at {each.to_offset} of the new topic; {before}what the earlier topic had from "
        f"{each.from_offset} on is given up (lost_range)"
    )
