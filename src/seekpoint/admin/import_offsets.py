"""Takes the positions of new topics of a group from what another consumer has committed to Kafka."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from seekpoint.admin.by import By
from seekpoint.admin.mirror import require_empty
from seekpoint.errors import ClusterChanged, ConfigError, Fenced
from seekpoint.kafka.commits import Commit, read_commits
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import Ledger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.claim import insert_positions, refuse_forgotten, unknown_topics
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS
from seekpoint.records import Partition

Missing = Literal["earliest", "latest"]
FIRST_VERSION = 1  # of a new group's handler; the first worker raises it to its own


@dataclass(frozen=True, slots=True)
class Imported:
    """One partition's first position. ``committed`` is Kafka's commit, None where there is none.

    ``log`` is the start and end of its log, as the brokers answered when the plan was made.
    """

    partition: Partition
    topic_id: UUID
    offset: int
    committed: int | None
    log: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """To begin at the commits of ``from_group``, as they were when the plan was made; ``consequences`` in words."""

    group: str
    from_group: str
    cluster_id: str
    partitions: tuple[Imported, ...]
    consequences: tuple[str, ...]


def plan_import(
    ledger: Ledger,
    old: str,
    topics: Collection[str] | None,
    *,
    missing: Missing | None,
    kafka: Mapping[str, Any],
    timeout: float,
) -> ImportPlan:
    """See :meth:`seekpoint.admin.Admin.plan_import`."""
    identity = Identity(kafka, timeout)
    cluster = identity.cluster_id()
    named = sorted({at.topic for at in _read_commits(identity, old)} if topics is None else set(topics))
    if not named:
        raise ConfigError(
            f"group {old!r} has no commit in Kafka: check the name, and that its offsets have not expired"
        )
    counts, ids = identity.partitions(named), identity.ask(named).known()
    with ledger.begin() as tx:
        _require_new(tx, cluster, named)
    partitions = [Partition(topic, number) for topic in named for number in range(counts[topic])]
    commits = _read_commits(identity, old, partitions)
    readable = Watermarks(identity, committed=kafka.get("isolation.level") != "read_uncommitted").logs(partitions)
    written = Watermarks(identity, committed=False).logs(partitions)
    _require_commits(old, partitions, commits, written, missing)
    found = []
    for at in partitions:
        topic_id = ids[at.topic]
        if topic_id is None or at not in readable or at not in written:
            raise Fenced(f"no broker answers for the log of {at}: try again")
        commit = commits.get(at)
        committed = None if commit is None else commit.offset
        begin = readable[at][0 if missing == "earliest" else 1]
        found.append(Imported(at, topic_id, begin if committed is None else committed, committed, written[at]))
    return ImportPlan(ledger.group, old, cluster, tuple(found), tuple(map(_in_words, found)))


def apply_import(ledger: Ledger, plan: ImportPlan, by: By, *, kafka: Mapping[str, Any], timeout: float) -> None:
    """Store the positions, in one transaction, if nothing has changed since the plan was made. Raises Fenced."""
    identity = Identity(kafka, timeout)
    if (cluster := identity.cluster_id()) != plan.cluster_id:
        raise ClusterChanged(f"the brokers belong to cluster {cluster}, the plan to {plan.cluster_id}")
    topics = sorted({each.partition.topic for each in plan.partitions})
    with ledger.begin(lock_wait=max(ledger.limits.claim_wait, timeout)) as tx:
        tx.execute(GROUPS["insert"], version=FIRST_VERSION)
        group = tx.execute(GROUPS["lock"]).one()  # a worker that starts these topics waits, or has come first
        _require_new(tx, cluster, topics)
        tx.execute(GROUPS["update"], version=group.version, cluster_id=cluster, tables=list(group.tables))
        insert_positions(tx, [(*each.partition, each.topic_id, each.offset) for each in plan.partitions])
        for each in plan.partitions:
            where, said = each.partition, f"group {plan.from_group}: {by.reason}"
            record_action(tx, "import", actor=by.actor, reason=said, partition=where, to_offset=each.offset)
        _require_same(identity, plan)  # last, so that little time is left until COMMIT


def _require_same(identity: Identity, plan: ImportPlan) -> None:
    """Raise Fenced where commits, topics or their partitions are not those of the plan; members are asked for last."""
    ids = identity.ask({each.partition.topic for each in plan.partitions}).known()
    counts = identity.known({each.partition.topic for each in plan.partitions})
    if sum(counts.values()) != len(plan.partitions):
        raise Fenced("a topic has more partitions than in the plan: nothing was done; make another plan")
    commits = _read_commits(identity, plan.from_group, [each.partition for each in plan.partitions])
    for each in plan.partitions:
        commit = commits.get(each.partition)
        now = None if commit is None else commit.offset
        if now != each.committed:
            raise Fenced(
                f"group {plan.from_group!r} has committed {now} for {each.partition}, in the plan {each.committed}: "
                "nothing was done; stop its consumers, and make another plan"
            )
        if ids[each.partition.topic] != each.topic_id:
            raise Fenced(f"topic {each.partition.topic!r} was created again: nothing was done; make another plan")


def _read_commits(
    identity: Identity, group: str, partitions: Collection[Partition] | None = None
) -> dict[Partition, Commit]:
    """The commits of a group without members, of these partitions or of all.

    Raises Fenced where it has some before or after they were read. A member that joined in between may have committed
    since, and read records that would be applied again.
    """
    require_empty(identity, group)
    found = read_commits(identity, group, partitions)
    require_empty(identity, group)
    return found


def _require_new(tx: GroupConnection, cluster: str, topics: list[str]) -> None:
    """Raise where the group has positions of these topics, or of another cluster, or was forgotten."""
    group = tx.execute(GROUPS["read"]).one_or_none()
    if group is not None:
        refuse_forgotten(group)
    if group is not None and group.cluster_id not in {None, cluster}:
        raise ClusterChanged(
            f"group {tx.group!r} holds offsets of Kafka cluster {group.cluster_id}, these brokers are cluster {cluster}"
        )
    if known := sorted(set(topics) - set(unknown_topics(tx, topics))):
        raise Fenced(
            f"group {tx.group!r} has stored offsets of topic {known[0]!r} already, which an import does not change: "
            f"`seekpoint offsets reset {tx.group} --topic {known[0]} --to-kafka …` does"
        )


def _require_commits(
    group: str,
    partitions: Collection[Partition],
    commits: Mapping[Partition, Commit],
    logs: Mapping[Partition, tuple[int, int]],
    missing: Missing | None,
) -> None:
    """Raise Fenced, which names them all, for partitions whose commit is no first position, or where there is none."""
    absent = [str(at) for at in partitions if at not in commits]
    if absent and missing is None:
        raise Fenced(
            f"group {group!r} has no commit in Kafka for {', '.join(absent)}: say where partitions without one begin "
            "(--missing earliest, --missing latest)"
        )
    if mirrored := [str(at) for at, commit in sorted(commits.items()) if commit.is_mirror]:
        raise Fenced(
            f"the commit of group {group!r} for {', '.join(mirrored)} was mirrored from a ledger, and may be older "
            f"than the position there: take the positions themselves (`seekpoint offsets export {group}`)"
        )
    past = [
        f"{commit.offset} for {at}, past the end of the log, which has offsets {logs[at][0]} to {logs[at][1]}"
        for at, commit in sorted(commits.items())
        if at in logs and commit.offset > logs[at][1]
    ]
    if past:
        raise Fenced(
            f"group {group!r} has committed {'; '.join(past)}: the log was truncated, or the topic created again"
        )


def _in_words(each: Imported) -> str:
    where = f"{each.partition} begins at {each.offset}"
    return f"{where}, {', '.join(_said(each))}"


def _said(each: Imported) -> Iterator[str]:
    yield "without a commit" if each.committed is None else "Kafka's commit"
    if each.offset < each.log[0]:
        yield (
            f"and stops there: retention has removed {each.log[0] - each.offset:,} offsets "
            "(`seekpoint lost accept` decides)"
        )
    else:
        yield f"{max(0, each.log[1] - each.offset):,} offsets before the end of its log"
