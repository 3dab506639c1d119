"""A batch from its opening to its last transaction; a driver that takes the run over resumes it where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import (
    BatchRefused,
    ConfigError,
    Fenced,
    RangeLost,
    ReloadOver,
    ReloadRefused,
    TooManyDeadLetters,
    TopicRecreated,
)
from seekpoint.jobs.batch.dedupe import fold
from seekpoint.jobs.batch.open import Brokers, Claims, open_batch, open_claims, stale
from seekpoint.jobs.batch.publish import publish, totals
from seekpoint.jobs.batch.reprocess import RunDeadLetter, open_range, require_no_repeats
from seekpoint.jobs.manage_runs import Runs
from seekpoint.jobs.reload import LocalStager, Stager
from seekpoint.jobs.run import Driver, Progress, Run, Step, run_of, this_driver, transaction
from seekpoint.jobs.staging.consolidate import RANGE, check_topics, require_width, stage_missing
from seekpoint.jobs.staging.stage import begin_staging, require_code
from seekpoint.jobs.tables.targets import sources
from seekpoint.kafka.first_records import require_max_records
from seekpoint.ledger import Ledger
from seekpoint.ledger.admin_actions import operator, required
from seekpoint.ledger.positions import Position
from seekpoint.ledger.schema_revision import check
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.ledger.tables import BATCHES, DEFAULT_SCHEMA
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import connection_lost, is_data_error
from seekpoint.records import Partition, one_line
from seekpoint.worker.import_by_name import load_pipeline
from seekpoint.worker.replay.dead_letter_admin import portable_value

ENDS_RUN = (BatchRefused, RangeLost, TopicRecreated, TooManyDeadLetters)  # what no other driver would get over
ROUNDS = 3  # of staging; what is missing then is not to be had


@dataclass(frozen=True, slots=True)
class BatchDone:
    """What a batch applied. ``run`` is its id; None where nothing was new, and nothing was touched.

    ``records`` were passed, ``dead_letters`` of them dead-lettered; ``rows`` were made for each table, of an Upsert
    more than it has changed: several of one key are deduplicated. ``offsets``: ``topic/partition`` to the next offset.
    ``failures`` are the first 100 dead letters of a reprocess, whose dead letters are its own.
    """

    run: UUID | None
    records: int
    rows: Mapping[str, int]
    offsets: Mapping[str, int]
    dead_letters: int
    failures: tuple[RunDeadLetter, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to do."""
        return self.run is None

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        failures = [asdict(failure) | {"key": portable_value(failure.key)} for failure in self.failures]
        run = None if self.run is None else str(self.run)
        return asdict(self) | {"run": run, "is_empty": self.is_empty, "failures": failures}


class BatchJob:
    """Applies what is new in a pipeline's topics as one job: from the stored offsets to the stable ends of the log.

    What a worker's one long transaction would write, and no more: rows, dead letters and offsets become visible
    together. ``pipeline`` is an object or ``module:name``, with sinks alone; ``kafka`` is the workers' own
    configuration. ``stager`` says who reads the log (by default this process). While it runs the group is paused in its
    name, so that workers wait; they resume from the new offsets. ``max_records`` is how many offsets a new batch passes
    at most, shared by its partitions: the next one begins there. Making one does no I/O.
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
        _require_sinks_alone(self.pipeline)
        require_width(range_records)
        require_max_records(max_records)
        (source,) = sources([self.pipeline])  # as it was loaded: a function would make another one
        self.source = replace(source, name=pipeline if isinstance(pipeline, str) else "")
        self.engine, self.kafka, self.schema = postgres_engine(engine), dict(kafka), schema
        self.limits, self.actor = limits or Limits(), operator(actor)
        self.runs = Runs(self.engine, schema, self.limits)
        self._stager = stager or LocalStager(self.engine, schema, self.kafka, [self.source])
        self._range_records, self._max_records = range_records, max_records
        self._progress = progress or (lambda *_: None)

    def run(self, *, reason: str = "batch", pause: bool = False) -> BatchDone:
        """Apply everything that can be read now. Where nothing is new, nothing is written and no worker is disturbed.

        ``pause`` stops running workers before their next commit; they resume afterwards. Without it a group
        that has workers is refused. ``reason`` is kept on record.

        Raises BatchRefused with its reasons, TopicRecreated, RangeLost, TooManyDeadLetters (then nothing is written and
        the workers resume), ReloadOver, and what a claim raises. Any other error ends the run, too, where nothing was
        staged yet. Later, as where database or brokers are away, the run stays open and its group paused. In each case
        the error's note names the run, for :meth:`take_over`, or ``Runs.abort``.
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
                    f"it is unknown whether batch {run} was opened: where `seekpoint reload status {run}` knows it, "
                    f"group {self.source.group!r} is paused for it: {self._how_to_go_on(run)}"
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
        """Apply ``[from_offset, to_offset)`` of a partition again, while workers run; the group's position stays.

        An open run over the same range is resumed, and a range that a run has applied is refused, unless ``restart``.
        ``accept_repeats`` permits what leaves tables other than they are: rows that come twice (Append), older values
        (an Upsert that does not know which row is newer), a deleted row that is inserted again. A record that fails
        becomes a dead letter of the run. Records of the group's dead letters and lost ranges are left out.

        Raises BatchRefused unless log start <= from < to <= the group's position, and as said above; ConfigError for
        an unknown partition and without a reason; HandlerOutdated, GroupPaused, ClusterChanged; else as :meth:`run`.
        """
        required("reason", reason)
        at = Partition(*partition)
        if at.topic not in self.pipeline.codecs:
            raise ConfigError(f"{self.pipeline!r} does not read {at.topic!r}")
        if not accept_repeats:
            require_no_repeats(self.pipeline, at.topic)
        brokers = Brokers(self.kafka, self.pipeline, self.limits.kafka_timeout)
        with transaction(self.engine, self.schema, lock_wait=self.limits.transaction_age) as tx:
            check(tx.connection, self.schema)
            run = open_range(
                tx, self.source, brokers, (at, from_offset, to_offset), uuid4(), restart=restart, actor=self.actor,
                reason=reason,
            )  # fmt: skip
        return self.take_over(run)

    def take_over(self, run: UUID, *, pause: bool = False) -> BatchDone:
        """Resume an open batch where it is; its driver before, if it is alive, fails at its next step.

        Raises as :meth:`run` does; BatchRefused, too, where workers have advanced the group since: that run is ended,
        and nothing of it is written. ConfigError where this pipeline is not the run's: then it has not changed hands.
        """
        if (found := self.runs.get(run)).is_open:
            self._require_its_code(found)
        brokers: Brokers | None = None
        claims: Claims = {}
        if found.strategy == "batch":  # a reprocess claims nothing
            brokers = Brokers(self.kafka, self.pipeline, self.limits.kafka_timeout)
        with transaction(self.engine, self.schema, lock_wait=self.limits.transaction_age) as tx:
            row = tx.execute(RELOAD_RUN["take_over"], run=run, driver=this_driver()).one_or_none()
            if row is None:
                raise ReloadOver(f"batch {run} is {found.state}: run another one")
            if brokers is not None:
                planned = [at.partition for at in tx.positions_of(run)]
                claims = open_claims(tx, self.source, brokers, run, planned, pause=pause)
            driver = Driver(self.engine, self.schema, run_of(row), self.limits)
            reasons = stale(tx, run, claims) if claims else []
        with self._ending(driver):
            if reasons:
                raise BatchRefused(reasons)
        return self._drive(driver, claims)

    def _drive(self, driver: Driver, claims: Claims) -> BatchDone:
        with self._ending(driver):
            if driver.run.state == "opened":
                begin_staging(driver, [self.source])
            for _ in range(ROUNDS):
                if driver.run.state == "staging":
                    # Tasks import the pipeline by the name that it has here: the driver before may not have named it.
                    named = replace(driver.run, pipelines=(self.source.name,))
                    stage_missing(driver, self._stager, self._range_records, self._progress, run=named)
                    check_topics(self.kafka, driver)
                    fold(driver, self.source)
            if driver.run.state == "staging":
                raise BatchRefused(
                    ["ranges are missing whenever they are staged: leave it to one driver, run another one"]
                )
            publish(driver, self.source, claims)
        try:
            with transaction(self.engine, self.schema) as tx:
                done = BatchDone(driver.run.id, **totals(Step(tx, driver.run), self.source))
            self.runs.drop(driver.run.id)
        except Exception as error:
            error.add_note(
                f"batch {driver.run.id} is applied, whole: nothing is to be done again. What it "
                "staged is dropped by `Runs.sweep`, or `seekpoint reload sweep`"
            )
            raise
        return done

    def _nothing_new(self, brokers: Brokers) -> BatchDone | None:
        """Asked without any lock: a group that has read everything is left alone. Raises SchemaMismatch."""
        with transaction(self.engine, self.schema) as tx:
            check(tx.connection, self.schema)
        stored = {at.partition: (at.topic_id, at.next_offset) for at in self._positions()}
        ends = {at: (brokers.ids[at.topic], end) for at, end in brokers.ends().items()}
        return self._done_nothing() if ends.items() <= stored.items() else None

    def _positions(self) -> list[Position]:
        return Ledger(self.engine, self.source.group, schema=self.schema).read()

    def _done_nothing(self) -> BatchDone:
        return BatchDone(None, 0, {}, {str(at.partition): at.next_offset for at in self._positions()}, 0)

    def _require_its_code(self, run: Run) -> None:
        if run.strategy not in BATCHES:
            raise ConfigError(f"{run.id} is a reload: `Reload.take_over`, or `seekpoint reload run --resume {run.id}`")
        with transaction(self.engine, self.schema) as tx:
            require_code(tx, run, [self.source])
            topics = {at.partition.topic for at in tx.positions_of(run.id)}
        if strange := sorted(topics - set(self.pipeline.topics)):
            raise ConfigError(
                f"{run.kind} {run.id} reads {', '.join(strange)}, and this pipeline does not: take it with its own "
                "code, or abort it"
            )

    def _how_to_go_on(self, run: UUID) -> str:
        return (
            f"resume it (`take_over`, `seekpoint batch {self.source.name or 'MODULE:NAME'} --resume {run}`), or "
            f"end it (`seekpoint reload abort {run} --reason WHY`)"
        )

    @contextmanager
    def _ending(self, driver: Driver) -> Iterator[None]:
        """What no driver could get over ends the run, gives the group back, and nothing is written."""

        try:
            with driver.ending(ENDS_RUN, _refusal):
                yield
        except ReloadOver:  # another driver has the run, or it has ended: the message says so
            raise
        except Exception as error:
            if driver.run.is_open:
                error.add_note(self._end_if_unstaged(driver, error))
            raise

    def _end_if_unstaged(self, driver: Driver, error: Exception) -> str:
        """End a run of which nothing is staged: there is nothing that another driver could resume. Returns a note."""
        run, group = driver.run.id, self.source.group
        try:
            with transaction(self.engine, self.schema) as tx:
                is_staged = tx.execute(RELOAD_RUN["staged"], run=run).first() is not None
            if not is_staged:
                driver.fail(error)
        except (DBAPIError, psycopg.Error):  # the database is away: the run is as it was, and its error is raised
            is_staged = True
        if is_staged or driver.run.is_open:
            paused = f", and group {group!r} paused for it" if driver.run.strategy == "batch" else ""
            return f"batch {run} is open still{paused}: {self._how_to_go_on(run)}"
        with suppress(DBAPIError, psycopg.Error):  # a later sweep drops its schema
            self.runs.drop(run)
        return f"batch {run} has ended: nothing was staged, nothing is written; group {group!r} is not paused for it"


def _refusal(error: Exception) -> BatchRefused | None:
    """The error that ends the batch; None for one that the next driver of the run may not meet."""
    if isinstance(error, ReloadRefused):
        return BatchRefused(error.reasons)
    if isinstance(error, Fenced):
        why = (
            "a worker or an operator has claimed the group's partitions, reset them or resumed the group since this "
            f"batch claimed them ({error.reason}): nothing of it is written; run another one"
        )
        return BatchRefused([why])
    if is_data_error(error):
        why = (
            f"the database refuses a row that could be staged: {one_line(error)}. A worker finds out which record "
            "it is of: let one run over it, then continue with batches; a range that was applied before is applied "
            "again without that record"
        )
        return BatchRefused([why])
    return None


def _require_sinks_alone(pipeline: Pipeline) -> None:
    if pipeline.handle is not None:
        raise ConfigError(
            f"{pipeline!r} has a handler, whose SQL would write the live tables before the batch is done: handlers run "
            "in workers; a batch takes sinks"
        )
    if pipeline.delay is not None:
        raise ConfigError(f"{pipeline!r} has a delay=: a batch applies what is there at once; let workers wait for it")
