"""Batch: a job as a consumer with a long transaction, from the stored offsets to the stable ends of the log."""

from seekpoint.jobs.batch.batch import BatchDone, BatchJob
from seekpoint.jobs.batch.reprocess import RunDeadLetter

__all__ = ["BatchDone", "BatchJob", "RunDeadLetter"]
