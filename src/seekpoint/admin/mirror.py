"""Writes a stopped group's positions into Kafka, where a plain consumer continues and tools look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.exc import OperationalError

from seekpoint.admin.by import By
from seekpoint.admin.groups import known_group
from seekpoint.admin.logs import Logs
from seekpoint.errors import ConfigError, Fenced
from seekpoint.kafka.commits import Commit, write_commits
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.members import members
from seekpoint.ledger import Ledger, Position
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.positions import position, positions_of
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, RESETS, asking_for
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from seekpoint.records import Partition

LOCKS = 1.0  # seconds: no worker of a stopped group has a row locked


@dataclass(frozen=True, slots=True)
class Mirrored:
    """One partition: its position in the ledger, and what Kafka has (None: no commit)."""

    partition: Partition
    topic_id: UUID
    next_offset: int
    in_kafka: int | None


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """To write a group's positions into Kafka, as both were when the plan was made; ``consequences`` in words."""

    group: str
    cluster_id: str | None
    partitions: tuple[Mirrored, ...]
    consequences: tuple[str, ...]

    @property
    def moves(self) -> tuple[Mirrored, ...]:
        """The partitions of which Kafka has another offset, or none."""
        return tuple(each for each in self.partitions if each.in_kafka != each.next_offset)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self.moves


def require_empty(identity: Identity, group: str) -> None:
    """Raise Fenced where the group has members in Kafka, or this client may not ask; and KafkaUnavailable."""
    found = members(identity, [group])[group]
    if found is None:
        raise Fenced(f"this client may not ask for the members of group {group!r}: grant DESCRIBE on the group")
    if found:
        who = ", ".join(sorted({f"{each.client_id} on {each.host}" for each in found}))
        raise Fenced(
            f"group {group!r} has {len(found)} member{'' if len(found) == 1 else 's'} in Kafka ({who}): stop them "
            "first; one that was killed leaves after its session timeout"
        )


def plan_mirror(ledger: Ledger, *, kafka: Mapping[str, Any], timeout: float) -> MirrorPlan:
    """See :meth:`seekpoint.admin.Admin.plan_mirror`."""
    with ledger.begin() as tx:
        group = known_group(tx)
        refuse_forgotten(group)
        rows = [position(row) for row in tx.execute(GROUPS["positions"])]
    logs = _logs(ledger, group.cluster_id, rows, kafka, timeout)
    require_empty(logs.identity, ledger.group)
    found = logs.commits([row.partition for row in rows], ledger.group)
    has = {at: commit.offset for at, commit in found.items()}
    partitions = tuple(
        Mirrored(each.partition, each.topic_id, each.next_offset, has.get(each.partition)) for each in rows
    )
    return MirrorPlan(ledger.group, group.cluster_id, partitions, tuple(map(_in_words, partitions)))


def apply_mirror(ledger: Ledger, plan: MirrorPlan, by: By, *, kafka: Mapping[str, Any], timeout: float) -> None:
    """Write the commits while the rows are locked: no worker moves a position meanwhile. Raises Fenced."""
    try:
        with ledger.begin(lock_wait=LOCKS) as tx:
            rows = _lock(tx, plan)
            logs = _logs(ledger, plan.cluster_id, list(rows.values()), kafka, timeout)
            require_empty(logs.identity, ledger.group)
            _require_same_commits(logs, plan)
            commits = {at: Commit.mirror(row.next_offset, row.leader_epoch, row.epoch) for at, row in rows.items()}
            write_commits(logs.identity, ledger.group, commits)
            for each in plan.moves:
                record_action(
                    tx, "mirror", actor=by.actor, reason=by.reason, partition=each.partition,
                    from_offset=each.in_kafka, to_offset=each.next_offset,
                )  # fmt: skip
    except OperationalError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        raise Fenced(f"another session has locked a position of group {ledger.group!r}: stop its workers") from error


def _logs(
    ledger: Ledger, cluster_id: str | None, rows: list[Position], kafka: Mapping[str, Any], timeout: float
) -> Logs:
    ids = {row.partition: row.topic_id for row in rows}
    if not ids:
        raise ConfigError(f"group {ledger.group!r} has no stored offset")
    return Logs(kafka, timeout, group=ledger.group, cluster_id=cluster_id, topic_ids=ids)


def _lock(tx: GroupConnection, plan: MirrorPlan) -> dict[Partition, Position]:
    """The locked rows of what is to be written. Raises Fenced where one is not as it was."""
    tx.execute(GROUPS["share"])
    partitions = sorted(each.partition for each in plan.moves)
    tx.execute(RESETS["lock_rows"], **asking_for(partitions))
    rows = positions_of(tx, partitions, locked=False)
    for each in plan.moves:
        row = rows.get(each.partition)
        if row is None or (row.topic_id, row.next_offset) != (each.topic_id, each.next_offset):
            now = "has no stored offset any more" if row is None else f"is at offset {row.next_offset}"
            raise Fenced(
                f"{each.partition} {now}, in the plan at {each.next_offset}: nothing was done; make another plan"
            )
    return rows


def _require_same_commits(logs: Logs, plan: MirrorPlan) -> None:
    """Raise Fenced where a consumer has committed since the plan was made: its offsets may be the newer ones."""
    found = logs.commits([each.partition for each in plan.moves], plan.group)
    for each in plan.moves:
        now = found[each.partition].offset if each.partition in found else None
        if now != each.in_kafka:
            raise Fenced(
                f"Kafka has {now} for {each.partition}, in the plan {each.in_kafka}: nothing was done; "
                "make another plan"
            )


def _in_words(each: Mirrored) -> str:
    now = "has no commit" if each.in_kafka is None else f"has {each.in_kafka}"
    if each.in_kafka == each.next_offset:
        return f"{each.partition}: Kafka has {each.in_kafka}, as the ledger"
    return f"{each.partition}: Kafka {now}, and gets {each.next_offset}"
