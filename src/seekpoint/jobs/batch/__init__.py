"""Batch jobs: apply the log from the stored to the end offsets, like a worker with one long transaction."""

from seekpoint.jobs.batch.batch import BatchJob
from seekpoint.jobs.batch.reprocess import RunDeadLetter
from seekpoint.jobs.batch.steps import BatchDone

__all__ = ["BatchDone", "BatchJob", "RunDeadLetter"]
