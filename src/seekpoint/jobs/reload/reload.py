"""Carries out a reload from its opening to its cut-over. A driver that takes it over can repeat any step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import URL, Engine

from seekpoint.admin import ResetPlan, ResetResult
from seekpoint.admin.attribution import Attribution
from seekpoint.backoff import retried
from seekpoint.errors import ConfigError, RangeLost, ReloadRefused, TopicRecreated
from seekpoint.jobs.export import Archive
from seekpoint.jobs.reload.bounded_cut_over import BoundedCutOver
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.reload.compare import Report, prepare
from seekpoint.jobs.reload.cutover import CutOver
from seekpoint.jobs.reload.cutover_limits import MAX_DELETES, MAX_WAIT, Bounds
from seekpoint.jobs.reload.open import open_run, require_strategy
from seekpoint.jobs.reload.rewind import Rewind
from seekpoint.jobs.reload.take_over import require_its_versions, take_over
from seekpoint.jobs.staging.consolidate import RANGE, check_topics, consolidate, index, require_width, stage_missing
from seekpoint.jobs.staging.distance import CatchUpProgress, distance
from seekpoint.jobs.staging.local_stager import LocalStager
from seekpoint.jobs.staging.stage import Stager, begin_staging
from seekpoint.jobs.tables.targets import PipelineSource, sources, targets
from seekpoint.ledger.admin_actions import operator
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import is_conflict, is_data_error
from seekpoint.records import one_line
from seekpoint.runs.manage_runs import Runs, drop_attempts, ending
from seekpoint.runs.run import REPEATABLE_READ, Driver, Progress, Run, transaction
from seekpoint.worker.engine_checks import require_untranslated_sinks

LARGE = 200_000  # offsets per partition and pass: a pass holds a snapshot, which delays vacuum
SMALL = 2_000  # after a catch-up pass of at most this many records, the cut-over may take its locks
ENDS_RUN = (ReloadRefused, RangeLost, TopicRecreated)  # errors that would recur with another driver

ReportCallback = Callable[[Report], object]


class Reload:
    """Rebuilds the tables of pipelines from the log in a separate schema, and publishes the rebuilt rows.

    ``pipelines`` are all pipelines that write the tables, as objects or as ``module:name``; ``kafka`` is the workers'
    configuration. ``stager`` reads the log; by default this process does, or ``processes`` child processes do. Workers
    continue meanwhile; only the cut-over makes them wait, at most ``max_wait`` seconds. ``progress`` is called with the
    current activity, the number of records done (keys for "warming up"), and their total (0 if unknown). ``archive``
    has the records that retention has removed from the logs.

    A merge calls ``compared`` with its :class:`Report` before it publishes anything. The merge is refused
    (CutOverRefused, the run stays open) if workers would wait longer than ``max_wait``, or if it would delete more than
    the share ``max_deletes`` of a table's rows. It is also refused if its changes reach other tables by ON DELETE or ON
    UPDATE actions (unless ``allow_cascades``) or by inheritance (unless ``allow_inheritance``). The constructor does no
    I/O; it raises ConfigError for pipelines that can never be reloaded.
    """

    def __init__(
        self,
        pipelines: Sequence[Pipeline | str],
        engine: Engine | URL | str,
        kafka: Mapping[str, Any],
        *,
        schema: str = DEFAULT_SCHEMA,
        stager: Stager | None = None,
        processes: int = 0,
        limits: Limits | None = None,
        actor: str | None = None,
        range_records: int = RANGE,
        progress: Progress | None = None,
        archive: Archive | None = None,
        max_wait: float = MAX_WAIT,
        max_deletes: float = MAX_DELETES,
        allow_cascades: bool = False,
        allow_inheritance: bool = False,
        compared: ReportCallback | None = None,
    ) -> None:
        self.sources: Sequence[PipelineSource] = sources(pipelines)
        for source in self.sources:
            require_untranslated_sinks(source.pipeline.sinks, engine)
        self.engine, self.kafka, self.schema = postgres_engine(engine), dict(kafka), schema
        self.limits, self.actor = limits or Limits(), operator(actor)
        self.runs = Runs(self.engine, schema, self.limits)
        if stager is not None and processes:
            raise ConfigError("give stager= or processes=, not both: each decides how the log is read")
        require_width(range_records)
        self._stager = stager or LocalStager(self.engine, schema, self.kafka, self.sources, processes=processes)
        self.archive = archive
        self._compared: ReportCallback = compared or (lambda _: None)
        self.bounds = Bounds(
            max_wait=max_wait,
            max_deletes=max_deletes,
            allow_cascades=allow_cascades,
            allow_inheritance=allow_inheritance,
        )
        self._range_records, self._progress = range_records, progress or (lambda *_: None)

    def open(self, *, strategy: str = "merge", reason: str = "reload") -> Driver:
        """Record a new run at the groups' current positions.

        The driver's ``notes`` list what a merge may change in other tables: foreign keys with an action, and
        inheriting tables. Raises ReloadRefused with every reason why the tables cannot be reloaded, and
        KafkaUnavailable if the brokers do not answer.
        """
        require_strategy(strategy)
        return self._open(strategy, reason)

    def _open(self, strategy: str, reason: str, rewind: Rewind | None = None) -> Driver:
        return open_run(
            self.runs,
            self.kafka,
            self.sources,
            strategy=strategy,
            actor=self.actor,
            reason=reason,
            archive=self.archive,
            bounds=self.bounds,
            ends=None if rewind is None else rewind.ends,
        )

    def take_over(self, run: UUID) -> Driver:
        """Take over an open run in its present state; its previous driver, if still alive, fails at its next step.

        Raises ConfigError, with the driver unchanged, if these pipelines are not the run's (other groups, versions or
        tables) or no consumer accepts ``kafka``. Raises ReloadOver if the run has ended.
        """
        return take_over(self.runs, run, self.sources, self.kafka)

    def stage(self, driver: Driver) -> None:
        """Stage the log up to the snapshot offsets, build and index the tables. Raises the error that ends the run."""
        with self._ending(driver):
            if driver.run.state == "opened":
                begin_staging(driver, self.sources)
            if driver.run.state == "staging":
                stage_missing(driver, self._stager, self._range_records, self._progress)
                check_topics(self.kafka, driver)
                consolidate(driver, self.sources)
            if driver.run.state == "staged":
                index(driver, self.sources, self.kafka)
                drop_attempts(self.engine, self.schema, driver.run)

    def passes(self, driver: Driver) -> CatchUp:
        """The catch-up passes of a run, for a ``with`` block of the steps after :meth:`stage`."""
        return CatchUp(driver, self.sources, self.kafka)

    def catch_up(self, driver: Driver, passes: CatchUp) -> int:
        """Run catch-up passes until a pass is small; returns how many records the last pass read."""
        with self._ending(driver):
            pace = CatchUpProgress()
            while True:
                ahead, read = self._round(driver, passes)
                if max(ahead, read) <= SMALL:
                    return read
                pace.require_shrinking(ahead)

    def compare(self, driver: Driver, passes: CatchUp) -> Report:
        """Compare rebuilt and live tables at the same offsets, and store the differences for the cut-over."""
        with self._ending(driver):
            self._progress("comparing", 0, 0)
            report = retried(lambda: prepare(driver, passes), is_conflict)
            self._progress("comparing", 1, 1)
            return report

    def cut_over(self, driver: Driver, passes: CatchUp) -> CutOver:
        """Publish the rebuilt rows, raise versions and epochs, and close the run, in one transaction.

        Stored offsets do not change. A merge without differences takes no lock, unless it raises a version.

        Raises CutOverRefused, leaving the run open, if it would exceed the bounds, such as the workers' wait;
        ReloadRefused if the run can no longer be used; ReloadOver if it has ended or another driver has taken it over;
        and the error of the last attempt: a database error, RangeStuck or KafkaUnavailable.
        """
        _require_publishing(driver)
        with self._ending(driver):
            bounded = BoundedCutOver(
                bounds=self.bounds,
                compared=self._compared,
                progress=self._progress,
                catch_up=lambda: self._catch_up_before_the_lock(driver, passes),
            )
            return bounded.carry_out(driver, passes)

    def _catch_up_before_the_lock(self, driver: Driver, passes: CatchUp) -> None:
        """Catch up, and check the topics' ids: without records to read, nothing else notices a recreated topic."""
        self.catch_up(driver, passes)
        check_topics(self.kafka, driver)

    def run(self, driver: Driver) -> CutOver:
        """Carry out the remaining steps of a run, including the cut-over, and drop its staged tables.

        Raises ConfigError for a run of :meth:`verify`, which publishes nothing.
        """
        _require_publishing(driver)
        return self._run(driver, None)

    def _run(self, driver: Driver, rewind: Rewind | None) -> CutOver:
        self.stage(driver)
        with CatchUp(driver, self.sources, self.kafka, rewind) as passes:
            self.catch_up(driver, passes)
            if driver.run.strategy == "merge" and driver.run.state == "catching_up":
                self.compare(driver, passes)
            outcome = self.cut_over(driver, passes)
        self.runs.drop(driver.run.id)
        return outcome

    def reset(self, plan: ResetPlan, *, reason: str, strategy: str = "merge", accept_loss: bool = False) -> ResetResult:
        """Carry out a plan of :meth:`Admin.plan_reset`, and rebuild the pipeline's tables as of its targets.

        So sums count records that workers read again only once, and no table has rows of records past the targets. The
        run's cut-over resets rows and positions in one transaction; workers continue until then, and at the new
        positions after it. ``pipelines`` must be only the pipeline of the plan's group, with all of its sinks; raises
        ConfigError if a table that the group writes is missing.

        Raises the errors of :meth:`open` and :meth:`cut_over`, and Fenced if the group has changed since the plan was
        made; then nothing was changed, and the run is aborted.
        """
        require_strategy(strategy)
        rewind = Rewind(plan, Attribution.of(self.actor, reason))
        rewind.require(self.sources, accept_loss=accept_loss)
        if plan.is_done:
            return ResetResult(())
        with transaction(self.engine, self.schema) as tx:
            rewind.require_tables(tx, targets(tx.connection, self.sources))
        driver = self._open(strategy, f"reset {plan.target}: {reason}", rewind)
        with ending(self.runs, driver, f"{reason}: interrupted before the positions were reset"):
            self._run(driver, rewind)
        return ResetResult(tuple(rewind.done))

    def verify(self, *, reason: str = "verify") -> Report:
        """Rebuild the tables separately, and compare them with the live ones, which do not change; workers continue.

        Only the run's row stays in the ledger, with state "verified" ("aborted" after an interruption). Raises the
        errors of :meth:`open`.
        """
        driver = self._open("verify", reason)
        with ending(self.runs, driver, f"{reason}: interrupted before the tables were compared"):
            self.stage(driver)
            with self.passes(driver) as passes:
                self.catch_up(driver, passes)
                report = self.compare(driver, passes)
            with driver.step("compared") as tx:
                driver.transition(tx, "verified")
        return report

    def _round(self, driver: Driver, passes: CatchUp) -> tuple[int, int]:
        """Run one catch-up pass; returns the distance to the groups' positions before it, and the records it read."""
        states = ("indexed", "catching_up", "compared")
        with driver.step(*states) as tx:
            offsets = passes.offsets(tx)
            ahead = distance({(position.group, position.partition): position for position in tx.positions()}, offsets)
        self._progress("catching_up", 0, ahead)  # not in a step, because the callback may be slow
        read = retried(lambda: self._apply(driver, passes, states), is_conflict)
        self._progress("catching_up", min(read, ahead), ahead)
        return ahead, read

    def _apply(self, driver: Driver, passes: CatchUp, states: Sequence[str]) -> int:
        with driver.step(*states, isolation=REPEATABLE_READ) as tx:
            read = passes.apply(tx, passes.offsets(tx), at_most=LARGE)
            if driver.run.state == "indexed":
                driver.transition(tx, "catching_up")
        return read

    @contextmanager
    def _ending(self, driver: Driver) -> Iterator[None]:
        """End the run and store the reason, after an error that every driver would get.

        Raises ConfigError, leaving the run open, for a driver with another version of the code, which
        ``Runs.take_over`` does not check.
        """
        require_its_versions(driver.run, self.sources)
        with driver.ending(ENDS_RUN, refusal):
            yield


def refusal(error: Exception) -> ReloadRefused | None:
    """The refusal that ends the run; None for an error that leaves it open, such as an unavailable database."""
    reason = f"the database refuses the rebuilt rows: {one_line(error)}"
    return ReloadRefused([reason]) if is_data_error(error) else None


def _require_publishing(driver: Driver) -> None:
    if driver.run.strategy == "verify":
        raise ConfigError(f"run {driver.run.id} only compares (strategy verify), and publishes nothing: open a reload")


__all__ = ["Progress", "Reload", "Report", "Run"]
