"""The Python data source of an export: each task writes its ranges to files, one file per range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from seekpoint.jobs.export.files import write_range
from seekpoint.jobs.export.storage import Storage
from seekpoint.jobs.spark.settings import range_of, resolved
from seekpoint.jobs.spark.task_source import MessageSource, Plan


class ExportSource(MessageSource):
    """Spark's ``seekpoint-export``; made by :func:`seekpoint.spark.export`."""

    format = "seekpoint-export"

    @classmethod
    def messages(cls, plan: Plan, task: Sequence[Any]) -> Iterator[Any]:
        for carried in task:
            range_ = range_of(carried)
            written = write_range(resolved(plan["kafka"]), Storage(plan["root"]), UUID(plan["run"]), range_)
            yield carried, written.file, written.records, written.bytes, written.sha256
