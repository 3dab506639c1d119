"""Jobs, for programs that apply, export or rebuild a whole log at once: ``BatchJob``, ``Export``, ``Reload``.

``BatchJob`` applies the log from the stored to the end offsets, like a worker with one long transaction. ``Export``
writes the log up to the stored offsets to the files of an ``Archive``. ``Reload`` rebuilds the tables of pipelines from
the log, and publishes the rows in one transaction. Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seekpoint.jobs.batch import BatchDone, BatchJob, RunDeadLetter
    from seekpoint.jobs.export import Archive, ArchivedReader, Entry, Export, Exported, Writer, Written
    from seekpoint.jobs.reload import (
        CatchUp,
        CutOver,
        Difference,
        Driver,
        Reload,
        Report,
        Run,
        Sample,
        Staged,
        StagedPosition,
        Stager,
        Task,
        stage_range,
    )
    from seekpoint.kafka.ranges import Piece, Range

__all__ = [
    "Archive",
    "ArchivedReader",
    "BatchDone",
    "BatchJob",
    "CatchUp",
    "CutOver",
    "Difference",
    "Driver",
    "Entry",
    "Export",
    "Exported",
    "Piece",
    "Range",
    "Reload",
    "Report",
    "Run",
    "RunDeadLetter",
    "Sample",
    "Staged",
    "StagedPosition",
    "Stager",
    "Task",
    "Writer",
    "Written",
    "stage_range",
]


def __getattr__(name: str) -> Any:
    """Import a job when it is first used."""
    if name in {"BatchDone", "BatchJob", "RunDeadLetter"}:
        from seekpoint.jobs import batch  # noqa: PLC0415 -- the driver and the client

        return getattr(batch, name)
    if name in {"Archive", "ArchivedReader", "Entry", "Export", "Exported", "Writer", "Written"}:
        from seekpoint.jobs import export  # noqa: PLC0415 -- the driver and the client

        return getattr(export, name)
    if name in {"Piece", "Range"}:
        from seekpoint.kafka import ranges  # noqa: PLC0415 -- the driver and the client

        return getattr(ranges, name)
    if name in __all__:
        from seekpoint.jobs import reload  # noqa: PLC0415 -- the driver and the client

        return getattr(reload, name)
    raise AttributeError(f"module 'seekpoint.jobs' has no attribute {name!r}")
