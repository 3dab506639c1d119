"""Opens a batch in one transaction: pauses the group, claims its partitions, stores the ranges to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint import remedies
from seekpoint.errors import BatchRefused, ConfigError, RangeLost
from seekpoint.jobs.reload.open import insert_run, of_rights
from seekpoint.jobs.run import StagedPosition, Tx, let_go, this_driver
from seekpoint.jobs.tables.dependencies import prefix_of
from seekpoint.jobs.tables.targets import PipelineSource, targets
from seekpoint.kafka.first_records import first_records
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.range_checks import bounded_config, require_known
from seekpoint.kafka.ranges import Range
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import Claim
from seekpoint.ledger.admin_actions import PAUSER, pauser, set_paused
from seekpoint.ledger.claim import Claimant, claim, needs_preparing, prepare, recreated_topics
from seekpoint.ledger.declaration import Declaration
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import BATCH, GROUPS
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.engine import schema_translation
from seekpoint.records import Partition

Claims = Mapping[Partition, Claim]


def open_claims(
    tx: Tx, source: PipelineSource, brokers: Brokers, run: UUID, partitions: Sequence[Partition], *, pause: bool
) -> Claims:
    """Keep workers away and claim these partitions, as a worker would; the claims count from COMMIT on.

    A group that is paused already stays as it is. Otherwise it is paused in the run's name: without ``pause`` only
    where no worker owns any of it. Waits for their batches in hand.

    Raises BatchRefused, TopicRecreated, ClusterChanged, HandlerOutdated, StandbyRequired, DeclarationDiffers,
    KafkaUnavailable, ConfigError.
    """
    pipeline = source.pipeline
    scope = GroupConnection(tx.connection, tx.schema, pipeline.group)
    scope.execute(GROUPS["insert"], version=pipeline.version)
    group = scope.execute(GROUPS["lock"]).one()
    _keep_workers_away(scope, group, source, run, pause=pause)
    declared = Declaration.of(pipeline.tables_by_topic(schema_translation(tx.connection.engine)))
    claimant = Claimant(pipeline.group, run, pipeline.version, brokers.cluster_id, brokers.ids, declared)
    scope.execute(BATCH["set_paused"], paused=False)
    if needs_preparing(scope, claimant):
        prepare(scope, claimant, brokers.start)
    granted = claim(scope, claimant, partitions)
    scope.execute(BATCH["set_paused"], paused=True)
    for stop in recreated_topics(scope, claimant, [p for p in partitions if p not in granted]).values():
        raise stop
    require_no_held_keys(scope, pipeline, brokers.ids)
    return granted


def _keep_workers_away(
    scope: GroupConnection, group: Row[Any], source: PipelineSource, run: UUID, *, pause: bool
) -> None:
    if group.paused:
        by = group.paused_by or ""
        if by != pauser(run) and by.startswith(PAUSER):
            other, named = by.removeprefix(PAUSER), source.name or "MODULE:NAME"
            why = (
                f"{by} is at work on group {group.name!r}: wait for its end; where its driver is gone, resume it "
                f"(`take_over(id)`, `seekpoint batch {named} --resume {other}`) or end it "
                f"(`seekpoint reload abort {other} --reason WHY`)"
            )
            raise BatchRefused([why])
        return
    owners = scope.execute(BATCH["owners"]).all()
    if owners and not pause:
        named = ", ".join(f"{str(row.owner)[:8]} (since {row.claimed_at:%F %T})" for row in owners)
        why = (
            f"workers own partitions of group {group.name!r}: {named}. Stop them; or say --pause (pause=True), and "
            "they wait while the batch runs (right, too, for one that died without giving its partitions back)"
        )
        raise BatchRefused([why])
    reason = (
        f"applies what is new, driven by {this_driver()}. Where that is gone: `seekpoint batch "
        f"{source.name or 'MODULE:NAME'} --resume {run}` resumes, `seekpoint reload abort {run} --reason WHY` ends it"
    )
    set_paused(scope, True, actor=pauser(run), reason=reason)


def require_no_held_keys(scope: GroupConnection, pipeline: Pipeline, ids: Mapping[str, UUID]) -> None:
    """Refuse where records would be blocked by a dead letter of their key: that is found record by record.

    Raises BatchRefused.
    """
    if not pipeline.keep_key_order:
        return
    held = scope.execute(BATCH["held_keys"], topic_ids=list(ids.values())).scalar_one()
    if held:
        why = (
            f"group {pipeline.group!r} has {held} open dead letters, and records of their keys are blocked behind "
            "them, which only workers do: replay or discard them first (`seekpoint dead-letters`)"
        )
        raise BatchRefused([why])


def open_batch(
    tx: Tx, source: PipelineSource, brokers: Brokers, run: UUID, *, pause: bool, actor: str, reason: str
) -> Claims:
    """Take the group, and put the run on record with its ranges; no claims where there is nothing to read.

    Raises as :func:`open_claims` does, RangeLost, and BatchRefused for a role that cannot create the run's schema.
    """
    group = GroupConnection(tx.connection, tx.schema, source.group).execute(GROUPS["lock"]).one_or_none()
    claims = open_claims(tx, source, brokers, run, brokers.partitions, pause=pause)
    ends = brokers.plan(claims)
    if all(ends[at] == one.next_offset for at, one in claims.items()):
        let_go(tx.connection, tx.schema, run, [source.group], "nothing was new")
        return {}
    versions = [source.pipeline.version if group is None else group.version]
    insert_batch(tx, run, source, versions, "batch", actor=actor, reason=reason)
    positions = []
    for at, one in claims.items():
        begin = one.next_offset
        positions.append(StagedPosition(source.group, at, one.topic_id, begin, ends[at], begin, one.epoch, resets=0))
    tx.add_positions(run, positions)
    return claims


def insert_batch(
    tx: Tx, run: UUID, source: PipelineSource, versions: Sequence[int], strategy: str, *, actor: str, reason: str
) -> None:
    """Put the run on record. Raises BatchRefused for a role that cannot create the run's schema."""
    if reasons := of_rights(tx.connection):
        raise BatchRefused(reasons)
    found, prefix = targets(tx.connection, [source]), prefix_of(tx.connection, "seekpoint_batch_")
    insert_run(tx, run, [source], found, versions, strategy=strategy, prefix=prefix, actor=actor, reason=reason)


def stale(tx: Tx, run: UUID, claims: Claims) -> list[str]:
    """Partitions whose offset is not where the run's ranges begin: a worker advanced it, or an operator reset it."""
    return [
        f"{at.partition}: group {at.group!r} is at offset {claims[at.partition].next_offset} by now, and the batch "
        f"began at {at.first_offset}: run another one"
        for at in tx.positions_of(run)
        if claims[at.partition].next_offset != at.first_offset
    ]


class Brokers:
    """Asks as a worker of the same ``kafka`` mapping would; ``partitions`` and ``ids`` are as of now.

    Raises KafkaUnavailable, and ConfigError for a topic that does not exist and a mapping that no consumer takes.
    """

    def __init__(
        self, kafka: Mapping[str, Any], pipeline: Pipeline, timeout: float, max_records: int | None = None
    ) -> None:
        require_known(kafka)
        config = bounded_config(kafka)
        self._identity = Identity(config, timeout)
        self._readable = Watermarks(self._identity, committed=config["isolation.level"] != "read_uncommitted")
        self._written = Watermarks(self._identity, committed=False)
        self._pipeline, self._max_records = pipeline, max_records
        self.cluster_id = self._identity.cluster_id()
        counts = self._identity.partitions(pipeline.topics)
        self.partitions = [Partition(topic, n) for topic in pipeline.topics for n in range(counts[topic])]
        self.ids = self._ids()

    def _ids(self) -> dict[str, UUID]:
        found = self._identity.ask(self._pipeline.topics).result()
        if gone := sorted(topic for topic, topic_id in found.items() if topic_id is None):
            raise ConfigError(f"topic {gone[0]!r} was deleted a moment ago: create it, or correct topics=")
        return {topic: topic_id for topic, topic_id in found.items() if topic_id is not None}

    def start(self, topic: str) -> Mapping[Partition, int]:
        """The first positions of a topic that the group has not read, as the pipeline's StartAt says."""
        return self._readable.resolve(topic, self._pipeline.start, self._pipeline.group)

    def log_start(self, at: Partition) -> int:
        """The first offset that the log has now."""
        return self._readable.starts([at])[at].offset

    def ends(self) -> dict[Partition, int]:
        """The offsets after the last records that can be read now."""
        return {at: edge.offset for at, edge in self._readable.ends(self.partitions).items()}

    def plan(self, claims: Mapping[Partition, Claim]) -> dict[Partition, int]:
        """Where each partition's range ends; where it begins, if there is nothing new.

        Raises RangeLost where the log does not have the position (any more).
        """
        group = self._pipeline.group
        ends = {at: edge.offset for at, edge in self._readable.ends(claims).items()}
        starts, written = self._readable.starts(claims), self._written.ends(claims)
        for at, one in claims.items():
            if (first := starts[at].offset) > one.next_offset:
                raise RangeLost(
                    at,
                    one.next_offset,
                    f"retention has passed it: the first offset left is {first}. "
                    f"{remedies.accept_lost(group, at, first, (first, written[at].offset), 'retention')} gives the "
                    "records between up, on record; then run the batch again",
                )
            if one.next_offset > (end := written[at].offset):
                raise RangeLost(
                    at,
                    one.next_offset,
                    f"it is past the end of the log ({end}): the log was truncated, or belongs to other brokers. "
                    "Check bootstrap.servers; where the log was truncated, decide: "
                    f"{remedies.accept_lost(group, at, end, (first, end))} continues there",
                )
        ranges = [
            Range(at, one.topic_id, one.next_offset, max(one.next_offset, ends[at])) for at, one in claims.items()
        ]
        planned = {range_.partition: range_.end for range_ in first_records(ranges, self._max_records)}
        return {at: planned.get(at, one.next_offset) for at, one in claims.items()}
