"""A run's cut-over within its bounds: reports and checks a merge's changes before it takes any lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seekpoint.jobs.reload.compare import Report, recall
from seekpoint.jobs.reload.cutover import CutOver, PublishedPasses, changes_nothing, close_unchanged, cut_over
from seekpoint.jobs.reload.cutover_limits import Bounds, Budget, Plan
from seekpoint.jobs.reload.merge import warm
from seekpoint.jobs.reload.merge_preconditions import forecast, require_allowed, require_no_extra
from seekpoint.runs.run import Driver, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedCutOver:
    """Carries out one run's cut-over.

    ``compared`` is called with the changes of a merge before they are published. ``catch_up`` and ``last_pass`` are
    those of :func:`~seekpoint.jobs.reload.cutover.cut_over`.
    """

    bounds: Bounds
    compared: Callable[[Report], object]
    progress: Progress
    catch_up: Callable[[], object]
    last_pass: Callable[[Budget], object] | None = None

    def carry_out(self, driver: Driver, passes: PublishedPasses) -> CutOver:
        """Publish the rebuilt rows, raise versions and epochs, and close the run, in one transaction.

        A merge without differences takes no lock, unless it raises a version. Raises CutOverRefused, leaving the run
        open, if it would exceed the bounds, such as the workers' wait; ReloadRefused if the run can no longer be used;
        ReloadOver if it has ended or another driver has taken it over; and the error of the last attempt: a database
        error, RangeStuck or KafkaUnavailable.
        """
        merges = driver.run.strategy == "merge"
        report = recall(driver, passes.targets) if merges else None
        if report is not None and passes.rewind is None and changes_nothing(driver.run, report):
            self.compared(report)
            return close_unchanged(driver, passes.sources)
        plan = Plan(bounds=self.bounds) if report is None else self._plan(driver, passes, report)
        if merges:
            warm(driver, passes.targets, lambda done, total: self.progress("warming up", done, total))
        self.progress("cutting over", 0, 0)
        outcome = cut_over(driver, passes, self.catch_up, plan, last_pass=self.last_pass)
        read = max(outcome.records, 0)  # -1 after an unknown commit
        self.progress("cutting over", read, read)
        return outcome

    def _plan(self, driver: Driver, passes: PublishedPasses, report: Report) -> Plan:
        """Report a merge's changes, and refuse those that are not allowed, before any lock is taken."""
        self.compared(report)
        differences = report.tables
        require_no_extra(passes.targets, differences)  # check here, because a resumed run does not compare again
        predicted = forecast(driver, passes.targets, differences)
        require_allowed(driver, passes.targets, differences, predicted, self.bounds)
        return Plan(
            bounds=self.bounds,
            live={target.path: difference.live for target, difference in zip(passes.targets, differences, strict=True)},
            predicted=predicted,
        )
