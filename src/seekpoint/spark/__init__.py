"""Spark jobs at the offsets that the ledger holds.

- :func:`read`: a group's records between two positions as a DataFrame.
- :class:`SparkStager`: a reload's ranges, staged by Spark's tasks instead of one process.
- :func:`batch`: what is new in a pipeline's topics, applied by Spark's tasks in one transaction with the offsets.
- :func:`export`: what a group has applied as Parquet files, written by Spark's tasks.

Needs the extra ``spark``, and Java 17 or newer. Tasks read Kafka by themselves, in Python: no jar is asked for. The
workers' Python must have this package, so ``PYSPARK_PYTHON`` is the driver's interpreter, or one like it.
"""

from __future__ import annotations

from seekpoint.jobs.spark.batch import batch
from seekpoint.jobs.spark.export import export
from seekpoint.jobs.spark.read import read, stored_ranges
from seekpoint.jobs.spark.settings import REDACTED, Env
from seekpoint.jobs.spark.stager import SparkStager

__all__ = ["REDACTED", "Env", "SparkStager", "batch", "export", "read", "stored_ranges"]
