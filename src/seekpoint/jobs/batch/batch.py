"""Carries out a batch from its opening to its last transaction; another driver can take it over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import (
    BatchRefused,
    ConfigError,
    ReloadOver,
)
from seekpoint.jobs.batch.open import Brokers, Claims, open_batch, open_claims, stale
from seekpoint.jobs.batch.reprocess import open_range, require_no_repeats
from seekpoint.jobs.batch.steps import ENDS_RUN, BatchDone, BatchSteps, refusal
from seekpoint.jobs.reload import LocalStager, Stager
from seekpoint.jobs.staging.consolidate import RANGE, require_width
from seekpoint.jobs.staging.stage import require_code
from seekpoint.jobs.tables.targets import sources
from seekpoint.kafka.first_records import require_max_records
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import operator, required
from seekpoint.ledger.positions import Position
from seekpoint.ledger.schema_revision import check
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.ledger.tables import BATCHES, DEFAULT_SCHEMA
from seekpoint.pipeline.frames import require_no_frames
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import connection_lost
from seekpoint.records import Partition
from seekpoint.runs.manage_runs import Runs
from seekpoint.runs.run import Driver, Progress, Run, run_of, this_driver, transaction
from seekpoint.sinks.check_values import check_values
from seekpoint.worker.engine_checks import require_untranslated_sinks
from seekpoint.worker.import_by_name import load_pipeline


class BatchJob:
    """Applies the new records of a pipeline's topics as one job: from the stored offsets to the end offsets.

    Rows, dead letters and offsets become visible together, as after one long transaction of a worker. ``pipeline`` is
    an object or ``module:name``, with sinks and without a handler; ``kafka`` is the workers' configuration. ``stager``
    reads the log (by default in this process). The batch pauses the group while it runs; workers then resume at the new
    offsets. ``max_records`` limits the number of offsets of a new batch, over all partitions. The constructor does no
    I/O.
    """

    def __init__(
        self,
        pipeline: Pipeline | str,
        engine: Engine | URL | str,
        kafka: Mapping[str, Any],
        *,
        schema: str = DEFAULT_SCHEMA,
        stager: Stager | None = None,
        limits: Limits | None = None,
        actor: str | None = None,
        range_records: int = RANGE,
        max_records: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.pipeline = load_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
        require_no_frames(self.pipeline)
        _require_sinks_alone(self.pipeline.taken())
        require_untranslated_sinks(self.pipeline.sinks, engine)
        require_width(range_records)
        require_max_records(max_records)
        # Load it only once: the name may be of a function that returns a new pipeline.
        (source,) = sources([self.pipeline])
        self.source = replace(source, name=pipeline if isinstance(pipeline, str) else "")
        self.engine, self.kafka, self.schema = postgres_engine(engine), dict(kafka), schema
        self.limits, self.actor = limits or Limits(), operator(actor)
        self.runs = Runs(self.engine, schema, self.limits)
        self._max_records = max_records
        self._steps = BatchSteps(
            self.source,
            self.kafka,
            stager or LocalStager(self.engine, schema, self.kafka, [self.source]),
            range_records=range_records,
            progress=progress or (lambda *_: None),
        )

    def run(self, *, reason: str = "batch", pause: bool = False) -> BatchDone:
        """Apply everything that can be read now. Without new records, nothing is written and workers are not paused.

        ``pause`` stops running workers before their next commit; they resume afterwards. Without it, a group with
        workers is refused. ``reason`` is stored with the run.

        After BatchRefused, TopicRecreated, RangeLost or TooManyDeadLetters nothing is written and the workers resume.
        Also raises ReloadOver if the run has ended or another driver has taken it over, and the errors of a claim. Any
        other error also ends the run if nothing was staged yet. Otherwise, or if the database does not answer, the run
        stays open and its group paused; a note on the error names the run, for :meth:`take_over` or ``Runs.abort``.
        """
        brokers = Brokers(self.kafka, self.pipeline, self.limits.kafka_timeout, self._max_records)
        if (nothing := self._nothing_new(brokers)) is not None:
            return nothing
        run = uuid4()
        try:
            with transaction(self.engine, self.schema, lock_wait=self.limits.transaction_age) as tx:
                claims = open_batch(tx, self.source, brokers, run, pause=pause, actor=self.actor, reason=reason)
                row = tx.execute(RELOAD_RUN["get_run"], run=run).one_or_none()
        except (DBAPIError, psycopg.Error) as error:
            if connection_lost(error):
                error.add_note(
                    f"it is unknown whether batch {run} was opened. If `seekpoint reload status {run}` finds it, "
                    f"it has paused group {self.source.group!r}: {self._how_to_go_on(run)}"
                )
            raise
        if row is None:
            return self._done_nothing()
        return self._drive(Driver(self.engine, self.schema, run_of(row), self.limits), claims)

    def reprocess(
        self,
        partition: Partition | tuple[str, int],
        from_offset: int,
        to_offset: int,
        *,
        reason: str,
        accept_repeats: bool = False,
        restart: bool = False,
    ) -> BatchDone:
        """Apply ``[from_offset, to_offset)`` of a partition again, while workers run; does not move the group's
        position.

        Without ``restart``, an open run over the same range is resumed, and a range that a run has applied is refused.
        ``accept_repeats`` permits changes by repeated records: duplicate rows (Append), older values (an Upsert that
        cannot tell which row is newer), and inserts of rows that later records deleted. A record that fails becomes a
        dead letter of the run. Omits the records of the group's dead letters and lost ranges.

        Raises BatchRefused for a refused range or change, and unless log start <= from < to <= the group's position;
        ConfigError for an unknown partition or a blank ``reason``; HandlerOutdated if the group is at a newer handler
        version, GroupPaused if it is paused, ClusterChanged if the brokers belong to another cluster; and the errors of
        :meth:`run`.
        """
        required("reason", reason)
        partition = Partition(*partition)
        if partition.topic not in self.pipeline.codecs:
            raise ConfigError(f"{self.pipeline!r} does not read {partition.topic!r}")
        require_no_repeats(self.pipeline, partition.topic, accepted=accept_repeats)
        brokers = Brokers(self.kafka, self.pipeline, self.limits.kafka_timeout)
        self._check()
        with transaction(self.engine, self.schema, lock_wait=self.limits.transaction_age) as tx:
            run = open_range(
                tx, self.source, brokers, (partition, from_offset, to_offset), uuid4(), restart=restart,
                actor=self.actor, reason=reason,
            )  # fmt: skip
        return self.take_over(run)

    def take_over(self, run: UUID, *, pause: bool = False) -> BatchDone:
        """Resume an open batch in its present state; its previous driver, if still alive, fails at its next step.

        Raises the errors of :meth:`run`; BatchRefused if workers have advanced the group after the batch was opened,
        which ends the run with nothing written; and ConfigError, without a change of drivers, for another pipeline's
        run.
        """
        if (batch := self.runs.get(run)).is_open:
            self._require_its_code(batch)
            self._check()
        brokers: Brokers | None = None
        claims: Claims = {}
        if batch.strategy == "batch":  # a reprocess claims nothing
            brokers = Brokers(self.kafka, self.pipeline, self.limits.kafka_timeout)
        with transaction(self.engine, self.schema, lock_wait=self.limits.transaction_age) as tx:
            row = tx.execute(RELOAD_RUN["take_over"], run=run, driver=this_driver()).one_or_none()
            if row is None:
                raise ReloadOver(f"batch {run} is {self.runs.get(run).state}: run another one")
            if brokers is not None:
                planned = [position.partition for position in tx.positions_of(run)]
                claims = open_claims(tx, self.source, brokers, run, planned, pause=pause)
            driver = Driver(self.engine, self.schema, run_of(row), self.limits)
            reasons = stale(tx, run, claims) if claims else []
        with self._ending(driver):
            if reasons:
                raise BatchRefused(reasons)
        return self._drive(driver, claims)

    def _drive(self, driver: Driver, claims: Claims) -> BatchDone:
        with self._ending(driver):
            self._steps.publish(driver, claims)
        return self._steps.end(driver)

    def _check(self) -> None:
        """Raise SchemaMismatch, or ConfigError for a field that its column cannot hold; waits for no lock."""
        with transaction(self.engine, self.schema) as tx:
            check(tx.connection, self.schema)
            check_values(tx.connection, self.pipeline)

    def _nothing_new(self, brokers: Brokers) -> BatchDone | None:
        """The empty result if the group has applied everything, otherwise None; takes no lock."""
        self._check()
        stored = {position.partition: (position.topic_id, position.next_offset) for position in self._positions()}
        ends = {partition: (brokers.ids[partition.topic], end) for partition, end in brokers.ends().items()}
        return self._done_nothing() if ends.items() <= stored.items() else None

    def _positions(self) -> list[Position]:
        return GroupLedger(self.engine, self.source.group, schema=self.schema).read()

    def _done_nothing(self) -> BatchDone:
        offsets = {str(position.partition): position.next_offset for position in self._positions()}
        return BatchDone(None, 0, {}, offsets, 0)

    def _require_its_code(self, run: Run) -> None:
        if run.strategy not in BATCHES:
            raise ConfigError(
                f"{run.id} is a reload: use `Reload.take_over` or `seekpoint reload run --resume {run.id}`"
            )
        with transaction(self.engine, self.schema) as tx:
            require_code(tx, run, [self.source])
            topics = {position.partition.topic for position in tx.positions_of(run.id)}
        if strange := sorted(topics - set(self.pipeline.topics)):
            raise ConfigError(
                f"{run.kind} {run.id} reads {', '.join(strange)}, and this pipeline does not: resume it with the code "
                "that opened it, or abort it"
            )

    def _how_to_go_on(self, run: UUID) -> str:
        return (
            f"resume it (`take_over`, `seekpoint batch {self.source.name or 'MODULE:NAME'} --resume {run}`), or "
            f"end it (`seekpoint reload abort {run} --reason WHY`)"
        )

    @contextmanager
    def _ending(self, driver: Driver) -> Iterator[None]:
        """End the run and release the group, after an error that every driver would get, or if nothing is staged."""

        try:
            with driver.ending(ENDS_RUN, refusal):
                yield
        except ReloadOver:  # the run has ended, or another driver has taken it over
            raise
        except Exception as error:
            if driver.run.is_open:
                error.add_note(self._end_if_unstaged(driver, error))
            raise

    def _end_if_unstaged(self, driver: Driver, error: Exception) -> str:
        """End a run that has staged nothing, because there is nothing to resume. Returns a note for the error."""
        run, group = driver.run.id, self.source.group
        try:
            with transaction(self.engine, self.schema) as tx:
                is_staged = tx.execute(RELOAD_RUN["staged"], run=run).first() is not None
            if not is_staged:
                driver.fail(error)
        except (DBAPIError, psycopg.Error):  # the database is unavailable: leave the run open and raise the first error
            is_staged = True
        if is_staged or driver.run.is_open:
            paused = f", and group {group!r} paused for it" if driver.run.strategy == "batch" else ""
            return f"batch {run} is still open{paused}: {self._how_to_go_on(run)}"
        with suppress(DBAPIError, psycopg.Error):  # a later sweep drops the run's schema
            self.runs.drop(run)
        return f"batch {run} has ended: nothing was staged or written, and group {group!r} is not paused for it"


def _require_sinks_alone(pipeline: Pipeline) -> None:
    if pipeline.handle is not None:
        raise ConfigError(
            f"{pipeline!r} has a handler, whose SQL would write to the live tables before the batch is complete: "
            "use sinks, or let workers run the handler"
        )
    if pipeline.delay is not None:
        raise ConfigError(f"{pipeline!r} has delay=, and a batch applies records without delay: let workers apply them")
