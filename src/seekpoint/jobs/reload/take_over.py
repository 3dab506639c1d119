"""Takes over an open run, which requires the same code that opened it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from seekpoint.errors import ConfigError
from seekpoint.jobs.staging.stage import require_code
from seekpoint.jobs.tables.dependencies import notes
from seekpoint.jobs.tables.targets import PipelineSource, targets
from seekpoint.kafka.range_checks import require_known
from seekpoint.ledger.tables import BATCHES
from seekpoint.runs.manage_runs import Runs
from seekpoint.runs.run import Driver, Run, transaction


def take_over(
    runs: Runs, run_id: UUID, sources: Sequence[PipelineSource], kafka: Mapping[str, Any], *, of_frames: bool = False
) -> Driver:
    """Take over an open run in its present state; its previous driver, if still alive, fails at its next step.

    ``of_frames``: Spark rebuilds the tables. Raises ConfigError, with the driver unchanged, for a verify or a batch, if
    these pipelines are not the run's (other groups, versions or tables), or if no consumer accepts ``kafka``;
    ReloadOver if the run has ended.
    """
    if (run := runs.get(run_id)).is_open:
        require_known(kafka)
        _require_resumable(run, of_frames=of_frames)
        require_its_versions(run, sources)
        # Check before the take-over, which would fence the right driver.
        with transaction(runs.engine, runs.schema) as tx:
            require_code(tx, run, sources)
    driver = runs.take_over(run_id)
    if driver.run.strategy == "merge":
        with transaction(runs.engine, runs.schema) as tx:
            driver.notes = tuple(notes(tx.connection, targets(tx.connection, sources)))
    return driver


def _require_resumable(run: Run, *, of_frames: bool) -> None:
    """Raise ConfigError, naming the right command, for a verify, or a reload of the other kind of pipeline."""
    if run.strategy == "verify":  # a driver that took it over would publish its staged rows
        raise ConfigError(
            f"{run.id} is a verify, which cannot be resumed: end it (`seekpoint reload abort {run.id} --reason …`, "
            "`Runs.abort(id, reason)`), and verify again"
        )
    if run.strategy not in BATCHES and run.is_of_frames is not of_frames:
        problem = f"rebuilds a SparkPipeline's tables: use `seekpoint spark reload MODULE:NAME --resume {run.id}`"
        if of_frames:
            problem = f"rebuilds a Pipeline's tables: use `seekpoint reload resume {run.id}`"
        raise ConfigError(f"reload {run.id} {problem}")


def require_its_versions(run: Run, sources: Sequence[PipelineSource]) -> None:
    """Raise ConfigError if the run is a batch, or has other groups or handler versions than these pipelines."""
    if run.strategy in BATCHES:
        how = f"use `BatchJob.take_over`, or `seekpoint batch MODULE:NAME --resume {run.id}`"
        raise ConfigError(f"{run.id} is a {run.strategy}: {how}")
    if run.groups != tuple(source.group for source in sources):
        raise ConfigError(f"{run.kind} {run.id} is of groups {', '.join(run.groups)}: give exactly their pipelines")
    if run.version_to != tuple(source.pipeline.version for source in sources):
        raise ConfigError(
            f"{run.kind} {run.id} was opened with the handler versions {', '.join(map(str, run.version_to))}, which "
            f"this code does not have: run the code that has them, or abort {run.kind} {run.id} and open another"
        )
