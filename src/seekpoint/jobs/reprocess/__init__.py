"""Reprocess: a bounded range of one partition through its pipeline again, beside the live position."""

from seekpoint.jobs.reprocess.plan import ReprocessPlan
from seekpoint.jobs.reprocess.reprocess import Reprocess, Reprocessed, RunDeadLetter

__all__ = ["Reprocess", "ReprocessPlan", "Reprocessed", "RunDeadLetter"]
