"""What the workers of a pool run: a row per record; poison, a row that the database refuses, a crash of the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from seekpoint import Append, Bytes, Pipeline, Poison
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import Record

GOOD, POISON, REFUSED, CRASHING = (  # as msgspec writes them
    b'{"worker":"any"}',
    b'{"worker":null}',
    b'{"worker":"refused"}',
    b'{"worker":"crashing"}',
)

ORIGINS = ("topic", "partition", "offset")


def pipeline_of(what: Mapping[str, Any]) -> Pipeline[Any, Any]:
    """The pipeline that ``what`` describes."""
    return Pipeline(
        what["group"],
        topics=what["topic"],
        value=Bytes(),
        sinks=[_by_row(Append if what["durable"] else _ByCopy, what["table"], what["name"])],
        synchronous_commit=what["durable"],
        on_poison="dead_letter",
        dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None),
    )


class _ByCopy(Append[bytes, Any]):
    """Chunks come while the COPY is open: a small batch is sent at once for ``Append`` itself alone."""


def _by_row(sink: type[Append[bytes, Any]], table: str, name: str) -> Append[bytes, Any]:
    def row(record: Record[bytes, Any]) -> tuple[str, int, int, str]:
        if record.value == POISON:
            raise Poison("broken", record)
        _crash_at([record.value])
        return record.topic, record.partition, record.offset, "refused" if record.value == REFUSED else name

    return sink(table, columns=[*ORIGINS, "worker"], row=row)


def _crash_at(values: Sequence[bytes | None]) -> None:
    if CRASHING in values:
        os.kill(os.getpid(), signal.SIGKILL)
