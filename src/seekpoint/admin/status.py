"""Groups for operators: positions, lag in records and in time, headroom, owners, stops and workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row

from seekpoint.admin.lag import ask_logs, lag_of
from seekpoint.durations import format_duration
from seekpoint.errors import KafkaUnavailable, StandbyRequired
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.members import Member, rebalancing
from seekpoint.ledger.admin_actions import pauser
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.positions import Position, position
from seekpoint.ledger.schema_connection import SchemaConnection
from seekpoint.ledger.sql import STATUS
from seekpoint.ledger.tables import PUBLISHING, is_of_frames
from seekpoint.records import Partition

SAMPLE_LIMIT = timedelta(minutes=3)  # the same as in the view ``lag``
DRIVER_LIMIT = timedelta(minutes=10)  # the same as in the alert on a silent driver

LagRows = Mapping[tuple[str, Partition], Row[Any]]
"""Rows of the view ``lag``, by group and partition."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused a group, and why. ``abandoned`` is a remedy if a batch paused it and its driver is silent."""

    by: str | None
    reason: str | None
    abandoned: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker process, as it was last seen.

    ``is_live``: it has not ended, and was seen in the last minute. ``state`` is running, paused, trouble (``trouble``
    says which), ended (``trouble`` is the error that ended it, if there was one), or gone: not ended, but not seen for
    a minute. ``activity`` says why a paused worker waits, or describes a long transaction: since when, and with how
    many records.
    """

    owner: UUID
    host: str
    pid: int
    client_id: str | None
    version: int
    library: str
    started_at: datetime
    seen_at: datetime
    state: str
    is_live: bool
    trouble: str | None = None
    activity: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition. ``end`` and ``lag`` (records) come from the brokers' answer, otherwise from a recent sample.

    ``lag`` is None if it is not known, or if the position is past ``end``. ``lag_seconds`` is the age of the next
    record, ``headroom`` the records from the log's start to the position; None: not known. ``is_sampled``: these
    numbers are as of ``sampled_at``, because no broker was asked, or none has answered. ``dead_letters`` counts open
    dead letters, which no lag includes; ``blocked`` of them are blocked behind their key. ``waiting`` counts records
    that wait for their retries while others continue, which no lag includes. The oldest has been waiting for
    ``oldest_waiting_seconds``; a due retry is ``overdue_seconds`` late. ``postponed`` of the waiting records had an
    error that does not count as an attempt.
    """

    position: Position
    end: int | None
    lag: int | None
    lag_seconds: float | None
    headroom: int | None
    headroom_seconds: float | None
    sampled_at: datetime | None
    host: str | None
    pid: int | None
    dead_letters: int
    sample_age: timedelta | None = None
    is_sampled: bool = False
    owned: bool = False
    blocked: int = 0
    waiting: int = 0
    oldest_waiting_seconds: float | None = None
    overdue_seconds: float | None = None
    postponed: int = 0

    @property
    def age(self) -> timedelta | None:
        """The age of the sample with lag and headroom; None if these are current, or not known."""
        return self.sample_age if self.is_sampled else None

    @property
    def is_past_end(self) -> bool:
        """Whether the position is past the end of the log, so that nothing is read."""
        return self.end is not None and self.lag is None and self.position.next_offset > self.end


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group: its partitions and workers. ``reload`` is an open reload for which workers of a newer version wait.

    ``rebalance``: while Kafka rebalances the group, a sentence with the members for which it waits.
    """

    name: str
    version: int
    pause: Pause | None
    partitions: tuple[PartitionStatus, ...]
    workers: tuple[WorkerStatus, ...]
    reload: StandbyRequired | None
    rebalance: str | None = None

    @property
    def live_workers(self) -> tuple[WorkerStatus, ...]:
        """The workers that have not ended, and were seen in the last minute, as in the view ``group_status``."""
        return tuple(worker for worker in self.workers if worker.is_live)

    def failures(self, *, max_lag: int | None = None, max_age: timedelta | None = None) -> list[str]:
        """Sentences for a probe: stops, old samples, and lag that is unknown or over these limits."""
        if not self.partitions:
            return [f"{self.name}: no position is stored"]
        failures = [
            f"{self.name}: {failure}"
            for partition in self.partitions
            for failure in _failures(partition, max_lag, max_age)
        ]
        if self.pause is not None:  # a paused worker writes no sample
            failures += [f"{self.name}: {self.pause.abandoned}"] if self.pause.abandoned else []
        else:
            failures += [
                f"{self.name}: {failure}" for partition in self.partitions for failure in _old_sample(partition)
            ]
        return failures


def names_of_all(tx: SchemaConnection) -> list[str]:
    """The names of all groups that are not forgotten, in order."""
    return [row.name for row in tx.execute(STATUS["groups"]) if row.forgotten is None]


def read(tx: SchemaConnection, names: Collection[str]) -> tuple[list[GroupStatus], LagRows]:
    """These groups with lag from samples, and the rows of the view ``lag``. Raises GroupForgotten."""
    group_rows = [row for row in tx.execute(STATUS["groups"]) if row.name in names]
    for row in group_rows:
        refuse_forgotten(row)
    group_names = sorted(row.name for row in group_rows)
    logs = {(row.consumer_group, row.topic, row.partition): row for row in tx.execute(STATUS["lag"], names=group_names)}
    partitions = _by_group(group_names, tx.execute(STATUS["positions"], names=group_names))
    workers = _by_group(group_names, tx.execute(STATUS["workers"], names=group_names))
    runs = tx.execute(STATUS["open_runs"]).all()
    groups = [
        GroupStatus(
            row.name,
            row.version,
            _pause(row, runs),
            tuple(
                _partition(stored, logs.get((row.name, stored.topic, stored.partition)))
                for stored in partitions[row.name]
            ),
            tuple(_worker(worker) for worker in workers[row.name]),
            next((standby for run in runs if (standby := _standby(run, row)) is not None), None),
        )
        for row in group_rows
    ]
    return groups, {(name, Partition(topic, number)): row for (name, topic, number), row in logs.items()}


def _by_group(names: Collection[str], rows: Iterable[Row[Any]]) -> dict[str, list[Row[Any]]]:
    by_group: dict[str, list[Row[Any]]] = {name: [] for name in names}
    for row in rows:
        by_group[row.consumer_group].append(row)
    return by_group


def _partition(row: Row[Any], log: Row[Any] | None) -> PartitionStatus:
    stored_position = position(row)
    if log is None:  # this group was stored after the lag was read
        return PartitionStatus(stored_position, None, None, None, None, None, None, None, None, 0)
    sample = (log.sampled_at, log.host, log.pid, log.dead_letters, log.sample_age)
    lag = lag_of(log, {})
    numbers = (lag.end, lag.lag, lag.lag_seconds, lag.headroom, lag.headroom_seconds)
    names = ("blocked", "waiting", "oldest_waiting_seconds", "overdue_seconds", "postponed")
    counts = {name: getattr(log, name) for name in names}
    return PartitionStatus(stored_position, *numbers, *sample, lag.is_sampled, owned=log.owned, **counts)


def _worker(row: Row[Any]) -> WorkerStatus:
    identity = (row.owner, row.host, row.pid, row.client_id, row.version, row.library)
    state = row.state if row.is_live or row.state == "ended" else "gone"
    texts = (row.trouble, None) if row.state in {"trouble", "ended"} else (None, row.trouble)
    return WorkerStatus(*identity, row.started_at, row.seen_at, state, row.is_live, *texts)


def _pause(group: Row[Any], runs: Iterable[Row[Any]]) -> Pause | None:
    if not group.paused:
        return None
    runs = (run for run in runs if group.paused_by == pauser(run.id) and run.silence > DRIVER_LIMIT)
    return Pause(group.paused_by, group.paused_reason, next(map(_abandoned, runs), None))


def _abandoned(run: Row[Any]) -> str:
    return (
        f"batch {run.id} has paused the group, and its driver {run.driver} has not been heard from for "
        f"{format_duration(run.silence)}: resume it (`seekpoint batch {run.pipelines[0] or 'MODULE:NAME'} "
        f"--resume {run.id}`), or end it (`seekpoint reload abort {run.id} --reason WHY`)"
    )


def _standby(run: Row[Any], group: Row[Any]) -> StandbyRequired | None:
    """The run, if workers of this group wait for it."""
    if group.name not in run.groups or run.strategy not in PUBLISHING:
        return None
    version = run.version_to[run.groups.index(group.name)]
    if version <= group.version:
        return None
    on_spark = is_of_frames(run.staging_schema)
    return StandbyRequired(group.name, version, run=run.id, state=run.state, driver=run.driver, on_spark=on_spark)


class BrokersAway(str):
    """A warning that no broker has answered, so that ends and lag are as of the last samples."""

    __slots__ = ()


class AnsweredGroups(NamedTuple):
    """The groups, and a sentence for each topic or partition whose log is not known."""

    groups: list[GroupStatus]
    doubts: list[str]


def ask_brokers(
    groups: Sequence[GroupStatus], rows: LagRows, settings: Mapping[str, Any], timeout: float
) -> AnsweredGroups:
    """The groups with lag from the brokers' answers; and a warning for each topic or partition without a valid answer.

    If no broker answers, or a partition's leader does not, the samples' numbers stay.
    """
    positions = [partition.position for group in groups for partition in group.partitions]
    stored = {
        (group.name, partition.position.partition): partition.position.topic_id
        for group in groups
        for partition in group.partitions
    }
    try:
        identity = Identity(settings, timeout)
        identity.cluster_id()  # brokers that do not answer are reported first
        ids, logs = ask_logs(identity, stored, settings)
    except KafkaUnavailable as error:
        return AnsweredGroups(list(groups), [BrokersAway(f"{error}; lag is as of the last sample")])
    doubts: dict[str | Partition, str] = {}
    for stored_position in positions:
        topic, topic_id = stored_position.partition.topic, ids[stored_position.partition.topic]
        if topic_id is None:
            doubts[topic] = f"topic {topic!r} does not exist on these brokers"
        elif topic_id != stored_position.topic_id:
            doubts[topic] = f"topic {topic!r} is not the stored one: it was created again, or these are other brokers"
    silent = sorted({partition for _, partition in stored.keys() - logs.keys()})
    doubts |= {
        partition: f"no broker answers for the log of {partition}; its lag is as of the last sample"
        for partition in silent
    }

    def answered(group: str, partition: PartitionStatus) -> PartitionStatus:
        key = group, partition.position.partition
        return replace(partition, **asdict(lag_of(rows[key], logs))) if key in rows else partition

    rebalances = rebalancing(identity, [group.name for group in groups])
    updated = [
        replace(
            group,
            partitions=tuple(answered(group.name, partition) for partition in group.partitions),
            rebalance=_rebalance(group, rebalances.get(group.name)),
        )
        for group in groups
    ]
    return AnsweredGroups(updated, list(doubts.values()))


def _rebalance(group: GroupStatus, waiting: Sequence[Member] | None) -> str | None:
    """A sentence about a rebalance in progress, with the members that Kafka counts; None if there is none."""
    if waiting is None:
        return None
    members = ", ".join(f"{member.client_id} on {member.host}" for member in waiting) or "no member"
    return (
        f"{group.name}: Kafka rebalances the group, and no worker gets partitions until each of its "
        f"{len(waiting)} members has answered or its session has ended ({members}); {len(group.live_workers)} workers "
        "were seen in the last minute. A member that was killed counts until its session.timeout.ms has passed"
    )


def _failures(partition: PartitionStatus, max_lag: int | None, max_age: timedelta | None) -> list[str]:
    where, failures = partition.position.partition, []
    if partition.position.stop is not None:
        failures.append(f"{where} stopped at offset {partition.position.stop.offset} ({partition.position.stop.kind})")
    if partition.lag is None:
        since = (
            "no sample is stored"
            if partition.sampled_at is None
            else f"the last sample is from {partition.sampled_at:%H:%M:%S %Z}"
        )
        past = (
            f"the position {partition.position.next_offset} is past the end of the log"
            if partition.is_past_end
            else since
        )
        failures.append(f"{where}: the lag is not known: {past}")
    elif max_lag is not None and partition.lag > max_lag:
        failures.append(f"{where}: a lag of {partition.lag:,} records, over {max_lag:,}")
    if max_age is not None and partition.lag != 0:
        if partition.lag_seconds is not None and partition.lag_seconds > max_age.total_seconds():
            failures.append(
                f"{where}: the next record is {format_duration(partition.lag_seconds)} old, over "
                f"{format_duration(max_age)}"
            )
        elif partition.lag_seconds is None and partition.lag is not None:
            failures.append(f"{where}: the age of its next record is not known")
    elif max_age is not None and partition.age is not None and not partition.owned and partition.age > max_age:
        failures.append(
            f"{where}: the age of its next record is not known: its last sample is "
            f"{format_duration(partition.age)} old, and its worker is gone; name the brokers with --kafka"
        )
    return failures


def _old_sample(partition: PartitionStatus) -> list[str]:
    """A failure if the last sample is old: no worker reports.

    Empty if the lag is unknown, because that is already a failure.
    """
    if partition.lag is None or partition.sample_age is None or partition.sample_age <= SAMPLE_LIMIT:
        return []
    where, age = partition.position.partition, format_duration(partition.sample_age)
    return [f"{where}: no worker has reported for {age}: the last sample is from {partition.sampled_at:%H:%M:%S %Z}"]
