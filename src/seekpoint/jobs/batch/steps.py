"""The steps of an open batch: stage, check, dedupe, publish. The caller provides stager and claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from seekpoint.errors import BatchRefused, Fenced, RangeLost, ReloadRefused, TooManyDeadLetters, TopicRecreated
from seekpoint.jobs.batch.dedupe import fold
from seekpoint.jobs.batch.open import Claims
from seekpoint.jobs.batch.publish import publish, totals
from seekpoint.jobs.batch.reprocess import RunDeadLetter
from seekpoint.jobs.staging.consolidate import RANGE, check_topics, stage_missing
from seekpoint.jobs.staging.stage import Stager, begin_staging
from seekpoint.jobs.staging.staged_rows import RowsOf, StagedRows
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.kafka.range_checks import end_epochs
from seekpoint.postgres.sqlstates import is_data_error
from seekpoint.records import Partition, one_line
from seekpoint.runs.manage_runs import Runs
from seekpoint.runs.run import Driver, Progress, Step, transaction
from seekpoint.worker.replay.group_dead_letters import portable_value

ENDS_RUN = (BatchRefused, RangeLost, TopicRecreated, TooManyDeadLetters)  # errors that would recur with another driver
ROUNDS = 3  # attempts to stage missing ranges before the batch gives up


@dataclass(frozen=True, slots=True)
class BatchDone:
    """The result of a batch. ``run`` is its id; None if nothing was new and nothing was changed.

    ``records`` is how many records the positions moved past, ``dead_letters`` how many of them were dead-lettered.
    ``rows`` counts the records' rows by table, before an Upsert dedupes them by key. ``offsets`` maps
    ``topic/partition`` to the next offset. ``failures`` are the first 100 dead letters of a reprocess, which belong to
    the run, not to the group.
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


@dataclass(frozen=True, slots=True)
class BatchSteps:
    """The steps of a batch after its opening. ``rows_of`` finds the rows that ``stager`` has staged.

    ``is_recorded``: each range becomes a row of admin_action. ``leader_epochs`` are those of the log's ends, from
    before the rows were read; None: ask the brokers before the first range is staged.
    """

    source: PipelineSource
    kafka: Mapping[str, Any]
    stager: Stager
    range_records: int = RANGE
    progress: Progress = lambda *_: None
    rows_of: RowsOf = StagedRows
    is_recorded: bool = True
    leader_epochs: Mapping[Partition, int | None] | None = None

    def publish(self, driver: Driver, claims: Claims) -> None:
        """Stage the missing ranges, dedupe, and publish rows and offsets together; continues from the run's present
        state.

        Raises BatchRefused if ranges are missing after three attempts, or if open dead letters may block later records
        of their keys; the errors of staging; Fenced if a partition was claimed or reset since ``claims``; and
        ReloadOver if the run has ended or another driver has taken it over.
        """
        # Also ask for a run that another driver has begun: then a rewrite of the log after that driver's reads stays
        # unnoticed, as without an epoch, but a later one is noticed.
        leader_epochs = end_epochs(self.kafka, claims) if self.leader_epochs is None else self.leader_epochs
        if driver.run.state == "opened":
            begin_staging(driver, [self.source])
        for _ in range(ROUNDS):
            if driver.run.state == "staging":
                # Tasks import the pipeline by this driver's name, because a previous driver may have had it as an
                # object.
                named = replace(driver.run, pipelines=(self.source.name,))
                stage_missing(driver, self.stager, self.range_records, self.progress, run=named)
                check_topics(self.kafka, driver)
                fold(driver, self.source, self.rows_of)
        if driver.run.state == "staging":
            why = f"ranges are missing after {ROUNDS} attempts to stage them: run another batch, with a single driver"
            raise BatchRefused([why])
        publish(driver, self.source, claims, leader_epochs, rows_of=self.rows_of, is_recorded=self.is_recorded)

    def end(self, driver: Driver) -> BatchDone:
        """Return the published batch's result, and drop its staged tables."""
        try:
            with transaction(driver.engine, driver.schema) as tx:
                result = BatchDone(driver.run.id, **totals(Step(tx, driver.run), self.source, self.rows_of))
            Runs(driver.engine, driver.schema, driver.limits).drop(driver.run.id)
        except Exception as error:
            error.add_note(
                f"batch {driver.run.id} is applied completely, so do not run it again. `Runs.sweep`, or "
                "`seekpoint reload sweep`, drops what it staged"
            )
            raise
        return result


def refusal(error: Exception) -> BatchRefused | None:
    """The BatchRefused that replaces ``error`` and ends the run; None if the next driver might not get the error."""
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
            f"the database refuses a row that could be staged: {one_line(error)}. Only a worker can find the "
            "record of that row: let a worker apply it, then continue with batches; to apply a range again, leave "
            "that record out"
        )
        return BatchRefused([why])
    return None
