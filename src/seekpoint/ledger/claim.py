"""Claims of partitions: a new token and the committed position, or why the claim is refused (I2, I5, I6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from sqlalchemy import CursorResult

from seekpoint.errors import (
    ClusterChanged,
    GroupForgotten,
    GroupPaused,
    HandlerOutdated,
    OffsetLost,
    PartitionStopped,
    StandbyRequired,
    TopicRecreated,
)
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.declaration import Comparison, Declaration, compare, require, store
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import FORGET, GROUPS, WORKER, arrays, asking_for
from seekpoint.ledger.tables import BEGUN_AGAIN, is_of_frames
from seekpoint.records import Partition, storable

DELAYED = "delay"  # value of ``Attempt.then``: a delay, not an attempt; the record at ``offset`` is due after ``wait``
TRANSIENT = "transient"  # value of ``Attempt.then``: the attempts ended with a transient error, and the partition stops


@dataclass(frozen=True, slots=True)
class Attempt:
    """How often the record at ``offset`` was tried, and what happens next; survives a crash, because it is stored.

    ``number`` counts from 1; 0 means no attempt: the record is applied in a batch with later records. ``error`` is one
    line; None if the process crashed in the attempt, or the attempt is about to begin
    (``GroupLedger.record_attempts``). ``wait`` is the seconds until the next attempt, by the database's time, never
    negative; None if none is scheduled. ``allowed`` is the number of attempts, ``then`` the failure policy after the
    last one. ``crashes`` counts the attempts that crashed, as detected by later claims.
    """

    offset: int
    number: int
    error: str | None = None
    wait: float | None = None
    allowed: int | None = None
    then: str | None = None
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to advance one partition, and its position. A frozen value: replaced only after COMMIT.

    ``token`` fences; ``epoch`` counts tokens for people; ``next_offset`` is the position. ``unreleased`` counts
    consecutive owners that ended without a release and without progress; ``attempt`` is the stored attempt at a record
    at or past the position, if any. Records up to ``suspect_end`` may crash their process; a record up to
    ``crashed_part_end`` probably did.
    """

    partition: Partition
    token: UUID
    epoch: int
    next_offset: int
    leader_epoch: int | None
    topic_id: UUID
    unreleased: int = 0
    attempt: Attempt | None = None
    suspect_end: int | None = None
    crashed_part_end: int | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The outcome of a claim: ``granted``, ``refused``, or ``stalled`` by another owner's transaction.

    ``terminated`` has the pids of backends that were ended because their transaction was too old.
    """

    granted: Mapping[Partition, Claim]
    refused: Mapping[Partition, PartitionStopped]
    stalled: tuple[Partition, ...] = ()
    terminated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Claimant:
    """The parameters of a claim: group, process, handler version, cluster id, topic ids, declared tables.

    ``accept_forgotten`` is the time at which the group was forgotten, if it may start again as a new group.
    """

    group: str
    owner: UUID
    version: int
    cluster_id: str
    topic_ids: Mapping[str, UUID]
    declaration: Declaration = field(default_factory=Declaration)
    accept_forgotten: str | None = None

    def compare(self, tx: GroupConnection) -> list[Comparison]:
        """Compare the declared tables of each topic with the stored ones."""
        return compare(tx, self.declaration, self.version, self.topic_ids)


# The columns of the group's row, in the statement's order: the driver returns a claim's rows without names.
_GROUP = ("name", "cluster_id", "version", "tables", "paused", "paused_reason", "paused_by", "created_at", "declared",
          "forgotten")  # fmt: skip
GroupRow = Any
"""The group's row, with its columns as attributes."""

StartOffsets = Callable[[str], Mapping[Partition, int]]
"""Returns the first position of every partition of a topic that the group has not read yet."""


def prepare(tx: GroupConnection, claimant: Claimant, start: StartOffsets) -> None:
    """Insert the group's row, raise its version, and insert positions of new topics; only the first worker has to.

    Runs under the lock of the group's row, so that ``latest`` is resolved once if two workers start a new topic.
    ``start`` asks the brokers while the lock is held, so the caller must bound its time.

    Raises StandbyRequired, without raising the version, if a reload to the claimant's version is open. A reload is
    opened under the same lock: either this function finds the run, or the run finds the higher version. Raises
    DeclarationDiffers if the group writes a topic's records to other tables at the same version.
    """
    tx.execute(GROUPS["insert"], version=claimant.version)
    group = tx.execute(GROUPS["lock"]).one()
    if accepts_forgotten(group, claimant.accept_forgotten):
        group = _begin_again(tx, claimant)
    admit(group, claimant)
    if claimant.version > group.version:
        for run in open_reloads(tx):
            if run.version == claimant.version:
                raise run
        reason = f"handler version {group.version} -> {claimant.version}"
        record_action(tx, "version", actor=f"worker {claimant.owner}", reason=reason)
        tx.execute(GROUPS["redraw"])  # I5: workers of the older version are refused at their next hold
    _declare(tx, claimant)
    tables = sorted({*group.tables, *claimant.declaration.tables})
    tx.execute(GROUPS["update"], version=claimant.version, cluster_id=claimant.cluster_id, tables=tables)
    new_topics = unknown_topics(tx, claimant.topic_ids)
    first = {partition: offset for topic in new_topics for partition, offset in start(topic).items()}
    if first:
        insert_positions(
            tx, [(*partition, claimant.topic_ids[partition.topic], offset) for partition, offset in first.items()]
        )


def insert_positions(tx: GroupConnection, rows: Collection[tuple[str, int, UUID, int]]) -> None:
    """Store the first position of each partition of new topics. A row is topic, partition, topic id, position."""
    names = ("new_topic", "new_partition", "new_topic_id", "new_start")
    tx.execute(WORKER["insert_positions"], **arrays(sorted(rows), *names))


def _begin_again(tx: GroupConnection, claimant: Claimant) -> GroupRow:
    """Make a forgotten group's row that of a new group, and return it; ``admin_action`` keeps the history."""
    tx.execute(FORGET["begin_again"], to_version=claimant.version)
    record_action(
        tx, BEGUN_AGAIN, actor=f"worker {claimant.owner}", reason="its start accepts that the group was forgotten"
    )
    return tx.execute(GROUPS["read"]).one()


def _declare(tx: GroupConnection, claimant: Claimant) -> None:
    replaced = store(tx, claimant.declaration, claimant.version, claimant.compare(tx))
    for comparison in replaced:
        tables = f"{', '.join(comparison.stored or ())} -> {', '.join(comparison.declared)}"
        reason = f"records of topic {comparison.topic!r}: {tables}"
        record_action(tx, "declaration", actor=f"worker {claimant.owner}", reason=reason)
    if replaced:
        tx.execute(GROUPS["redraw"])  # I5: processes of the other declaration are refused at their next hold


def needs_preparing(tx: GroupConnection, claimant: Claimant) -> bool:
    """Whether :func:`prepare` must run: rows of the group, topics or tables are missing, or the version is older.

    Raises the errors of :func:`admit`.
    """
    group = tx.execute(GROUPS["read"]).one_or_none()
    if group is not None and accepts_forgotten(group, claimant.accept_forgotten):
        return True
    if group is not None:
        admit(group, claimant)  # so a claim that will be refused locks no row
    if group is None or group.cluster_id is None or group.version < claimant.version:
        return True
    if not set(claimant.declaration.tables) <= set(group.tables) or unknown_topics(tx, claimant.topic_ids):
        return True
    return any(comparison.is_new or comparison.differs for comparison in claimant.compare(tx))


def open_reloads(tx: GroupConnection) -> list[StandbyRequired]:
    """The open reloads to newer versions than the group's, each as the error that a claim at that version raises."""
    return [
        StandbyRequired(
            tx.group,
            row.version,
            run=row.id,
            state=row.state,
            driver=row.driver,
            on_spark=is_of_frames(row.staging_schema),
        )
        for row in tx.execute(GROUPS["open_reloads"])
    ]


def unknown_topics(tx: GroupConnection, topics: Collection[str]) -> tuple[str, ...]:
    """The topics that have no row in the ledger."""
    stored_topics = tx.execute(WORKER["known_topics"], named_topic=sorted(topics)).scalars()
    return tuple(sorted(set(topics) - set(stored_topics)))


def admit(group: GroupRow, claimant: Claimant) -> None:
    """Raise GroupForgotten, ClusterChanged, HandlerOutdated or GroupPaused if the row refuses the claimant."""
    refuse_forgotten(group)
    require_cluster(
        group,
        claimant.cluster_id,
        choices=(
            "correct bootstrap.servers",
            "read this cluster under another group name",
            "clear consumer_group.cluster_id if the cluster's data were moved with its offsets",
        ),
    )
    admit_version(group, claimant.version)
    if group.paused:
        raise GroupPaused(claimant.group, group.paused_reason, group.paused_by)


def require_cluster(group: GroupRow, cluster: str, choices: Sequence[str] = ()) -> None:
    """Raise ClusterChanged if the group's offsets are of another cluster than these brokers'."""
    if group.cluster_id not in {None, cluster}:
        raise ClusterChanged(
            f"group {group.name!r} holds offsets of Kafka cluster {group.cluster_id}, but these brokers are cluster "
            f"{cluster}",
            choices,
        )


def accepts_forgotten(group: GroupRow, accepted: str | None) -> bool:
    """Whether the group was forgotten at the accepted time; a later forget is not accepted."""
    return group.forgotten is not None and group.forgotten["at"] == accepted


def refuse_forgotten(group: GroupRow) -> None:
    """Raise GroupForgotten if an operator has forgotten the group."""
    if group.forgotten is not None:
        raise GroupForgotten.of(group.name, group.forgotten)


def admit_version(group: GroupRow, version: int) -> None:
    """Raise HandlerOutdated if the group's row has a newer version."""
    if group.version > version:
        raise HandlerOutdated(
            f"group {group.name!r} is at handler version {group.version}, but this process runs version {version}: "
            f"deploy version {group.version} or newer"
        )


def claim(
    tx: GroupConnection, claimant: Claimant, partitions: Sequence[Partition], configure: Mapping[str, Any] | None = None
) -> dict[Partition, Claim]:
    """Draw new tokens and return the committed positions; omits partitions with another topic id.

    Locks the rows first, so that later statements see the commits for which it waited. Waits at most the transaction's
    ``lock_timeout``, then fails with SQLSTATE 55P03. If it begins the transaction, one round trip has ``configure``
    with these parameters, and everything up to the tokens. It locks the group's row first, but checks that row only
    afterwards, so a refused claim must be rolled back.
    """
    rows = [(*partition, claimant.topic_ids[partition.topic]) for partition in partitions]
    wanted_rows = arrays(rows, "wanted_topic", "wanted_partition", "wanted_topic_id")
    drawing = {"owner": claimant.owner, **wanted_rows}
    first = [] if configure is None else [(WORKER["configure"], configure)]
    steps = (WORKER["lock_wanted"], WORKER["note_crashes"], WORKER["claim"], WORKER["claimed"])
    answers = tx.fetch_each(*first, (GROUPS["share"], {}), *((step, drawing) for step in steps))
    (group,), granted = answers[len(first)], answers[-1]
    admit(SimpleNamespace(**dict(zip(_GROUP, group, strict=True))), claimant)
    require(tx.group, claimant.declaration, claimant.version, claimant.compare(tx))
    claims = (_granted(row, claimant.topic_ids) for row in granted)
    return {claim.partition: claim for claim in claims}


def _granted(row: Sequence[Any], topic_ids: Mapping[str, UUID]) -> Claim:
    """The Claim of a row of ``claimed``: partition, a Claim's fields without the topic id, an Attempt's fields.

    The topic id is the claimant's, because rows with another topic id are not claimed.
    """
    topic, number, token, epoch, position, leader_epoch, unreleased, suspect_end, part_end, *tried = row
    attempt = None if tried[0] is None else Attempt(*tried)
    partition, topic_id = Partition(topic, number), topic_ids[topic]
    return Claim(partition, token, epoch, position, leader_epoch, topic_id, unreleased, attempt, suspect_end, part_end)


def recreated_topics(
    tx: GroupConnection, claimant: Claimant, partitions: Sequence[Partition]
) -> dict[Partition, TopicRecreated]:
    """A TopicRecreated for each of these partitions, which the claim omitted because of another topic id."""
    rows = tx.execute(WORKER["positions"], **asking_for(partitions))
    stops = {}
    for row in rows:
        partition = Partition(row.topic, row.partition)
        topic_id = claimant.topic_ids[partition.topic]
        stop = TopicRecreated.of(tx.group, partition, row.next_offset, stored=row.topic_id, topic_id=topic_id)
        stop.token = row.token
        stops[partition] = stop
    return stops


def record_stop(tx: GroupConnection, stop: PartitionStopped) -> CursorResult[Any]:
    """Store why a partition is stopped, unless its claim at that time has been replaced (I2)."""
    row_key = {"topic": stop.partition.topic, "partition": stop.partition.number}
    locked = tx.execute(WORKER["lock_stopped"], token=stop.token, **row_key)
    if not locked.rowcount:
        return locked
    return tx.execute(
        WORKER["stop"],
        **row_key,
        kind=type(stop).__name__,
        offset=stop.offset,
        message=storable(stop.message),
        choices=[storable(choice) for choice in stop.choices],
        log_end=stop.log_end if isinstance(stop, OffsetLost) else None,
    )


def end_abandoned(tx: GroupConnection, stalled: Sequence[Partition], older_than: float) -> tuple[int, ...]:
    """Terminate workers' sessions whose transaction has blocked these rows for more than ``older_than`` seconds.

    Returns their backend pids. Needs no superuser: the sessions belong to the same role.
    """
    age = timedelta(seconds=older_than)
    parameters = asking_for(stalled)
    pids = tx.execute(GROUPS["abandoned"], age=age, **parameters).scalars().all()
    return tuple(pid for pid in pids if tx.execute(GROUPS["terminate"], pid=pid).scalar_one())
