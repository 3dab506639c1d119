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
from seekpoint.pipeline.sink import Row
from seekpoint.records import LazyRecords, RawRecord, Record
from seekpoint.sinks import copy, small_append
from seekpoint.sinks.native.driver_checks import is_exact
from seekpoint.testing.child_process import report
from seekpoint.worker import apply

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


class CrashingPipeline(Pipeline[Any, Any]):
    """Ends its process at a record with the value ``CRASHING``, decoded or not. Its sink is the library's own."""

    def decode(self, raw: RawRecord) -> Record[Any, Any]:
        """One record."""
        _crash_at([raw.value])
        return super().decode(raw)

    def rows_at_once(self, raw: Sequence[RawRecord]) -> list[Row] | None:
        """Many records, by their values."""
        _crash_at(_values(raw))
        return super().rows_at_once(raw)

    def streamed_rows(self, raw: Sequence[RawRecord]) -> Sequence[Row] | None:
        """Many records that are not decoded."""
        _crash_at(_values(raw))
        return super().streamed_rows(raw)


def _values(raw: Sequence[RawRecord]) -> Sequence[bytes | None]:
    return raw.values if isinstance(raw, LazyRecords) else [one.value for one in raw]


def pipeline_of(what: Mapping[str, Any]) -> Pipeline[Any, Any]:
    """The pipeline that ``what`` describes."""
    native = what["native"] is not None
    kind: type[Pipeline[Any, Any]] = CrashingPipeline if native else Pipeline
    return kind(
        what["group"],
        topics=what["topic"],
        value=Json(Written) if native else Bytes(),
        sinks=[_by_compiled_text(what["table"], what["name"]) if native else _by_row(what["table"], what["name"])],
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


def _by_compiled_text(table: str, name: str) -> Append[Written, Any]:
    """Chunks of any size are encoded; ``CompiledText`` is reported for each that is sent.

    Every other worker sends small batches in two round trips: their rows are Python's. The others have no small batch.
    """

    def checked(*given: Any) -> bool:
        if exact := is_exact(*given):
            report("CompiledText")
        return exact

    patch.object(declaration, "ENCODED", 1).start()
    patch.object(copy, "is_exact", checked).start()
    if int(name.rpartition("-")[2]) % 2:
        patch.object(apply, "MOST_RECORDS_IN_ONE_INSERT", 0).start()
        patch.object(small_append, "MOST_ROWS_PIPELINED", 0).start()
    return Append(table, columns=["worker"], provenance=ORIGINS)


def _crash_at(values: Sequence[bytes | None]) -> None:
    if CRASHING in values:
        os.kill(os.getpid(), signal.SIGKILL)
