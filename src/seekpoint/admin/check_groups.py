"""``doctor``'s checks of groups: pauses, stops, retention, and whether the brokers are those of the offsets."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from seekpoint import remedies
from seekpoint.admin.findings import Finding, Level, problems_or_ok
from seekpoint.admin.status import GroupStatus, PartitionStatus
from seekpoint.durations import format_ago, format_duration
from seekpoint.errors import KafkaUnavailable
from seekpoint.kafka.identity import CHECK_KAFKA, Identity, KafkaRefused
from seekpoint.kafka.members import Member, members
from seekpoint.records import numbered

HEADROOM = timedelta(hours=6)
SHOWN = 10  # most partitions shown of a group with the same problem
DEFAULT_CLIENT = "rdkafka"  # the client's default id
STARTING, PAUSE = 3.0, 0.2  # seconds for a new member to write its worker's row; seconds between two reads
LATE = timedelta(minutes=5)  # seconds after which a due retry is late: even a busy owner begins it much sooner
NEAR = 0.8  # share of Limits.waiting
RECENT = timedelta(hours=1)  # a worker that was last seen longer ago may have crashed


def group_findings(
    groups: Sequence[GroupStatus], declared: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> list[Finding]:
    """Pauses, stops, groups without workers, records soon deleted before they are applied, and late retries.

    ``declared`` has the declarations of each group's workers, by topic.
    """
    paused = [
        Finding.of(
            "pauses",
            Level.WARNING,
            f"{group.name}: paused by {group.pause.by or 'unknown'}: {group.pause.reason or 'no reason given'}",
            remedies.resume(group.name),
        )
        for group in groups
        if group.pause is not None
    ]
    stops: list[Finding] = []
    near: list[Finding] = []
    late: list[Finding] = []
    for group in groups:
        limits = {topic: declaration.get("most_waiting") for topic, declaration in declared[group.name].items()}
        late += _first(
            group.name,
            [finding for partition in group.partitions for finding in _retries(group, partition, limits)],
        )
        stops += _first(
            group.name, [finding for partition in group.partitions for finding in _stop(group.name, partition)]
        )
        near += _first(
            group.name, [finding for partition in group.partitions for finding in _headroom(group.name, partition)]
        )
        if unknown := sum(partition.headroom is None for partition in group.partitions):
            problem = f"{group.name}: headroom is not known for {numbered(unknown, 'partition')}: no sample is recent"
            near.append(Finding.of("retention", Level.WARNING, problem, "start a worker, which stores samples"))
    return [
        *problems_or_ok("pauses", paused, "no group is paused"),
        *problems_or_ok("stops", stops, "no partition is stopped"),
        *problems_or_ok("workers", [*_without_workers(groups)], "no group has records to apply and no worker"),
        *problems_or_ok("retention", near, "no record is about to be deleted before it is applied, as far as is known"),
        *problems_or_ok("retries", late, "no record waits longer than for its retry"),
    ]


def _without_workers(groups: Sequence[GroupStatus]) -> Iterator[Finding]:
    """Groups whose workers have all ended, and whose lag is not 0 or not known; paused groups have another finding."""
    for group in groups:
        last = max(group.workers, key=lambda worker: worker.seen_at, default=None)
        lags = [partition.lag for partition in group.partitions]
        if last is None or group.live_workers or group.pause is not None or not any(lag != 0 for lag in lags):
            continue
        lag = "an unknown number of records" if None in lags else numbered(sum(filter(None, lags)), "record")
        end = "ended" if last.state == "ended" else "was last seen"
        why = "" if last.trouble is None else f": {last.trouble}"
        yield Finding.of(
            "workers",
            Level.WARNING,
            f"{group.name}: no worker runs, and {lag} are not applied; the last one ({last.host}, pid {last.pid}) "
            f"{end} {format_ago(last.seen_at)}{why}",
            "start a worker" if last.trouble is None else "correct what the error names, and start a worker",
        )


def _first(group: str, findings: Sequence[Finding]) -> Iterator[Finding]:
    """The ``SHOWN`` worst findings of a group, and one with the number of the others."""
    worst_first = sorted(findings, key=lambda finding: finding.level is not Level.FAILURE)
    yield from worst_first[:SHOWN]
    if others := worst_first[SHOWN:]:
        fix = f"seekpoint status {shlex.quote(group)} shows all partitions"
        more = numbered(len(others), "more partition")
        yield replace(others[0], message=f"{group}: the same for {more}", remedies=(fix,))


def _stop(group: str, partition: PartitionStatus) -> Iterator[Finding]:
    if (stop := partition.position.stop) is not None:
        problem = f"{group}: {partition.position.partition} stopped at {stop.offset}: {stop.kind}"
        yield Finding.of("stops", Level.FAILURE, problem, *(stop.choices or ("seekpoint status shows it",)))


def _headroom(group: str, partition: PartitionStatus) -> Iterator[Finding]:
    where = f"{group}: {partition.position.partition}"
    fix = "start workers, or raise retention.ms and retention.bytes of the topic"
    if partition.headroom is not None and partition.headroom < 0:
        problem = f"{where}: retention deleted {numbered(-partition.headroom, 'record')} that had not been applied"
        yield Finding.of(
            "retention",
            Level.FAILURE,
            problem,
            "see seekpoint status; seekpoint lost list shows the lost ranges that operators accepted",
        )
    elif (
        partition.headroom_seconds is not None
        and partition.lag != 0
        and partition.headroom_seconds < HEADROOM.total_seconds()
    ):
        problem = (
            f"{where}: the log's start reaches the position in {timedelta(seconds=round(partition.headroom_seconds))}"
        )
        yield Finding.of("retention", Level.WARNING, problem, fix)


def _retries(group: GroupStatus, partition: PartitionStatus, limits: Mapping[str, int | None]) -> Iterator[Finding]:
    """Late retries, except those of paused groups and stopped partitions, which have other findings."""
    if not partition.waiting or group.pause is not None or partition.position.stop is not None:
        return
    where = f"{group.name}: {partition.position.partition}"
    list_command = f"seekpoint dead-letters list {shlex.quote(group.name)} --state waiting"
    most = limits.get(partition.position.partition.topic)
    if partition.overdue_seconds is not None and partition.overdue_seconds > LATE.total_seconds():
        yield Finding.of(
            "retries",
            Level.WARNING,
            f"{where}: {numbered(partition.waiting, 'record')} wait for their retries, and the first has been due for "
            f"{format_duration(partition.overdue_seconds)}",
            f"start a worker, which retries them: {list_command} shows them",
        )
    elif partition.postponed:
        yield Finding.of(
            "retries",
            Level.WARNING,
            f"{where}: retries of {numbered(partition.postponed, 'record')} are put off again and again, by an error "
            f"that counts as no attempt; the oldest waits for {format_duration(partition.oldest_waiting_seconds or 0)}",
            f"correct what the error names, which seekpoint dead-letters show ID prints: {list_command} shows the ids",
        )
    if most is not None and partition.waiting >= NEAR * most:
        yield Finding.of(
            "retries",
            Level.WARNING,
            f"{where}: {partition.waiting:,} records wait for their retries, and at {most:,} the partition waits, too",
            f"correct what makes them fail ({list_command} shows it), or raise Limits(waiting=)",
        )


def kafka_findings(
    groups: Sequence[GroupStatus],
    clusters: Mapping[str, str | None],
    settings: Mapping[str, Any],
    timeout: float,
    read_again: Callable[[], Sequence[GroupStatus]],
) -> list[Finding]:
    """Findings about whether cluster, topics and group members are those in the ledger.

    ``read_again`` reads the groups again, because a new worker becomes a member before its row is written.
    """
    try:
        identity = Identity(settings, timeout)
        cluster = identity.cluster_id()
        topics = {partition.position.partition.topic for group in groups for partition in group.partitions}
        ids = identity.ask(topics).known()
        members_of = members(identity, [group.name for group in groups])
    except KafkaUnavailable as error:
        grant = "grant this client DESCRIBE on the topics, or correct its security settings"
        fix = grant if isinstance(error, KafkaRefused) else CHECK_KAFKA
        return [Finding.of("brokers", Level.FAILURE, str(error), fix)]
    others = [
        Finding.of(
            "cluster",
            Level.FAILURE,
            f"{group.name}: its offsets belong to cluster {clusters[group.name]}, but these brokers to {cluster}",
            "correct bootstrap.servers; offsets of one cluster mean nothing in another",
        )
        for group in groups
        if clusters.get(group.name) not in {None, cluster}
    ]
    return [
        Finding.of("brokers", Level.OK, f"the brokers of cluster {cluster} answer"),
        *problems_or_ok("cluster", others, "the offsets belong to this cluster"),
        *problems_or_ok("topics", [*_topics(groups, ids)], "each topic has the id that is stored with its offsets"),
        *problems_or_ok(
            "members",
            _strangers(groups, members_of, read_again),
            "all members of the groups are workers of this ledger",
        ),
    ]


def _topics(groups: Sequence[GroupStatus], ids: Mapping[str, Any]) -> Iterator[Finding]:
    for group in groups:
        stored = defaultdict(set)
        for partition in group.partitions:
            stored[partition.position.partition.topic].add(partition.position.topic_id)
        for topic, topic_ids in stored.items():
            if ids[topic] is None:
                problem = f"{group.name}: topic {topic!r} does not exist on these brokers"
                yield Finding.of("topics", Level.FAILURE, problem, "create it, or correct bootstrap.servers")
            elif topic_ids != {ids[topic]}:
                problem = (
                    f"{group.name}: topic {topic!r} was created again: its stored offsets belong to the earlier one"
                )
                fix = remedies.accept_topic(group.name, topic, "--from-beginning")
                yield Finding.of("topics", Level.FAILURE, problem, fix)


def _strangers(
    groups: Sequence[GroupStatus],
    members_of: Mapping[str, list[Member] | None],
    read_again: Callable[[], Sequence[GroupStatus]],
) -> list[Finding]:
    """Members that are not workers of this ledger, after workers that are starting had time to write their rows."""
    until = monotonic() + STARTING
    while any(foreign(group, members_of[group.name] or ()) for group in groups) and monotonic() < until:
        sleep(PAUSE)
        groups = [group for group in read_again() if group.name in members_of]
    return list(_foreign(groups, members_of))


def _foreign(groups: Sequence[GroupStatus], members_of: Mapping[str, list[Member] | None]) -> Iterator[Finding]:
    for group in groups:
        group_members = members_of[group.name]
        if group_members is None:
            problem = f"{group.name}: this client may not ask for the group's members"
            yield Finding.of("members", Level.WARNING, problem, "grant DESCRIBE on the group")
            continue
        for member, count in foreign(group, group_members).items():
            number = f" ({count} of them)" if count > 1 else ""
            problem = (
                f"{group.name}: client {member.client_id!r} on {member.host}{number} is not a worker of this ledger"
            )
            fix = "stop it: a consumer in the group takes partitions, and its records reach no table"
            yield Finding.of("members", Level.FAILURE, problem, fix)


def foreign(group: GroupStatus, group_members: Sequence[Member]) -> Counter[Member]:
    """Members that are not the group's workers: for each client id, those in excess of its workers."""
    newest = max((worker.seen_at for worker in group.workers), default=None)
    workers = Counter(
        worker.client_id or DEFAULT_CLIENT
        for worker in group.workers
        if worker.state != "ended" and newest is not None and worker.seen_at > newest - RECENT
    )
    others: Counter[Member] = Counter()
    for member in group_members:
        if workers[member.client_id] > 0:
            workers[member.client_id] -= 1
        else:
            others[member] += 1
    return others
