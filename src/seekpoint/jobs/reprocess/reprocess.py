"""``Reprocess``: plans and applies a bounded range of one partition again, which leaves the live position alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import URL, Engine, Row

from seekpoint.admin.groups import known_group, within
from seekpoint.errors import ClusterChanged, ConfigError, ReprocessRefused
from seekpoint.jobs.reprocess.apply_range import Progress, RangeRun
from seekpoint.jobs.reprocess.plan import (
    ReprocessPlan,
    consequences,
    last_run,
    require_not_done,
    require_old_values,
    require_range,
    require_version,
)
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.range_checks import ASK, RangeChecks
from seekpoint.kafka.ranges import Range
from seekpoint.ledger import Ledger, Position
from seekpoint.ledger.admin_actions import operator, record_action, required
from seekpoint.ledger.positions import positions_of
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, REPROCESS
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.records import Partition, storable
from seekpoint.worker.import_by_name import load_pipeline
from seekpoint.worker.replay.preconditions import check_group

MOST = 100  # dead letters that a result lists


@dataclass(frozen=True, slots=True)
class RunDeadLetter:
    """A record that a run could not apply; the ledger has it whole."""

    offset: int
    key: bytes | None
    state: str
    cause: str
    error: str
    sqlstate: str | None


@dataclass(frozen=True, slots=True)
class Reprocessed:
    """What a run has done, from its first transaction on.

    ``records`` were applied, ``dead_letters`` could not be; ``failures`` lists the first 100 of these.
    """

    run: UUID
    group: str
    topic: str
    partition: int
    from_offset: int
    to_offset: int
    records: int
    dead_letters: int
    failures: tuple[RunDeadLetter, ...]


class Reprocess:
    """Applies a bounded range of a partition by its pipeline again, beside its workers; the live position stays.

    ``pipeline`` is a Pipeline or its name, ``kafka`` librdkafka's configuration; ``progress`` is called with what is
    done, how many offsets, and of how many. Records are applied as a worker applies them, in transactions of about half
    a second that also store the run's position: a run that was killed resumes there, and writes nothing twice. A record
    that fails becomes a dead letter of the run, at its first attempt. Records of open dead letters of the group are
    left out.
    """

    def __init__(
        self,
        pipeline: Pipeline | str,
        engine: Engine | URL | str,
        kafka: Mapping[str, Any],
        *,
        schema: str = DEFAULT_SCHEMA,
        limits: Limits | None = None,
        actor: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.pipeline = load_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
        self.ledger = Ledger(engine, self.pipeline.group, schema=schema, version=self.pipeline.version, limits=limits)
        self.actor = operator(actor)
        self._kafka, self._progress = dict(kafka), progress or (lambda *_: None)

    def plan(
        self,
        partition: Partition | tuple[str, int],
        from_offset: int,
        to_offset: int,
        *,
        accept_old_values: bool = False,
        restart: bool = False,
    ) -> ReprocessPlan:
        """A plan to apply ``[from_offset, to_offset)`` again; writes nothing.

        ``accept_old_values`` permits what may put older values into the tables: an Upsert without ``offset_column=``,
        and a handler. An open run over the same range is resumed, and one that is done is refused, unless ``restart``.

        Raises ReprocessRefused unless log start <= from < to <= the group's position, for a range that a run has
        applied, and for what may write older values; ConfigError for an unknown partition; HandlerOutdated,
        GroupPaused; ClusterChanged, TopicRecreated, KafkaUnavailable.
        """
        at = Partition(*partition)
        if at.topic not in self.pipeline.codecs:
            raise ConfigError(f"{self.pipeline!r} does not read {at.topic!r}")
        with self.ledger.begin() as tx:
            group = known_group(tx)
        found = within(self.ledger.group, self.ledger.read(), {at.topic: [at.number]})[at]
        whole = Range(at, found.topic_id, from_offset, max(from_offset, to_offset))
        log_start = self._log_start(group, found)
        require_range(from_offset, to_offset, found.next_offset, min(from_offset, log_start), at)
        self._require(group, accept_old_values=accept_old_values, topic=at.topic)
        with self.ledger.begin() as tx:
            last = last_run(tx, whole)
            require_not_done(last, restart=restart)
            is_resumed = last is not None and last.state == "open" and not restart
            begin = from_offset
            if last is not None and is_resumed:
                require_version(last, self.pipeline)
                begin = last.next_offset
            require_range(begin, to_offset, found.next_offset, log_start, at)
            said = consequences(tx, self.pipeline, found, replace(whole, start=begin))
            if last is not None and last.state == "open" and restart:
                said = (*said, f"run {last.id} is abandoned at offset {last.next_offset}: its rows stay")
        return ReprocessPlan(
            group=self.ledger.group,
            topic=at.topic,
            partition=at.number,
            topic_id=found.topic_id,
            from_offset=from_offset,
            to_offset=to_offset,
            next_offset=begin,
            position=found.next_offset,
            log_start=log_start,
            run=last.id if last is not None and is_resumed else uuid4(),
            is_resumed=is_resumed,
            last_run=None if last is None else last.id,
            consequences=said,
            accept_old_values=accept_old_values,
        )

    def apply(self, plan: ReprocessPlan, *, reason: str) -> Reprocessed:
        """Carry out a plan; apply the same one again to resume after an error. One that is done is not applied again.

        Raises ReprocessRefused where another run over this range was begun since the plan was made. Else it raises as
        :meth:`plan`, where things have changed since, also in the middle: what was committed stays, and the run stays
        open. ConfigError without a reason.
        """
        required("reason", reason)
        if plan.group != self.ledger.group:
            raise ConfigError(f"the plan is for group {plan.group!r}, the pipeline's is {self.ledger.group!r}")
        with self.ledger.begin(lock_wait=self.ledger.limits.transaction_age) as tx:
            group = tx.execute(GROUPS["share"]).one()
            self._require(group, accept_old_values=plan.accept_old_values, topic=plan.topic)
            run = self._open(tx, plan, reason)
        if run.state == "open":
            with RangeRun(self.ledger, self.pipeline, self._kafka, run) as work:
                work.apply(self._progress)
        return self._result(run.id)

    def _open(self, tx: GroupConnection, plan: ReprocessPlan, reason: str) -> Row[Any]:
        """The run to work on, resumed or new. Locks the partition's row first, so that two do not open the same."""
        found = positions_of(tx, [plan.at], locked=True).get(plan.at)
        if found is None or found.topic_id != plan.topic_id:
            raise ReprocessRefused([f"{plan.at} is not the partition of the plan any more: make another plan"])
        last = last_run(tx, plan.range)
        if last is not None and last.id == plan.run:
            require_version(last, self.pipeline)
            return last
        if (None if last is None else last.id) != plan.last_run:
            raise ReprocessRefused([f"another run over {plan.range} was begun since the plan was made: look again"])
        require_range(plan.from_offset, plan.to_offset, found.next_offset, plan.log_start, plan.at)
        if last is not None:
            tx.execute(REPROCESS["abandon_run"], run=last.id)  # restart; one that is done stays so
        return self._insert(tx, plan, reason)

    def _insert(self, tx: GroupConnection, plan: ReprocessPlan, reason: str) -> Row[Any]:
        run, said = plan.run, storable(reason)
        tx.execute(
            REPROCESS["insert_run"],
            id=run,
            topic=plan.topic,
            partition=plan.partition,
            topic_id=plan.topic_id,
            from_offset=plan.from_offset,
            to_offset=plan.to_offset,
            next_offset=plan.from_offset,
            version=self.pipeline.version,
            actor=self.actor,
            reason=said,
        )
        span = {"partition": plan.at, "from_offset": plan.from_offset, "to_offset": plan.to_offset}
        record_action(tx, "reprocess", actor=self.actor, reason=f"run {run}: {said}", **span)  # type: ignore[arg-type]
        return tx.execute(REPROCESS["get_run"], run=run).one()

    def _require(self, group: Row[Any], *, accept_old_values: bool, topic: str) -> None:
        """Raise unless the tables may be written."""
        check_group(group, self.pipeline, while_paused=False)
        if not accept_old_values:
            require_old_values(self.pipeline, topic)

    def _log_start(self, group: Row[Any], found: Position) -> int:
        """The first offset that the log still has. Raises unless cluster and topic are the group's."""
        checks = RangeChecks(self._kafka)
        cluster = Identity(checks.config, ASK).cluster_id()
        if group.cluster_id not in {None, cluster}:
            raise ClusterChanged(
                f"the brokers belong to cluster {cluster}, the positions of group {self.ledger.group!r} to "
                f"{group.cluster_id}: name the brokers of that cluster"
            )
        at = found.partition
        checks.check(checks.ask([at.topic]), at, found.topic_id, found.next_offset)
        return checks.readable.starts([at])[at].offset

    def _result(self, run: UUID) -> Reprocessed:
        with self.ledger.begin() as tx:
            row = tx.execute(REPROCESS["get_run"], run=run).one()
            dead = tx.execute(REPROCESS["run_dead_letters"], run=run, most=MOST).all()
        failures = tuple(RunDeadLetter(*tuple(each)) for each in dead)
        span = (row.topic, row.partition, row.from_offset, row.to_offset)
        return Reprocessed(run, row.consumer_group, *span, row.records, row.dead_letters, failures)
