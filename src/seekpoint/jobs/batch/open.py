"""Opens a batch in one transaction: pauses the group, claims its partitions, and stores the ranges to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from sqlalchemy import Row

from seekpoint import remedies
from seekpoint.errors import BatchRefused, ConfigError, RangeLost
from seekpoint.jobs.reload.open import insert_run, of_rights
from seekpoint.jobs.tables.dependencies import prefix_of
from seekpoint.jobs.tables.targets import PipelineSource, targets
from seekpoint.kafka.first_records import first_records
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.range_checks import bounded_config, require_known
from seekpoint.kafka.ranges import Range
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import Claim
from seekpoint.ledger.admin_actions import PAUSER, pauser, set_paused
from seekpoint.ledger.claim import Claimant, needs_preparing, prepare, recreated_topics
from seekpoint.ledger.claim import claim as claim_partitions
from seekpoint.ledger.declaration import Declaration
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import BATCH, GROUPS, STATUS
from seekpoint.pipeline.declared import declared
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.engine import schema_translation
from seekpoint.records import Partition
from seekpoint.runs.run import StagedPosition, Tx, release_groups, this_driver

Claims = Mapping[Partition, Claim]


def open_claims(
    tx: Tx, source: PipelineSource, brokers: Brokers, run: UUID, partitions: Sequence[Partition], *, pause: bool
) -> Claims:
    """Pause the group and claim these partitions, as a worker would; the claims are valid from COMMIT on.

    A group that is already paused stays paused. Otherwise the run pauses it, which requires ``pause`` if workers own
    partitions. Waits for the workers' running transactions.

    Raises BatchRefused if another run has paused the group, if workers own partitions and ``pause`` is false, or if
    open dead letters may block later records of their keys; TopicRecreated if a topic was created again; ConfigError if
    the pipeline's StartAt gives no first position; and the errors of a claim and of ``brokers``.
    """
    pipeline = source.pipeline
    scope = GroupConnection(tx.connection, tx.schema, pipeline.group)
    scope.execute(GROUPS["insert"], version=pipeline.version)
    group = scope.execute(GROUPS["lock"]).one()
    _keep_workers_away(scope, group, source, run, pause=pause)
    declaration = Declaration.of(pipeline.tables_by_topic(schema_translation(tx.connection.engine)))
    claimant = Claimant(pipeline.group, run, pipeline.version, brokers.cluster_id, brokers.ids, declaration)
    scope.execute(BATCH["set_paused"], paused=False)
    if needs_preparing(scope, claimant):
        prepare(scope, claimant, brokers.start)
    granted = claim_partitions(scope, claimant, partitions)
    scope.execute(BATCH["set_paused"], paused=True)
    for stop in recreated_topics(scope, claimant, [p for p in partitions if p not in granted]).values():
        raise stop
    require_no_held_keys(scope, pipeline, brokers.ids)
    return granted


def _keep_workers_away(
    scope: GroupConnection, group: Row[Any], source: PipelineSource, run: UUID, *, pause: bool
) -> None:
    if group.paused:
        paused_by = group.paused_by or ""
        if paused_by != pauser(run) and paused_by.startswith(PAUSER):
            other, pipeline = paused_by.removeprefix(PAUSER), source.name or "MODULE:NAME"
            why = (
                f"{paused_by} has paused group {group.name!r}: wait until it ends. If its driver has crashed, resume "
                f"it (`take_over(id)`, `seekpoint batch {pipeline} --resume {other}`) or end it "
                f"(`seekpoint reload abort {other} --reason WHY`)"
            )
            raise BatchRefused([why])
        return
    owners = scope.execute(BATCH["owners"]).all()
    if owners and not pause:
        shown = ", ".join(f"{str(row.owner)[:8]} (since {row.claimed_at:%F %T})" for row in owners)
        why = (
            f"workers own partitions of group {group.name!r}: {shown}. Stop them; or give --pause (pause=True), "
            "so that they wait while the batch runs; it is also needed if one crashed without releasing its partitions"
        )
        raise BatchRefused([why])
    reason = (
        f"a batch applies new records, driven by {this_driver()}. If that process has crashed: `seekpoint batch "
        f"{source.name or 'MODULE:NAME'} --resume {run}` resumes, `seekpoint reload abort {run} --reason WHY` ends it"
    )
    set_paused(scope, True, actor=pauser(run), reason=reason)


def require_no_held_keys(scope: GroupConnection, pipeline: Pipeline, ids: Mapping[str, UUID]) -> None:
    """Raise BatchRefused if open dead letters may block later records of their keys: only workers block those."""
    if not pipeline.keep_key_order:
        return
    count = scope.execute(BATCH["held_keys"], topic_ids=list(ids.values())).scalar_one()
    if count:
        why = (
            f"group {pipeline.group!r} has {count} open dead letters, and only workers can block later records of "
            "their keys: replay or discard them first (`seekpoint dead-letters`)"
        )
        raise BatchRefused([why])


def open_batch(
    tx: Tx, source: PipelineSource, brokers: Brokers, run: UUID, *, pause: bool, actor: str, reason: str
) -> Claims:
    """Claim the group's partitions and store the run with its ranges; returns no claims if there is nothing to read.

    Raises the errors of :func:`open_claims`, RangeLost if the log no longer has a position, and BatchRefused for a role
    that cannot create the run's schema.
    """
    group = GroupConnection(tx.connection, tx.schema, source.group).execute(GROUPS["lock"]).one_or_none()
    claims = open_claims(tx, source, brokers, run, brokers.partitions, pause=pause)
    ends = brokers.plan(claims)
    if all(ends[partition] == claim.next_offset for partition, claim in claims.items()):
        release_groups(tx.connection, tx.schema, run, [source.group], "nothing was new")
        return {}
    versions = [source.pipeline.version if group is None else group.version]
    insert_batch(tx, run, source, versions, "batch", actor=actor, reason=reason)
    kinds = Jsonb(declared(source.pipeline))  # as workers do, because resets must know which tables have sums
    scope = GroupConnection(tx.connection, tx.schema, source.group)
    scope.execute(STATUS["store_declared"], version=source.pipeline.version, declared=kinds)
    positions = []
    for partition, claim in claims.items():
        begin = claim.next_offset
        end, epoch = ends[partition], claim.epoch
        positions.append(StagedPosition(source.group, partition, claim.topic_id, begin, end, begin, epoch, resets=0))
    tx.add_positions(run, positions)
    return claims


def insert_batch(
    tx: Tx, run: UUID, source: PipelineSource, versions: Sequence[int], strategy: str, *, actor: str, reason: str
) -> None:
    """Insert the run's row. Raises BatchRefused for a role that cannot create the run's schema."""
    if reasons := of_rights(tx.connection):
        raise BatchRefused(reasons)
    tables, prefix = targets(tx.connection, [source]), prefix_of(tx.connection, "seekpoint_batch_")
    insert_run(tx, run, [source], tables, versions, strategy=strategy, prefix=prefix, actor=actor, reason=reason)


def stale(tx: Tx, run: UUID, claims: Claims) -> list[str]:
    """Return why the run cannot be resumed: its ranges no longer begin at the group's positions. Empty if it can."""
    return [
        f"{position.partition}: group {position.group!r} is now at offset {claims[position.partition].next_offset}, "
        f"but the batch began at {position.first_offset}: run another one"
        for position in tx.positions_of(run)
        if claims[position.partition].next_offset != position.first_offset
    ]


class Brokers:
    """Queries the brokers like a worker with this ``kafka`` mapping; ``ids`` are the topics' ids.

    Raises KafkaUnavailable if the brokers do not answer, and ConfigError for a missing topic or a mapping that no
    consumer accepts.
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
        ids = self._identity.ask(self._pipeline.topics).result()
        if gone := sorted(topic for topic, topic_id in ids.items() if topic_id is None):
            raise ConfigError(f"topic {gone[0]!r} was deleted a moment ago: create it, or correct topics=")
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}

    def start(self, topic: str) -> Mapping[Partition, int]:
        """The first positions in a topic that is new to the group, according to the pipeline's StartAt."""
        return self._readable.resolve(topic, self._pipeline.start, self._pipeline.group)

    def log_start(self, partition: Partition) -> int:
        """The log start offset."""
        return self._readable.starts([partition])[partition].offset

    def ends(self) -> dict[Partition, int]:
        """The end offsets."""
        return {partition: edge.offset for partition, edge in self._readable.ends(self.partitions).items()}

    def plan(
        self, claims: Mapping[Partition, Claim], last: Mapping[Partition, int] | None = None
    ) -> dict[Partition, int]:
        """The end of each partition's range, at most ``last``; equals the start if nothing is new.

        Raises RangeLost if the log no longer has the claimed position.
        """
        group = self._pipeline.group
        ends = {partition: edge.offset for partition, edge in self._readable.ends(claims).items()}
        if last is not None:
            ends = {partition: min(end, last[partition]) for partition, end in ends.items()}
        starts, written = self._readable.starts(claims), self._written.ends(claims)
        for partition, claim in claims.items():
            if (first := starts[partition].offset) > claim.next_offset:
                raise RangeLost(
                    partition,
                    claim.next_offset,
                    f"retention has passed it: the first offset left is {first}. "
                    f"{remedies.accept_lost(group, partition)} "
                    "skips the records in between and stores them as a lost range; then run the batch again",
                )
            if claim.next_offset > (end := written[partition].offset):
                raise RangeLost(
                    partition,
                    claim.next_offset,
                    f"it is past the end of the log ({end}): the log was truncated, or belongs to other brokers. "
                    "Check bootstrap.servers; if the log was truncated, "
                    f"{remedies.accept_lost(group, partition)} continues there",
                )
        ranges = [
            Range(partition, claim.topic_id, claim.next_offset, max(claim.next_offset, ends[partition]))
            for partition, claim in claims.items()
        ]
        planned = {range_.partition: range_.end for range_ in first_records(ranges, self._max_records)}
        return {partition: planned.get(partition, claim.next_offset) for partition, claim in claims.items()}
