"""Reload: rebuilds the tables of pipelines from the log, and publishes the rows in one transaction."""

from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.reload.compare import Difference, Report, Sample
from seekpoint.jobs.reload.cutover import CutOver
from seekpoint.jobs.reload.reload import Reload
from seekpoint.jobs.staging.local_stager import LocalStager
from seekpoint.jobs.staging.stage import Staged, Stager, Task, stage_range
from seekpoint.runs.run import Driver, Run, StagedPosition

__all__ = [
    "CatchUp",
    "CutOver",
    "Difference",
    "Driver",
    "LocalStager",
    "Reload",
    "Report",
    "Run",
    "Sample",
    "Staged",
    "StagedPosition",
    "Stager",
    "Task",
    "stage_range",
]
