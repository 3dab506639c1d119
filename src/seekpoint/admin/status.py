"""Groups as operators look at them: positions, lag in records and in time, headroom, owners, stops and workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row

from seekpoint.admin.lag import ask_logs, lag_of
from seekpoint.errors import KafkaUnavailable, StandbyRequired
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.members import Member, rebalancing
from seekpoint.ledger.admin_actions import pauser
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.positions import Position, position
from seekpoint.ledger.schema_connection import SchemaConnection
from seekpoint.ledger.sql import STATUS
from seekpoint.ledger.tables import PUBLISHING
from seekpoint.records import Partition

SAMPLE_LIMIT = timedelta(minutes=3)  # as the view ``lag`` has it
DRIVER_LIMIT = timedelta(minutes=10)  # as the alert on a silent driver has it

LagRows = Mapping[tuple[str, Partition], Row[Any]]
"""Rows of the view ``lag``, by group and partition."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused a group, and why. ``abandoned``: its batch's driver sends no heartbeat; a sentence with the remedy."""

    by: str | None
    reason: str | None
    abandoned: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker process, as it was seen last. One inside a long handler is not seen, and works.

    ``is_live``: it has not ended, and was seen in the last minute. ``state`` is running, paused, trouble (``trouble``
    says which), ended, or gone: it was not seen for a minute, and has not ended.
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


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition. ``end`` and ``lag`` (records) are the brokers' answer, or else of a sample of the last minutes.

    ``lag`` is None, too, where the position is past ``end``. ``lag_seconds`` is how old the next record is,
    ``headroom`` the records from the log's start to the position; None: not known. ``is_sampled``: these numbers are
    as of ``sampled_at``, as no broker was asked, or none has answered. ``dead_letters`` are the open ones: records that
    were passed without being applied, and are in no lag; ``blocked`` of them are blocked behind their key.
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

    @property
    def age(self) -> timedelta | None:
        """How old the sample is that lag and headroom are of; None where they are of now, or not known."""
        return self.sample_age if self.is_sampled else None

    @property
    def is_past_end(self) -> bool:
        """Whether the position is past the end of the log: nothing is read."""
        return self.end is not None and self.lag is None and self.position.next_offset > self.end


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group: its partitions and workers. ``reload`` is an open one that workers of a newer version wait for.

    ``rebalance`` says that Kafka gives partitions to no member at the moment, and for whom it waits.
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
        """Those that have not ended and were seen in the last minute, as the view ``group_status`` counts them."""
        return tuple(each for each in self.workers if each.is_live)

    def failures(self, *, max_lag: int | None = None, max_age: timedelta | None = None) -> list[str]:
        """What a probe should report: a stop, an old sample, a lag that is not known or is over these limits."""
        if not self.partitions:
            return [f"{self.name}: no partition is stored"]
        found = [f"{self.name}: {each}" for at in self.partitions for each in _failures(at, max_lag, max_age)]
        if self.pause is not None:  # a paused worker writes no sample
            found += [f"{self.name}: {self.pause.abandoned}"] if self.pause.abandoned else []
        else:
            found += [f"{self.name}: {each}" for at in self.partitions for each in _old_sample(at)]
        return found


def names_of_all(tx: SchemaConnection) -> list[str]:
    """The names of all groups that are not forgotten, in order."""
    return [row.name for row in tx.execute(STATUS["groups"]) if row.forgotten is None]


def read(tx: SchemaConnection, names: Collection[str]) -> tuple[list[GroupStatus], LagRows]:
    """These groups with the lag of their samples, and its rows, all as of one moment. Raises GroupForgotten."""
    wanted = [row for row in tx.execute(STATUS["groups"]) if row.name in names]
    for row in wanted:
        refuse_forgotten(row)
    asked = sorted(row.name for row in wanted)
    logs = {(row.consumer_group, row.topic, row.partition): row for row in tx.execute(STATUS["lag"], names=asked)}
    partitions = _by_group(asked, tx.execute(STATUS["positions"], names=asked))
    workers = _by_group(asked, tx.execute(STATUS["workers"], names=asked))
    runs = tx.execute(STATUS["open_runs"]).all()
    groups = [
        GroupStatus(
            row.name,
            row.version,
            _pause(row, runs),
            tuple(_partition(at, logs.get((row.name, at.topic, at.partition))) for at in partitions[row.name]),
            tuple(_worker(at) for at in workers[row.name]),
            next((found for run in runs if (found := _standby(run, row)) is not None), None),
        )
        for row in wanted
    ]
    return groups, {(name, Partition(topic, number)): row for (name, topic, number), row in logs.items()}


def _by_group(names: Collection[str], rows: Iterable[Row[Any]]) -> dict[str, list[Row[Any]]]:
    found: dict[str, list[Row[Any]]] = {name: [] for name in names}
    for row in rows:
        found[row.consumer_group].append(row)
    return found


def _partition(row: Row[Any], log: Row[Any] | None) -> PartitionStatus:
    at = position(row)
    if log is None:  # stored since the lag was read
        return PartitionStatus(at, None, None, None, None, None, None, None, None, 0)
    who = (log.sampled_at, log.host, log.pid, log.dead_letters, log.sample_age)
    lag = lag_of(log, {})
    numbers = (lag.end, lag.lag, lag.lag_seconds, lag.headroom, lag.headroom_seconds)
    return PartitionStatus(at, *numbers, *who, lag.is_sampled, owned=log.owned, blocked=log.blocked)


def _worker(row: Row[Any]) -> WorkerStatus:
    who = (row.owner, row.host, row.pid, row.client_id, row.version, row.library)
    state = row.state if row.is_live or row.state == "ended" else "gone"
    return WorkerStatus(*who, row.started_at, row.seen_at, state, row.is_live, row.trouble)


def _pause(group: Row[Any], runs: Iterable[Row[Any]]) -> Pause | None:
    if not group.paused:
        return None
    runs = (run for run in runs if group.paused_by == pauser(run.id) and run.silence > DRIVER_LIMIT)
    return Pause(group.paused_by, group.paused_reason, next(map(_abandoned, runs), None))


def _abandoned(run: Row[Any]) -> str:
    return (
        f"batch {run.id} has paused the group, and its driver {run.driver} was not heard of for "
        f"{run.silence.total_seconds():,.0f} s: resume it (`seekpoint batch {run.pipelines[0] or 'MODULE:NAME'} "
        f"--resume {run.id}`), or end it (`seekpoint reload abort {run.id} --reason WHY`)"
    )


def _standby(run: Row[Any], group: Row[Any]) -> StandbyRequired | None:
    """The run, if workers of this group wait for it."""
    if group.name not in run.groups or run.strategy not in PUBLISHING:
        return None
    version = run.version_to[run.groups.index(group.name)]
    if version <= group.version:
        return None
    return StandbyRequired(group.name, version, run=run.id, state=run.state, driver=run.driver)


class BrokersAway(str):
    """A doubt: no broker answered, and ends and lag are as of the last samples."""

    __slots__ = ()


class AnsweredGroups(NamedTuple):
    """The groups, and what is wrong with those that the brokers' answers do not concern."""

    groups: list[GroupStatus]
    doubts: list[str]


def ask_brokers(
    groups: Sequence[GroupStatus], rows: LagRows, settings: Mapping[str, Any], timeout: float
) -> AnsweredGroups:
    """The groups with the logs as the brokers answer now, of topics that are still the ones that were read.

    And what is wrong with the others. Where no broker answers, they are as they were; so is a partition whose leader is
    away.
    """
    positions = [at.position for group in groups for at in group.partitions]
    stored = {(group.name, at.position.partition): at.position.topic_id for group in groups for at in group.partitions}
    try:
        identity = Identity(settings, timeout)
        identity.cluster_id()  # brokers that do not answer are reported first
        ids, logs = ask_logs(identity, stored, settings)
    except KafkaUnavailable as error:
        return AnsweredGroups(list(groups), [BrokersAway(f"{error}; lag is as of the last sample")])
    doubts: dict[str | Partition, str] = {}
    for at in positions:
        topic, now = at.partition.topic, ids[at.partition.topic]
        if now is None:
            doubts[topic] = f"topic {topic!r} does not exist on these brokers"
        elif now != at.topic_id:
            doubts[topic] = f"topic {topic!r} is not the one that was read: it was created again, or lives elsewhere"
    silent = sorted({partition for _, partition in stored.keys() - logs.keys()})
    doubts |= {at: f"no broker answers for the log of {at}; its lag is as of the last sample" for at in silent}

    def answered(group: str, at: PartitionStatus) -> PartitionStatus:
        key = group, at.position.partition
        return replace(at, **asdict(lag_of(rows[key], logs))) if key in rows else at

    rebalances = rebalancing(identity, [group.name for group in groups])
    found = [
        replace(
            group,
            partitions=tuple(answered(group.name, at) for at in group.partitions),
            rebalance=_rebalance(group, rebalances.get(group.name)),
        )
        for group in groups
    ]
    return AnsweredGroups(found, list(doubts.values()))


def _rebalance(group: GroupStatus, waiting: Sequence[Member] | None) -> str | None:
    """A sentence about a rebalance that takes place, with the members that Kafka counts."""
    if waiting is None:
        return None
    members = ", ".join(f"{member.client_id} on {member.host}" for member in waiting) or "no member"
    return (
        f"{group.name}: Kafka rebalances the group, and no worker gets partitions before each of its "
        f"{len(waiting)} members has answered or its session has ended ({members}); {len(group.live_workers)} workers "
        "were seen in the last minute: a member that was killed counts until its session.timeout.ms has passed"
    )


def _failures(at: PartitionStatus, max_lag: int | None, max_age: timedelta | None) -> list[str]:
    where, found = at.position.partition, []
    if at.position.stop is not None:
        found.append(f"{where} stopped at offset {at.position.stop.offset} ({at.position.stop.kind})")
    if at.lag is None:
        since = "no sample is stored" if at.sampled_at is None else f"the last sample is of {at.sampled_at:%H:%M:%S %Z}"
        past = f"the position {at.position.next_offset} is past the end of the log" if at.is_past_end else since
        found.append(f"{where}: the lag is not known: {past}")
    elif max_lag is not None and at.lag > max_lag:
        found.append(f"{where}: a lag of {at.lag:,} records, over {max_lag:,}")
    if max_age is not None and at.lag != 0:
        if at.lag_seconds is not None and at.lag_seconds > max_age.total_seconds():
            found.append(
                f"{where}: the next record is {at.lag_seconds:,.0f} s old, over {max_age.total_seconds():,.0f} s"
            )
        elif at.lag_seconds is None and at.lag is not None:
            found.append(f"{where}: how old its next record is, is not known")
    elif max_age is not None and at.age is not None and not at.owned and at.age > max_age:
        found.append(
            f"{where}: how old its next record is, is not known: its last sample is {at.age.total_seconds():,.0f} s "
            "old, and its worker is gone; name the brokers with --kafka"
        )
    return found


def _old_sample(at: PartitionStatus) -> list[str]:
    """With the lag of the brokers, too: no worker reports. Where the lag is not known, that is reported already."""
    if at.lag is None or at.sample_age is None or at.sample_age <= SAMPLE_LIMIT:
        return []
    where, age = at.position.partition, at.sample_age.total_seconds()
    return [f"{where}: no worker has reported for {age:,.0f} s: the last sample is of {at.sampled_at:%H:%M:%S %Z}"]
