"""A reload from its opening to its cut-over, in steps; a driver that takes over the run can repeat each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import URL, Engine

from seekpoint.backoff import retried
from seekpoint.errors import ConfigError, RangeLost, ReloadRefused, TopicRecreated
from seekpoint.jobs.export import Archive
from seekpoint.jobs.manage_runs import Runs, drop_attempts
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.reload.compare import Report, prepare, recall
from seekpoint.jobs.reload.cutover import CutOver, changes_nothing, close_unchanged, cut_over
from seekpoint.jobs.reload.cutover_limits import MAX_DELETES, MAX_WAIT, Bounds, Plan
from seekpoint.jobs.reload.merge import warm
from seekpoint.jobs.reload.merge_preconditions import forecast, require_allowed, require_no_extra
from seekpoint.jobs.reload.open import open_run
from seekpoint.jobs.run import SERIALIZABLE_ENOUGH, Driver, Progress, Run, transaction
from seekpoint.jobs.staging.consolidate import RANGE, check_topics, consolidate, index, require_width, stage_missing
from seekpoint.jobs.staging.distance import CatchUpProgress, distance
from seekpoint.jobs.staging.local_stager import LocalStager
from seekpoint.jobs.staging.stage import Stager, begin_staging, require_code
from seekpoint.jobs.tables.dependencies import notes
from seekpoint.jobs.tables.targets import PipelineSource, sources, targets
from seekpoint.kafka.range_checks import require_known
from seekpoint.ledger.admin_actions import operator
from seekpoint.ledger.tables import BATCHES, DEFAULT_SCHEMA, PUBLISHING
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import is_conflict, is_data_error
from seekpoint.records import one_line

LARGE = 200_000  # records of a partition in one pass: its transaction holds a snapshot, and delays vacuum
SMALL = 2_000  # records of a catch-up pass; after one of at most so many the cut-over may take its locks
ENDS_RUN = (ReloadRefused, RangeLost, TopicRecreated)  # would recur under another driver

Told = Callable[[Report], object]


class Reload:
    """Rebuilds the tables of some pipelines from the log, beside the live ones, and publishes the rebuilt rows.

    ``pipelines`` are all pipelines that write the tables, as objects or as ``module:name``; ``kafka`` is the workers'
    own configuration. ``stager`` says who reads the log: by default this process, or so many ``processes`` of this
    machine. Workers continue all the time; the cut-over makes them wait, for ``max_wait`` seconds at most. ``progress``
    is called with what is being done, how many records of it are done (of "warming up": keys), and of how many (0: not
    known). ``archive`` has what retention took of the logs.

    A merge calls ``compared`` with its :class:`Report` before it publishes anything, and is refused (CutOverRefused,
    the run stays open) where workers would wait for longer than ``max_wait``; where it would delete more than the share
    ``max_deletes`` of a table's rows; where its changes reach other tables by ON DELETE or ON UPDATE actions
    (``allow_cascades``) or by inheritance (``allow_inheritance``). Making one does no I/O; raises ConfigError for what
    cannot be reloaded, whatever the servers say.
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
        compared: Told | None = None,
    ) -> None:
        self.sources: Sequence[PipelineSource] = sources(pipelines)
        self.engine, self.kafka, self.schema = postgres_engine(engine), dict(kafka), schema
        self.limits, self.actor = limits or Limits(), operator(actor)
        self.runs = Runs(self.engine, schema, self.limits)
        if stager is not None and processes:
            raise ConfigError("stager= and processes= both say who reads the log: give one of them")
        require_width(range_records)
        self._stager = stager or LocalStager(self.engine, schema, self.kafka, self.sources, processes=processes)
        self.archive = archive
        self._compared: Told = compared or (lambda _: None)
        self.bounds = Bounds(
            max_wait=max_wait,
            max_deletes=max_deletes,
            allow_cascades=allow_cascades,
            allow_inheritance=allow_inheritance,
        )
        self._range_records, self._progress = range_records, progress or (lambda *_: None)

    def open(self, *, strategy: str = "merge", reason: str = "reload") -> Driver:
        """Record a new run at the groups' current positions. Raises ReloadRefused with every reason, KafkaUnavailable.

        ``notes`` of the driver list what a merge may reach: foreign keys with an action, and inheriting tables.
        """
        if strategy not in PUBLISHING:
            raise ConfigError(f"strategy must be one of {', '.join(map(repr, PUBLISHING))}, got {strategy!r}")
        return self._open(strategy, reason)

    def _open(self, strategy: str, reason: str) -> Driver:
        return open_run(
            self.runs,
            self.kafka,
            self.sources,
            strategy=strategy,
            actor=self.actor,
            reason=reason,
            archive=self.archive,
            bounds=self.bounds,
        )

    def take_over(self, run: UUID) -> Driver:
        """Take over an open run in its present state; its previous driver, if it is alive, fails at its next step.

        Raises ConfigError where these pipelines are not the run's (other groups, versions or tables), or no consumer
        takes ``kafka``; then its driver stays the same. Raises ReloadOver where it has ended.
        """
        if (found := self.runs.get(run)).is_open:
            require_known(self.kafka)
            self._require_its_code(found)
        driver = self.runs.take_over(run)
        if driver.run.strategy == "merge":
            with transaction(self.engine, self.schema) as tx:
                driver.notes = tuple(notes(tx.connection, targets(tx.connection, self.sources)))
        return driver

    def _require_its_code(self, run: Run) -> None:
        """Checked before the take-over, so that a driver with the right code may continue."""
        self._require_its_versions(run)
        with transaction(self.engine, self.schema) as tx:
            require_code(tx, run, self.sources)

    def _require_its_versions(self, run: Run) -> None:
        if run.strategy in BATCHES:
            how = f"`BatchJob.take_over`, or `seekpoint batch MODULE:NAME --resume {run.id}`"
            raise ConfigError(f"{run.id} is a {run.strategy}: {how}")
        if run.groups != tuple(source.group for source in self.sources):
            raise ConfigError(f"reload {run.id} is of the groups {', '.join(run.groups)}: name their pipelines")
        if run.version_to != tuple(source.pipeline.version for source in self.sources):
            raise ConfigError(
                f"reload {run.id} was opened with other versions of these pipelines "
                f"({', '.join(map(str, run.version_to))}): run the code of that version, or abort it, open another"
            )

    def stage(self, driver: Driver) -> None:
        """Stage everything up to the snapshot offsets, build and index the tables. Raises what ends the run."""
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

    def catch_up(self, driver: Driver, passes: CatchUp) -> int:
        """Run catch-up passes until one is small; returns the records of the last one."""
        with self._ending(driver):
            pace = CatchUpProgress()
            while True:
                ahead, read = self._round(driver, passes)
                if max(ahead, read) <= SMALL:
                    return read
                pace.require_shrinking(ahead)

    def compare(self, driver: Driver, passes: CatchUp) -> Report:
        """Compare rebuilt and live tables at the same offsets, and keep what differs for the cut-over."""
        with self._ending(driver):
            self._progress("comparing", 0, 0)
            report = retried(lambda: prepare(driver, passes), is_conflict)
            self._progress("comparing", 1, 1)
            return report

    def cut_over(self, driver: Driver, passes: CatchUp) -> CutOver:
        """Publish the rebuilt rows, raise versions and epochs, and close the run, in one transaction.

        Stored offsets do not change. A merge whose comparison found nothing takes no lock where no version is raised.

        Raises CutOverRefused where workers would wait longer than the bounds allow (the
        run stays open), ReloadRefused where the run cannot be used any more, ReloadOver, and the last database error.
        """
        _require_publishing(driver)
        with self._ending(driver):
            merges = driver.run.strategy == "merge"
            report = recall(driver, passes.targets) if merges else None
            if report is not None and changes_nothing(driver.run, report):
                self._compared(report)
                return close_unchanged(driver)
            plan = Plan(bounds=self.bounds) if report is None else self._plan(driver, passes, report)
            if merges:
                warm(driver, passes.targets, lambda done, total: self._progress("warming up", done, total))
            self._progress("cutting over", 0, 0)
            outcome = cut_over(driver, passes, lambda: self._catch_up_before_the_lock(driver, passes), plan)
            read = max(outcome.records, 0)  # -1 where COMMIT had no answer
            self._progress("cutting over", read, read)
            return outcome

    def _catch_up_before_the_lock(self, driver: Driver, passes: CatchUp) -> None:
        """Catch up; a topic that was created again is noticed here, also where its positions leave nothing to read."""
        self.catch_up(driver, passes)
        check_topics(self.kafka, driver)

    def _plan(self, driver: Driver, passes: CatchUp, report: Report) -> Plan:
        """Report what a merge is going to change, and refuse what is not allowed, before any lock is taken."""
        self._compared(report)
        found = report.tables
        require_no_extra(passes.targets, found)  # here, because a resumed run does not compare again
        predicted = forecast(driver, passes.targets, found)
        require_allowed(driver, passes.targets, found, predicted, self.bounds)
        return Plan(
            bounds=self.bounds,
            live={target.path: one.live for target, one in zip(passes.targets, found, strict=True)},
            predicted=predicted,
        )

    def run(self, driver: Driver) -> CutOver:
        """Carry out the rest of a run, to its cut-over, and drop what it staged.

        Raises ConfigError for one that was opened to verify: nothing of it is to be published.
        """
        _require_publishing(driver)
        self.stage(driver)
        with CatchUp(driver, self.sources, self.kafka) as passes:
            self.catch_up(driver, passes)
            if driver.run.strategy == "merge" and driver.run.state == "catching_up":
                self.compare(driver, passes)
            outcome = self.cut_over(driver, passes)
        self.runs.drop(driver.run.id)
        return outcome

    def verify(self, *, reason: str = "verify") -> Report:
        """Rebuild the tables beside the live ones and compare, without changing anything live; workers continue.

        Leaves a row of a verified run in the ledger (aborted where it was interrupted), and nothing else.
        Raises as :meth:`open` does.
        """
        driver = self._open("verify", reason)
        try:
            self.stage(driver)
            with CatchUp(driver, self.sources, self.kafka) as passes:
                self.catch_up(driver, passes)
                report = self.compare(driver, passes)
            with driver.step("compared") as tx:
                driver.transition(tx, "verified")
            self.runs.drop(driver.run.id)
            return report
        finally:
            if self.runs.get(driver.run.id).is_open:
                self.runs.abort(driver.run.id, f"{reason}: broken off before the tables were compared")

    def _round(self, driver: Driver, passes: CatchUp) -> tuple[int, int]:
        """The distance to the groups' positions in records, and how many of them this pass has read."""
        states = ("indexed", "catching_up", "compared")
        with driver.step(*states) as tx:
            offsets = tx.offsets()
            ahead = distance({(at.group, at.partition): at for at in tx.positions()}, offsets)
        self._progress("catching_up", 0, ahead)  # between two steps: the callback may be slow
        read = retried(lambda: self._apply(driver, passes, states), is_conflict)
        self._progress("catching_up", min(read, ahead), ahead)
        return ahead, read

    def _apply(self, driver: Driver, passes: CatchUp, states: Sequence[str]) -> int:
        with driver.step(*states, isolation=SERIALIZABLE_ENOUGH) as tx:
            read = passes.apply(tx, tx.offsets(), at_most=LARGE)
            if driver.run.state == "indexed":
                driver.transition(tx, "catching_up")
        return read

    @contextmanager
    def _ending(self, driver: Driver) -> Iterator[None]:
        """End the run, with the reason stored, by an error that would recur under every driver.

        Raises ConfigError for a driver with another version of the code (``Runs.take_over`` does not check it); then
        the run stays open.
        """
        self._require_its_versions(driver.run)
        with driver.ending(ENDS_RUN, _refusal):
            yield


def _refusal(error: Exception) -> ReloadRefused | None:
    """The refusal that an error ends the run with; None where database or brokers are unavailable: it stays open."""
    reason = f"the database refuses the rebuilt rows: {one_line(error)}"
    return ReloadRefused([reason]) if is_data_error(error) else None


def _require_publishing(driver: Driver) -> None:
    if driver.run.strategy == "verify":
        raise ConfigError(f"reload {driver.run.id} was opened by verify(), which publishes nothing: open() another one")


__all__ = ["Progress", "Reload", "Report", "Run"]
