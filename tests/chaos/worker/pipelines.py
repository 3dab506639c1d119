"""What the workers of a pool run: a row per record; poison, a row that the database refuses, a crash of the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import msgspec

from seekpoint import Append, Bytes, Json, Pipeline, Poison
from seekpoint.pipeline import pipeline as declaration
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import LazyRecords, Record
from seekpoint.sinks import copy
from seekpoint.sinks.native.driver_checks import is_exact
from seekpoint.sinks.native.encoder import EncodedRows
from seekpoint.testing.child_process import report

GOOD, POISON, REFUSED, CRASHING = (  # as msgspec writes them
    b'{"worker":"any"}',
    b'{"worker":null}',
    b'{"worker":"refused"}',
    b'{"worker":"crashing"}',
)

ORIGINS = ("topic", "partition", "offset")


class Written(msgspec.Struct):
    """A record's value; topic, partition and offset are columns, too."""

    worker: str


def pipeline_of(what: Mapping[str, Any]) -> Pipeline[Any, Any]:
    """The pipeline that ``what`` describes."""
    native = what["native"] is not None
    return Pipeline(
        what["group"],
        topics=what["topic"],
        value=Json(Written) if native else Bytes(),
        sinks=[_by_compiled_text(what["table"]) if native else _by_row(what["table"], what["name"])],
        synchronous_commit=what["durable"],
        pipeline_mode=what["durable"],  # else each statement is awaited, and chunks come while the COPY is open
        on_poison="dead_letter",
        dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None),
    )


def _by_row(table: str, name: str) -> Append[bytes, Any]:
    def row(record: Record[bytes, Any]) -> tuple[str, int, int, str]:
        if record.value == POISON:
            raise Poison("broken", record)
        _crash_at([record.value])
        return record.topic, record.partition, record.offset, "refused" if record.value == REFUSED else name

    return Append(table, columns=[*ORIGINS, "worker"], row=row)


def _by_compiled_text(table: str) -> Append[Written, Any]:
    """Chunks of any size are encoded; ``CompiledText`` is reported for each that is sent."""

    def checked(*given: Any) -> bool:
        if exact := is_exact(*given):
            report("CompiledText")
        return exact

    patch.object(declaration, "ENCODED", 1).start()
    patch.object(copy, "is_exact", checked).start()
    return CrashingAppend(table, columns=["worker"], provenance=ORIGINS)


class CrashingAppend(Append[Written, Any]):
    """Ends its process at a record with the value ``CRASHING``, decoded or not."""

    def rows(self, record: Record[Written, Any]) -> Any:
        """Of one record."""
        _crash_at([msgspec.json.encode(record.value)])
        return super().rows(record)

    def encoded_rows(self, codec: Any, raw: LazyRecords) -> EncodedRows | None:
        """Of many records that are not decoded."""
        _crash_at(raw.values)
        return super().encoded_rows(codec, raw)


def _crash_at(values: Sequence[bytes | None]) -> None:
    if CRASHING in values:
        os.kill(os.getpid(), signal.SIGKILL)
