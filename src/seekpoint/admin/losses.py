"""Lists lost ranges, and plans how partitions continue after lost offsets or in a recreated topic."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from seekpoint import remedies
from seekpoint.admin.attribution import Attribution
from seekpoint.admin.groups import known_group, within
from seekpoint.admin.history import last_resets
from seekpoint.errors import ConfigError, Fenced, OffsetLost
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import GroupLedger, Position
from seekpoint.ledger.admin_actions import is_offset, reset_offset, unknown_truncation
from seekpoint.ledger.claim import refuse_forgotten, require_cluster
from seekpoint.ledger.schema_connection import GroupConnection, SchemaConnection
from seekpoint.ledger.sql import GROUPS, STATUS
from seekpoint.records import Partition


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets that no worker will apply, from ``from_offset`` to before ``to_offset`` (None: not known).

    ``reason`` says how the records were lost, ``operator_reason`` why ``actor`` made the ``decision``.
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
    """One partition continues at ``to_offset``, of the recreated topic if ``new_topic_id`` is given.

    ``log`` is the first offset and the end of the log when the plan was made. ``last_reset`` is the id of the
    partition's last reset; a later one outdates the plan. ``truncated_at`` is where a truncated log ended, None without
    a truncation.
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
    """A plan to accept losses; ``consequences`` in words."""

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
    """The lost ranges of these groups, or of all; ``limit`` selects the newest. Oldest first.

    Raises ConfigError for an unknown group.
    """
    for name in names:
        known_group(GroupConnection(tx.connection, tx.schema, name))
    topic, number = (None, None) if partition is None else partition
    group_names = list(names) or [row.name for row in tx.execute(STATUS["groups"])]
    return [
        LostRange(
            row.consumer_group,
            Partition(row.topic, row.partition),
            row.topic_id,
            *(row.from_offset, row.to_offset, row.reason, row.decision, row.actor, row.operator_reason, row.at),
        )
        for row in reversed(
            tx.execute(STATUS["lost_ranges"], names=group_names, topic=topic, partition=number, most=limit).all()
        )
    ]


def plan_lost(
    ledger: GroupLedger,
    partition: Partition | str | None,
    to_offset: int | None,
    settings: Mapping[str, Any],
    timeout: float,
) -> AcceptPlan:
    """See :meth:`seekpoint.admin.Admin.plan_accept_lost`."""
    topic, number = partition if isinstance(partition, Partition) else (partition, None)
    if to_offset is not None and number is None:
        raise ConfigError("--to-offset (to_offset=) is for one partition: name it, as TOPIC:PARTITION")
    rows, last = _stored(ledger)
    topics = None if topic is None else {topic: None if number is None else [number]}
    by_topic: dict[str, list[Position]] = {}
    for position in within(ledger.group, rows, topics).values():
        by_topic.setdefault(position.partition.topic, []).append(position)
    accepted: list[Acceptance] = []
    reasons: list[str] = []  # reasons why partitions are not in the plan
    for name, positions in by_topic.items():
        topic_id, logs = _brokers(ledger, positions, settings, timeout)
        if topic_id != positions[0].topic_id:
            accept = remedies.accept_topic(ledger.group, name, "--from-beginning")
            again = f"topic {name!r} was created again: {accept}"
            reason = _missing(name) if topic_id is None else again
            if topic is not None:
                raise ConfigError(reason)
            reasons.append(reason)
            continue
        for position in positions:
            log = logs.get(position.partition)
            if log is None or not _is_lost(position, log):
                reasons += _not_lost(ledger.group, position, is_alone=number is not None)
            else:
                accepted.append(_acceptance(ledger.group, position, log, to_offset, last.get(position.partition)))
    if not accepted:
        where = (
            f"{topic}/{number}" if number is not None else f"topic {topic!r}" if topic else f"group {ledger.group!r}"
        )
        return AcceptPlan(ledger.group, (), (*reasons, f"{where} has lost nothing"))
    words = [line for acceptance in accepted for line in _lost_in_words(acceptance)]
    return AcceptPlan(ledger.group, tuple(accepted), (*words, *reasons))


def _is_lost(position: Position, log: tuple[int, int]) -> bool:
    is_lost = position.stop is not None and position.stop.kind == OffsetLost.__name__
    return is_lost or not log[0] <= position.next_offset <= log[1]


def _not_lost(group: str, position: Position, *, is_alone: bool) -> Iterator[str]:
    """A sentence if the partition is stopped for another cause; raises Fenced with it if no other was named."""
    if position.stop is not None:
        see = f"seekpoint status {shlex.quote(group)} shows what can be done"
        sentence = (
            f"{position.partition} is stopped at {position.stop.offset} for another cause, {position.stop.kind}: {see}"
        )
        if is_alone:
            raise Fenced(sentence)
        yield sentence


def _acceptance(
    group: str, position: Position, log: tuple[int, int], to_offset: int | None, last_reset: int | None
) -> Acceptance:
    if position.next_offset >= log[0]:
        return _truncated(group, position, log, to_offset, last_reset)
    if to_offset is not None:
        raise ConfigError(
            f"{position.partition}: retention has passed the position, which continues at {log[0]}: omit --to-offset"
        )
    return Acceptance(position.partition, position.topic_id, None, position.next_offset, log[0], log, last_reset)


def _truncated(
    group: str, position: Position, log: tuple[int, int], to_offset: int | None, last_reset: int | None
) -> Acceptance:
    """Continue where the truncated log ended, or at ``to_offset``; records written since are read."""
    (start, end), last = log, position.next_offset
    ends = (end, None if position.stop is None else position.stop.log_end)
    truncated = min((offset for offset in ends if offset is not None and offset < last), default=None)
    if truncated is None:  # before a worker checked the log, it had grown past the position again
        if to_offset is None:
            raise Fenced(unknown_truncation(group, position))
        truncated, last = to_offset, last - 1
    to = max(truncated, start) if to_offset is None else to_offset
    if not is_offset(to) or not start <= to <= min(last, end):
        raise ConfigError(f"{position.partition}: --to-offset {to} is outside {start} to {min(last, end)}")
    return Acceptance(position.partition, position.topic_id, None, position.next_offset, to, log, last_reset, truncated)


def plan_topic(
    ledger: GroupLedger, topic: str, at_offset: int | None, settings: Mapping[str, Any], timeout: float
) -> AcceptPlan:
    """See :meth:`seekpoint.admin.Admin.plan_accept_topic`. ``at_offset`` None: read the new topic from its start."""
    stored, last = _stored(ledger)
    rows = list(within(ledger.group, stored, {topic: None}).values())
    topic_id, logs = _brokers(ledger, rows, settings, timeout)
    if topic_id is None:
        raise ConfigError(_missing(topic))
    accepted = []
    for position in rows:
        if position.topic_id == topic_id:
            continue
        is_there = position.partition in logs
        start, end = log = logs[position.partition] if is_there else (0, 0)
        to = at_offset if is_there and at_offset is not None else start
        if not is_offset(to) or not start <= to <= end:
            raise ConfigError(f"{position.partition}: offset {to} is outside its log, {start} to {end}")
        last_reset = last.get(position.partition)
        accepted.append(
            Acceptance(position.partition, position.topic_id, topic_id, position.next_offset, to, log, last_reset)
        )
    if not accepted:
        return AcceptPlan(ledger.group, (), (f"topic {topic!r} was not created again: its id is the stored one",))
    words = (_topic_in_words(acceptance, is_there=acceptance.partition in logs) for acceptance in accepted)
    return AcceptPlan(ledger.group, tuple(accepted), tuple(words))


def accept(ledger: GroupLedger, plan: AcceptPlan, attribution: Attribution) -> None:
    """Carry out the plan in one transaction. Raises Fenced if a partition has changed since planning."""
    with ledger.begin(lock_wait=ledger.limits.transaction_age) as tx:
        tx.execute(GROUPS["share"])
        acceptances = sorted(plan.acceptances, key=lambda acceptance: acceptance.partition)
        rows = [
            tx.execute(
                GROUPS["lock_position"], topic=acceptance.partition.topic, partition=acceptance.partition.number
            ).one_or_none()
            for acceptance in acceptances
        ]
        last = last_resets(tx)  # under the locks
        for acceptance, row in zip(acceptances, rows, strict=True):
            where = acceptance.partition
            if row is None or (row.topic_id, row.next_offset) != (acceptance.topic_id, acceptance.from_offset):
                state = "gone" if row is None else f"at offset {row.next_offset} of topic id {row.topic_id}"
                planned = f"{acceptance.from_offset} of topic id {acceptance.topic_id}"
                raise Fenced(f"{where} is {state}, but was at {planned}: nothing was done; make another plan")
            if last.get(where) != acceptance.last_reset:
                raise Fenced(f"{where} was acted on since the plan was made: nothing was done; make another plan")
            reset_offset(
                tx,
                where,
                acceptance.to_offset,
                actor=attribution.actor,
                reason=attribution.reason,
                log=acceptance.log,
                topic_id=acceptance.new_topic_id,
                truncated_at=acceptance.truncated_at,
            )


def _stored(ledger: GroupLedger) -> tuple[list[Position], dict[Partition, int]]:
    """A group's positions, and the ids of their last resets, read first: a reset in between then outdates the plan.

    Raises ConfigError for an unknown group, GroupForgotten for a forgotten one.
    """
    with ledger.begin() as tx:
        refuse_forgotten(known_group(tx))
        last = last_resets(tx)
    return ledger.read(), last


def _brokers(
    ledger: GroupLedger, rows: Sequence[Position], settings: Mapping[str, Any], timeout: float
) -> tuple[UUID | None, dict[Partition, tuple[int, int]]]:
    """The brokers' id of the topic, None if it does not exist, and the logs of existing partitions."""
    topic = rows[0].partition.topic
    with ledger.begin() as tx:
        group = tx.execute(GROUPS["read"]).one()
    identity = Identity(settings, timeout)
    require_cluster(group, identity.cluster_id())
    topic_id = identity.ask([topic]).known()[topic]
    if topic_id is None:
        return None, {}
    count = identity.partitions([topic])[topic]
    partitions = [row.partition for row in rows if row.partition.number < count]
    logs = Watermarks(identity, committed=False).logs(partitions)  # including open transactions
    if missing := [str(partition) for partition in partitions if partition not in logs]:
        raise ConfigError(f"no broker answers for the log of {', '.join(missing)}: try again")
    return topic_id, logs


def _missing(topic: str) -> str:
    return f"topic {topic!r} does not exist on these brokers: create it, or check --kafka"


def _lost_in_words(acceptance: Acceptance) -> Iterator[str]:
    (start, end), offset, partition = acceptance.log, acceptance.from_offset, acceptance.partition
    if offset < start:
        yield f"{partition}: {start - offset:,} offsets, {offset} to {start - 1}, are given up (lost_range)"
    elif acceptance.truncated_at is not None:
        ended = f"ends at {end}" if offset > end else f"ended at {acceptance.truncated_at}, and was written again since"
        lost = f"{acceptance.truncated_at} to {offset - 1}"
        yield f"{partition}: the log {ended}: applied records from {lost} are no longer in it (lost_range)"
        if acceptance.to_offset > acceptance.truncated_at:
            yield f"{partition}: records from {acceptance.truncated_at} to {acceptance.to_offset - 1} are not read"
    yield f"{partition} continues at {acceptance.to_offset}; its owner is fenced before its next commit"


def _topic_in_words(acceptance: Acceptance, *, is_there: bool) -> str:
    if not is_there:
        return (
            f"{acceptance.partition} is not in the new topic, and is read from 0 if it is added; the earlier topic's "
            f"records from {acceptance.from_offset} on are given up (lost_range)"
        )
    left_out = acceptance.to_offset - acceptance.log[0]
    before = f"{left_out:,} records before it are skipped (lost_range); " if left_out else ""
    return (
        f"{acceptance.partition} continues at {acceptance.to_offset} of the new topic; {before}the earlier topic's "
        f"records from {acceptance.from_offset} on are given up (lost_range)"
    )
