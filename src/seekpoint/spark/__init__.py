"""The ledger's offsets in Spark, for Spark jobs.

``spark.read.format("seekpoint")`` needs no import: Spark finds it by name. This module adds:

- :func:`read`: a group's records as a DataFrame; only this process needs the database.
- :func:`ledger`, :func:`dead_letters`, :func:`runs`: the ledger's tables as DataFrames.
- :func:`bounds`: options that read again exactly the offsets of a DataFrame of the source.
- :class:`SparkStager`: the ranges of a reload or a batch, staged by Spark's tasks instead of one process.
- :class:`SparkWriter`: the files of an export, written by Spark's tasks.
- :class:`SparkPipeline`, :class:`Frame`, :func:`run`: a pipeline of DataFrames between topics and tables, exactly once.
- :func:`verify`: compares such a pipeline's tables with the rows that its frames make from the log; differing rows are
  DataFrames.
- :func:`reload`: rebuilds these tables from the log and publishes them at the stored offsets; :func:`plan_reload`
  returns its plan.
- :func:`foreach_batch`: runs such a pipeline in an existing query, as the function of its ``foreachBatch``.

Needs the extra ``spark``, and Java 17 or newer. Tasks read Kafka in Python, without a jar. The workers' Python must
have this package: set ``PYSPARK_PYTHON`` to the driver's interpreter, or an equivalent one.
"""

from __future__ import annotations

from seekpoint.jobs.frames.foreach_batch import ForeachBatch, foreach_batch
from seekpoint.jobs.frames.reload import FramesReloaded, plan_reload, reload
from seekpoint.jobs.frames.reload_plan import PlannedTable, ReloadPlan
from seekpoint.jobs.frames.stream import FramesDone, run
from seekpoint.jobs.frames.verify import FramesVerified, verify
from seekpoint.jobs.spark.read import read, stored_ranges
from seekpoint.jobs.spark.settings import REDACTED, Env
from seekpoint.jobs.spark.source_frames import bounds, dead_letters, ledger, runs
from seekpoint.jobs.spark.stager import SparkStager
from seekpoint.jobs.spark.writer import SparkWriter
from seekpoint.pipeline.frames import Frame, SparkPipeline

__all__ = [
    "REDACTED",
    "Env",
    "ForeachBatch",
    "Frame",
    "FramesDone",
    "FramesReloaded",
    "FramesVerified",
    "PlannedTable",
    "ReloadPlan",
    "SparkPipeline",
    "SparkStager",
    "SparkWriter",
    "bounds",
    "dead_letters",
    "foreach_batch",
    "ledger",
    "plan_reload",
    "read",
    "reload",
    "run",
    "runs",
    "stored_ranges",
    "verify",
]
