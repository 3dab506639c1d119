"""Reload: the tables of some pipelines, built anew from the log at the stored offsets, and put in place at once."""

from seekpoint.reload.compare import Difference, Report, Sample
from seekpoint.reload.cutover import CutOver
from seekpoint.reload.generations.adopting import Generation, Generations
from seekpoint.reload.job import Reload
from seekpoint.reload.run import Driver, Run, StagedPosition
from seekpoint.reload.runs import Runs
from seekpoint.reload.stagers.local import LocalStager
from seekpoint.reload.staging import Staged, Stager, Task, stage_range

__all__ = [
    "CutOver",
    "Difference",
    "Driver",
    "Generation",
    "Generations",
    "LocalStager",
    "Reload",
    "Report",
    "Run",
    "Runs",
    "Sample",
    "Staged",
    "StagedPosition",
    "Stager",
    "Task",
    "stage_range",
]
