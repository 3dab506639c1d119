"""Imports another consumer's offsets as first positions of a group's topics: from Kafka or a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any, Literal, Protocol
from uuid import UUID

from seekpoint.admin.attribution import Attribution
from seekpoint.admin.checkpoint import Checkpoint, read_checkpoint
from seekpoint.admin.mirror import require_empty
from seekpoint.errors import ClusterChanged, ConfigError, Fenced
from seekpoint.kafka.commits import Commit, read_commits, shown_offset
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.claim import insert_positions, refuse_forgotten, require_cluster, unknown_topics
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS
from seekpoint.records import Partition
from seekpoint.storage import named

Missing = Literal["earliest", "latest"]
FIRST_VERSION = 1  # a new group's handler version, which its first worker raises


@dataclass(frozen=True, slots=True)
class Imported:
    """One partition's first position. ``committed`` is the other consumer's offset, None if there is none.

    ``log`` is the start and end of the partition's log when the plan was made.
    """

    partition: Partition
    topic_id: UUID
    offset: int
    committed: int | None
    log: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """A plan to start at another consumer's offsets, as they were when it was made; ``consequences`` in words.

    The consumer is the group ``from_group``, or the Spark query of the checkpoint ``from_checkpoint``.
    """

    group: str
    from_group: str | None
    cluster_id: str
    partitions: tuple[Imported, ...]
    consequences: tuple[str, ...]
    from_checkpoint: str | None = None


class _Origin(Protocol):
    """The other consumer. For messages: its ``name``, the place of its offsets (``kept_in``), and a ``word`` for one.

    ``hint`` says what to check if there are no offsets.
    """

    name: str
    kept_in: str
    word: str
    hint: str

    def read(self, identity: Identity, partitions: Collection[Partition] | None = None) -> dict[Partition, Commit]:
        """The consumer's current offsets in these partitions, or in all.

        May include other partitions of the same topics. Raises Fenced if the group has members in Kafka, ConfigError
        for a checkpoint that cannot be used.
        """

    def notes(self) -> tuple[str, ...]:
        """Sentences about consequences that concern no single position."""


class _Group:
    """A consumer group that commits to Kafka."""

    kept_in, word = "in Kafka", "Kafka's commit"
    hint = "check the name, and that its offsets have not expired"

    def __init__(self, group: str) -> None:
        self._group, self.name = group, f"group {group!r}"

    def read(self, identity: Identity, partitions: Collection[Partition] | None = None) -> dict[Partition, Commit]:
        return _read_commits(identity, self._group, partitions)

    def notes(self) -> tuple[str, ...]:
        return ()


class _Query:
    """A Spark query with a checkpoint."""

    kept_in, word = "there", "the checkpoint's offset"
    hint = "check the location, and that the query has planned a micro-batch"

    def __init__(self, location: str) -> None:
        self._location, self.name = location, f"the query of checkpoint {location}"
        self._last: Checkpoint | None = None

    def read(self, identity: Identity, partitions: Collection[Partition] | None = None) -> dict[Partition, Commit]:  # noqa: ARG002
        self._last = read_checkpoint(self._location)
        offsets = self._last.offsets
        topics = {partition.topic for partition in (offsets if partitions is None else partitions)}
        return {partition: Commit(offset) for partition, offset in offsets.items() if partition.topic in topics}

    def notes(self) -> tuple[str, ...]:
        return () if self._last is None else self._last.notes()


def plan_import(
    ledger: GroupLedger,
    from_group: str | None,
    topics: Collection[str] | None,
    *,
    from_checkpoint: str | None,
    missing: Missing | None,
    kafka: Mapping[str, Any],
    timeout: float,
) -> ImportPlan:
    """See :meth:`seekpoint.admin.Admin.plan_import`."""
    if (from_group is None) == (from_checkpoint is None):
        raise ConfigError("name the consumer whose offsets to import: from_group= or from_checkpoint=")
    if topics is not None and not topics:
        raise ConfigError("topics= is empty: name the topics to import, or None for all that have commits")
    checkpoint = None if from_checkpoint is None else named(from_checkpoint)
    origin = _origin(from_group, checkpoint)
    identity = Identity(kafka, timeout)
    cluster = identity.cluster_id()
    all_commits = origin.read(identity) if topics is None else {}
    topic_names = sorted({partition.topic for partition in all_commits} if topics is None else set(topics))
    if not topic_names:
        raise ConfigError(f"{origin.name} has no commit {origin.kept_in}: {origin.hint}")
    counts, ids = identity.partitions(topic_names), identity.ask(topic_names).known()
    with ledger.begin() as tx:
        _require_new(tx, cluster, topic_names)
    partitions = [Partition(topic, number) for topic in topic_names for number in range(counts[topic])]
    commits = origin.read(identity, partitions)
    _require_partitions(origin, {**all_commits, **commits}, counts)
    readable = Watermarks(identity, committed=kafka.get("isolation.level") != "read_uncommitted").logs(partitions)
    written = Watermarks(identity, committed=False).logs(partitions)
    _require_commits(origin, partitions, commits, written, missing)
    imported = []
    for partition in partitions:
        topic_id = ids[partition.topic]
        if topic_id is None or partition not in readable or partition not in written:
            raise Fenced(f"no broker answers for the log of {partition}: try again")
        commit = commits.get(partition)
        committed = None if commit is None else commit.offset
        begin = readable[partition][0 if missing == "earliest" else 1]
        imported.append(
            Imported(partition, topic_id, begin if committed is None else committed, committed, written[partition])
        )
    consequences = (*(_in_words(position, origin) for position in imported), *origin.notes())
    return ImportPlan(ledger.group, from_group, cluster, tuple(imported), consequences, checkpoint)


def _origin(group: str | None, checkpoint: str | None) -> _Origin:
    return _Query(checkpoint) if checkpoint is not None else _Group(group or "")


def apply_import(
    ledger: GroupLedger, plan: ImportPlan, attribution: Attribution, *, kafka: Mapping[str, Any], timeout: float
) -> None:
    """Store the positions, in one transaction.

    Raises Fenced or ClusterChanged if anything has changed since the plan was made.
    """
    identity, origin = Identity(kafka, timeout), _origin(plan.from_group, plan.from_checkpoint)
    if (cluster := identity.cluster_id()) != plan.cluster_id:
        raise ClusterChanged(f"the brokers belong to cluster {cluster}, the plan to {plan.cluster_id}")
    topics = sorted({position.partition.topic for position in plan.partitions})
    with ledger.begin(lock_wait=max(ledger.limits.claim_wait, timeout)) as tx:
        tx.execute(GROUPS["insert"], version=FIRST_VERSION)
        group = tx.execute(GROUPS["lock"]).one()  # a worker that starts these topics waits, or has been first
        _require_new(tx, cluster, topics)
        tx.execute(GROUPS["update"], version=group.version, cluster_id=cluster, tables=list(group.tables))
        insert_positions(
            tx, [(*position.partition, position.topic_id, position.offset) for position in plan.partitions]
        )
        for position in plan.partitions:
            where, reason = position.partition, f"{origin.name}: {attribution.reason}"
            record_action(
                tx, "import", actor=attribution.actor, reason=reason, partition=where, to_offset=position.offset
            )
        _require_same(identity, origin, plan)  # last, so that little time passes until COMMIT


def _require_same(identity: Identity, origin: _Origin, plan: ImportPlan) -> None:
    """Raise Fenced if commits, topics or partition counts differ from the plan, or if the other group has members."""
    ids = identity.ask({position.partition.topic for position in plan.partitions}).known()
    counts = identity.known({position.partition.topic for position in plan.partitions})
    if sum(counts.values()) != len(plan.partitions):
        raise Fenced("a topic has more partitions than in the plan: nothing was done; make another plan")
    commits = origin.read(identity, [position.partition for position in plan.partitions])
    for position in plan.partitions:
        commit = commits.get(position.partition)
        committed = None if commit is None else commit.offset
        if committed != position.committed:
            raise Fenced(
                f"{origin.name} has committed {shown_offset(committed)} for {position.partition}, but the plan has "
                f"{shown_offset(position.committed)}: nothing was done; stop that consumer, and make another plan"
            )
        if ids[position.partition.topic] != position.topic_id:
            raise Fenced(f"topic {position.partition.topic!r} was created again: nothing was done; make another plan")
    if news := [note for note in origin.notes() if note not in plan.consequences]:
        raise Fenced(
            f"{origin.name} has changed since the plan was made ({news[0]}): nothing was done; make another plan"
        )


def _read_commits(
    identity: Identity, group: str, partitions: Collection[Partition] | None = None
) -> dict[Partition, Commit]:
    """The commits of a group without members, in these partitions or in all.

    Raises Fenced if the group has members before or after the read: a member may commit later offsets, and the records
    before them would be applied again.
    """
    require_empty(identity, group)
    commits = read_commits(identity, group, partitions)
    require_empty(identity, group)
    return commits


def _require_new(tx: GroupConnection, cluster: str, topics: list[str]) -> None:
    """Raise if the group was forgotten, or has positions of these topics or of another cluster."""
    group = tx.execute(GROUPS["read"]).one_or_none()
    if group is not None:
        refuse_forgotten(group)
        require_cluster(group, cluster)
    if stored_topics := sorted(set(topics) - set(unknown_topics(tx, topics))):
        raise Fenced(
            f"group {tx.group!r} has stored offsets of topic {stored_topics[0]!r} already, which an import does not "
            f"change: `seekpoint offsets reset {quote(tx.group)} --topic {quote(stored_topics[0])} --to-kafka …` does"
        )


def _require_partitions(origin: _Origin, commits: Mapping[Partition, Commit], counts: Mapping[str, int]) -> None:
    """Raise Fenced for commits of partitions that the topic does not have: they belong to another topic."""
    strange = [partition for partition in sorted(commits) if partition.number >= counts[partition.topic]]
    if strange:
        topic = strange[0].topic
        raise Fenced(
            f"{origin.name} has committed {commits[strange[0]].offset} for {strange[0]}, but topic {topic!r} has "
            f"{counts[topic]} partitions on these brokers: it was created again since, or these are other brokers, so "
            "these offsets belong to another topic. Import only other topics (`--topic`, `topics=`); workers start "
            "this one at their StartAt"
        )


def _require_commits(
    origin: _Origin,
    partitions: Collection[Partition],
    commits: Mapping[Partition, Commit],
    logs: Mapping[Partition, tuple[int, int]],
    missing: Missing | None,
) -> None:
    """Raise Fenced, which names all such partitions, if a commit is missing or cannot be a first position."""
    absent = [str(partition) for partition in partitions if partition not in commits]
    if absent and missing is None:
        raise Fenced(
            f"{origin.name} has no commit {origin.kept_in} for {', '.join(absent)}: say where to start partitions "
            "without a commit (--missing earliest or --missing latest, Admin.plan_import(missing=...))"
        )
    if mirrored := [str(partition) for partition, commit in sorted(commits.items()) if commit.is_mirror]:
        raise Fenced(
            f"the commit of {origin.name} for {', '.join(mirrored)} was mirrored from a ledger, and may be older than "
            "that ledger's position: take the positions from `seekpoint offsets export` instead"
        )
    past = [
        f"{commit.offset} for {partition}, past the end of the log, which has offsets {logs[partition][0]} to "
        f"{logs[partition][1]}"
        for partition, commit in sorted(commits.items())
        if partition in logs and commit.offset > logs[partition][1]
    ]
    if past:
        raise Fenced(
            f"{origin.name} has committed {'; '.join(past)}: the log was truncated, or the topic created again"
        )


def _in_words(position: Imported, origin: _Origin) -> str:
    where = f"{position.partition} begins at {position.offset}"
    return f"{where}, {', '.join(_said(position, origin))}"


def _said(position: Imported, origin: _Origin) -> Iterator[str]:
    yield "without a commit" if position.committed is None else origin.word
    if position.offset < position.log[0]:
        yield (
            f"and stops there: retention has removed {position.log[0] - position.offset:,} offsets "
            "(`seekpoint lost accept` decides)"
        )
    else:
        yield f"{max(0, position.log[1] - position.offset):,} offsets before the end of its log"
