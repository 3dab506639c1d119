"""Writes a stopped group's positions into Kafka, for a plain consumer that continues there, and for lag tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.exc import OperationalError

from seekpoint.admin.attribution import Attribution
from seekpoint.admin.groups import known_group
from seekpoint.admin.logs import Logs
from seekpoint.errors import ConfigError, Fenced
from seekpoint.kafka.commits import Commit, shown_offset, write_commits
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.members import members
from seekpoint.ledger import GroupLedger, Position
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.positions import position, positions_of
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, RESETS, asking_for
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from seekpoint.records import Partition

LOCKS = 1.0  # seconds; short, because no worker of a stopped group holds locks


@dataclass(frozen=True, slots=True)
class Mirrored:
    """One partition: its position in the ledger, and Kafka's committed offset (None: no commit)."""

    partition: Partition
    topic_id: UUID
    next_offset: int
    in_kafka: int | None


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """A plan to write a group's positions into Kafka; ``consequences`` in words."""

    group: str
    cluster_id: str | None
    partitions: tuple[Mirrored, ...]
    consequences: tuple[str, ...]

    @property
    def moves(self) -> tuple[Mirrored, ...]:
        """The partitions for which Kafka has another offset, or none."""
        return tuple(mirrored for mirrored in self.partitions if mirrored.in_kafka != mirrored.next_offset)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self.moves


def require_empty(identity: Identity, group: str) -> None:
    """Raise Fenced if the group has members in Kafka, or if this client may not list them.

    Raises KafkaUnavailable if the brokers do not answer.
    """
    group_members = members(identity, [group])[group]
    if group_members is None:
        raise Fenced(f"this client may not ask for the members of group {group!r}: grant DESCRIBE on the group")
    if group_members:
        clients = ", ".join(sorted({f"{member.client_id} on {member.host}" for member in group_members}))
        raise Fenced(
            f"group {group!r} has {len(group_members)} member{'' if len(group_members) == 1 else 's'} in Kafka "
            f"({clients}): stop them first; one that was killed leaves after its session timeout"
        )


def plan_mirror(ledger: GroupLedger, *, kafka: Mapping[str, Any], timeout: float) -> MirrorPlan:
    """See :meth:`seekpoint.admin.Admin.plan_mirror`."""
    with ledger.begin() as tx:
        group = known_group(tx)
        refuse_forgotten(group)
        rows = [position(row) for row in tx.execute(GROUPS["positions"])]
    logs = _logs(ledger, group.cluster_id, rows, kafka, timeout)
    require_empty(logs.identity, ledger.group)
    commits = logs.commits([row.partition for row in rows], ledger.group)
    has = {partition: commit.offset for partition, commit in commits.items()}
    partitions = tuple(Mirrored(row.partition, row.topic_id, row.next_offset, has.get(row.partition)) for row in rows)
    return MirrorPlan(ledger.group, group.cluster_id, partitions, tuple(map(_in_words, partitions)))


def apply_mirror(
    ledger: GroupLedger, plan: MirrorPlan, attribution: Attribution, *, kafka: Mapping[str, Any], timeout: float
) -> None:
    """Write the commits while the rows are locked, so that no worker moves a position meanwhile.

    Raises Fenced if positions or commits have changed since the plan was made, if the group has members in Kafka, or if
    another session has locked a position.
    """
    try:
        with ledger.begin(lock_wait=LOCKS) as tx:
            rows = _lock(tx, plan)
            logs = _logs(ledger, plan.cluster_id, list(rows.values()), kafka, timeout)
            require_empty(logs.identity, ledger.group)
            _require_same_commits(logs, plan)
            commits = {
                partition: Commit.mirror(row.next_offset, row.leader_epoch, row.epoch)
                for partition, row in rows.items()
            }
            write_commits(logs.identity, ledger.group, commits)
            for move in plan.moves:
                record_action(
                    tx, "mirror", actor=attribution.actor, reason=attribution.reason, partition=move.partition,
                    from_offset=move.in_kafka, to_offset=move.next_offset,
                )  # fmt: skip
    except OperationalError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        raise Fenced(f"another session has locked a position of group {ledger.group!r}: stop its workers") from error


def _logs(
    ledger: GroupLedger, cluster_id: str | None, rows: list[Position], kafka: Mapping[str, Any], timeout: float
) -> Logs:
    ids = {row.partition: row.topic_id for row in rows}
    if not ids:
        raise ConfigError(f"group {ledger.group!r} has no stored offset")
    return Logs(kafka, timeout, group=ledger.group, cluster_id=cluster_id, topic_ids=ids)


def _lock(tx: GroupConnection, plan: MirrorPlan) -> dict[Partition, Position]:
    """Lock the rows that the plan writes. Raises Fenced if one has changed since planning."""
    tx.execute(GROUPS["share"])
    partitions = sorted(move.partition for move in plan.moves)
    tx.execute(RESETS["lock_rows"], **asking_for(partitions))
    rows = positions_of(tx, partitions, locked=False)
    for move in plan.moves:
        row = rows.get(move.partition)
        if row is None or (row.topic_id, row.next_offset) != (move.topic_id, move.next_offset):
            state = "no longer has a stored offset" if row is None else f"is at offset {row.next_offset}"
            raise Fenced(
                f"{move.partition} {state}, but the plan has {move.next_offset}: nothing was done; make another plan"
            )
    return rows


def _require_same_commits(logs: Logs, plan: MirrorPlan) -> None:
    """Raise Fenced if a consumer has committed since the plan was made: its offsets may be newer than the ledger's."""
    commits = logs.commits([move.partition for move in plan.moves], plan.group)
    for move in plan.moves:
        committed = commits[move.partition].offset if move.partition in commits else None
        if committed != move.in_kafka:
            raise Fenced(
                f"Kafka has {shown_offset(committed)} for {move.partition}, but the plan has "
                f"{shown_offset(move.in_kafka)}: nothing was done; make another plan"
            )


def _in_words(mirrored: Mirrored) -> str:
    state = "has no commit" if mirrored.in_kafka is None else f"has {mirrored.in_kafka}"
    if mirrored.in_kafka == mirrored.next_offset:
        return f"{mirrored.partition}: Kafka has {mirrored.in_kafka}, like the ledger"
    return f"{mirrored.partition}: Kafka {state}, and gets {mirrored.next_offset}"
