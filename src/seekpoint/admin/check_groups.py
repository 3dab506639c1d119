"""What ``doctor`` asks about groups: retention, stops, and whether the brokers are those of the offsets."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from seekpoint.admin.findings import Finding, Level, problems_or_ok
from seekpoint.admin.status import GroupStatus, PartitionStatus
from seekpoint.errors import KafkaUnavailable
from seekpoint.kafka.identity import CHECK_KAFKA, Identity, KafkaRefused
from seekpoint.kafka.members import Member, members

HEADROOM = timedelta(hours=6)
SHOWN = 10  # partitions of a group with the same problem
DEFAULT_CLIENT = "rdkafka"  # of a client whose configuration names none
STARTING, PAUSE = 3.0, 0.2  # seconds in which a worker that has joined is seen; between two looks
RECENT = timedelta(hours=1)  # a worker that was seen before may have ended without a word


def group_findings(groups: Sequence[GroupStatus]) -> list[Finding]:
    """Pauses, stopped partitions, and logs that are about to lose records before they are applied."""
    paused = [
        Finding.of(
            "pauses",
            Level.WARNING,
            f"{group.name}: paused by {group.pause.by or 'unknown'}: {group.pause.reason or 'no reason given'}",
            f"seekpoint groups resume {shlex.quote(group.name)} --apply --reason WHY",
        )
        for group in groups
        if group.pause is not None
    ]
    stops: list[Finding] = []
    near: list[Finding] = []
    for group in groups:
        stops += _first(group.name, [one for at in group.partitions for one in _stop(group.name, at)])
        near += _first(group.name, [one for at in group.partitions for one in _headroom(group.name, at)])
        if unknown := sum(at.headroom is None for at in group.partitions):
            problem = f"{group.name}: how near retention is, is not known of {unknown} partitions: no sample is fresh"
            near.append(Finding.of("retention", Level.WARNING, problem, "start a worker, whose samples say so"))
    return [
        *problems_or_ok("pauses", paused, "no group is paused"),
        *problems_or_ok("stops", stops, "no partition is stopped"),
        *problems_or_ok("retention", near, "no record is about to be deleted before it is applied, as far as is known"),
    ]


def _first(group: str, found: Sequence[Finding]) -> Iterator[Finding]:
    """The worst of a group's partitions, and how many more there are."""
    worst_first = sorted(found, key=lambda one: one.level is not Level.FAILURE)
    yield from worst_first[:SHOWN]
    if rest := worst_first[SHOWN:]:
        fix = f"seekpoint status {shlex.quote(group)} shows all partitions"
        yield replace(rest[0], message=f"{group}: the same of {len(rest):,} more partitions", remedies=(fix,))


def _stop(group: str, at: PartitionStatus) -> Iterator[Finding]:
    if (stop := at.position.stop) is not None:
        problem = f"{group}: {at.position.partition} stopped at {stop.offset}: {stop.kind}"
        yield Finding.of("stops", Level.FAILURE, problem, *(stop.choices or ("seekpoint status shows it",)))


def _headroom(group: str, at: PartitionStatus) -> Iterator[Finding]:
    where = f"{group}: {at.position.partition}"
    fix = "start workers, or raise retention.ms and retention.bytes of the topic"
    if at.headroom is not None and at.headroom < 0:
        problem = f"{where}: {-at.headroom:,} records were deleted by retention before they were applied"
        yield Finding.of(
            "retention", Level.FAILURE, problem, "seekpoint lost list shows what is decided; see seekpoint status"
        )
    elif at.headroom_seconds is not None and at.lag != 0 and at.headroom_seconds < HEADROOM.total_seconds():
        problem = f"{where}: the log's start reaches the position in {timedelta(seconds=round(at.headroom_seconds))}"
        yield Finding.of("retention", Level.WARNING, problem, fix)


def kafka_findings(
    groups: Sequence[GroupStatus],
    clusters: Mapping[str, str | None],
    settings: Mapping[str, Any],
    timeout: float,
    read_again: Callable[[], Sequence[GroupStatus]],
) -> list[Finding]:
    """Whether the brokers, their topics and their groups' members are those that the ledger knows.

    ``read_again`` reads the groups: a worker that has just joined is a member before its row is written.
    """
    try:
        identity = Identity(settings, timeout)
        cluster = identity.cluster_id()
        topics = {at.position.partition.topic for group in groups for at in group.partitions}
        ids = identity.ask(topics).known()
        known = members(identity, [group.name for group in groups])
    except KafkaUnavailable as error:
        grant = "grant this client DESCRIBE on the topics, or correct its security settings"
        fix = grant if isinstance(error, KafkaRefused) else CHECK_KAFKA
        return [Finding.of("brokers", Level.FAILURE, str(error), fix)]
    others = [
        Finding.of(
            "cluster",
            Level.FAILURE,
            f"{group.name}: its offsets are of cluster {clusters[group.name]}, and these brokers are {cluster}",
            "correct bootstrap.servers; offsets of one cluster mean nothing in another",
        )
        for group in groups
        if clusters.get(group.name) not in {None, cluster}
    ]
    return [
        Finding.of("brokers", Level.OK, f"the brokers of cluster {cluster} answer"),
        *problems_or_ok("cluster", others, "the offsets are of this cluster"),
        *problems_or_ok("topics", [*_topics(groups, ids)], "each topic is the one that was read"),
        *problems_or_ok(
            "members", _strangers(groups, known, read_again), "the groups have no members but workers of this ledger"
        ),
    ]


def _topics(groups: Sequence[GroupStatus], ids: Mapping[str, Any]) -> Iterator[Finding]:
    for group in groups:
        stored = defaultdict(set)
        for at in group.partitions:
            stored[at.position.partition.topic].add(at.position.topic_id)
        for topic, known in stored.items():
            if ids[topic] is None:
                problem = f"{group.name}: topic {topic!r} does not exist on these brokers"
                yield Finding.of("topics", Level.FAILURE, problem, "create it, or correct bootstrap.servers")
            elif known != {ids[topic]}:
                problem = f"{group.name}: topic {topic!r} was created again: its stored offsets are of the earlier one"
                fix = f"seekpoint topics accept {group.name} {topic} --from-beginning"
                yield Finding.of("topics", Level.FAILURE, problem, fix)


def _strangers(
    groups: Sequence[GroupStatus],
    known: Mapping[str, list[Member] | None],
    read_again: Callable[[], Sequence[GroupStatus]],
) -> list[Finding]:
    """Members that are no workers of this ledger, also when those that are starting have had time to be seen."""
    until = monotonic() + STARTING
    while any(foreign(group, known[group.name] or ()) for group in groups) and monotonic() < until:
        sleep(PAUSE)
        groups = [group for group in read_again() if group.name in known]
    return list(_foreign(groups, known))


def _foreign(groups: Sequence[GroupStatus], known: Mapping[str, list[Member] | None]) -> Iterator[Finding]:
    for group in groups:
        found = known[group.name]
        if found is None:
            problem = f"{group.name}: this client may not ask for the group's members"
            yield Finding.of("members", Level.WARNING, problem, "grant DESCRIBE on the group")
            continue
        for member, count in foreign(group, found).items():
            more = f" ({count} of them)" if count > 1 else ""
            problem = f"{group.name}: client {member.client_id!r} on {member.host}{more} is no worker of this ledger"
            fix = "stop it: a consumer in the group takes partitions, and its records reach no table"
            yield Finding.of("members", Level.FAILURE, problem, fix)


def foreign(group: GroupStatus, found: Sequence[Member]) -> Counter[Member]:
    """Members that are none of the group's workers: of each client id, those beyond the workers' number."""
    newest = max((each.seen_at for each in group.workers), default=None)
    ours = Counter(
        each.client_id or DEFAULT_CLIENT
        for each in group.workers
        if each.state != "ended" and newest is not None and each.seen_at > newest - RECENT
    )
    others: Counter[Member] = Counter()
    for member in found:
        if ours[member.client_id] > 0:
            ours[member.client_id] -= 1
        else:
            others[member] += 1
    return others
