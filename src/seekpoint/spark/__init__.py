"""Spark jobs at the offsets that the ledger holds.

- :func:`read`: a group's records between two positions as a DataFrame.
- :class:`SparkStager`: the ranges of a reload or a batch, staged by Spark's tasks instead of one process.
- :class:`SparkWriter`: the files of an export, written by Spark's tasks.

Needs the extra ``spark``, and Java 17 or newer. Tasks read Kafka by themselves, in Python: no jar is asked for. The
workers' Python must have this package, so ``PYSPARK_PYTHON`` is the driver's interpreter, or one like it.
"""

from __future__ import annotations

from seekpoint.jobs.spark.read import read, stored_ranges
from seekpoint.jobs.spark.settings import REDACTED, Env
from seekpoint.jobs.spark.stager import SparkStager
from seekpoint.jobs.spark.writer import SparkWriter

__all__ = ["REDACTED", "Env", "SparkStager", "SparkWriter", "read", "stored_ranges"]
