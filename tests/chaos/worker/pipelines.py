"""The pipeline of a pool's workers: a row per record; some records are poison, refused, or crash their process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from seekpoint import Accumulate, Append, Batch, Bytes, Pipeline, Poison
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import Record

GOOD, POISON, REFUSED, CRASHING = (  # as msgspec writes them
    b'{"worker":"any"}',
    b'{"worker":null}',
    b'{"worker":"refused"}',
    b'{"worker":"crashing"}',
)

ORIGINS = ("topic", "partition", "offset")

Row = tuple[str, int, int, str]


def pipeline_of(what: Mapping[str, Any]) -> Pipeline[Any, Any]:
    """The pipeline that ``what`` describes."""
    row, kind = _row_by(what["name"]), Append if what["durable"] else _ByCopy
    sinks: list[Any] = [] if what["awaits"] else [kind(what["table"], columns=[*ORIGINS, "worker"], row=row)]
    return Pipeline(
        what["group"],
        topics=what["topic"],
        value=Bytes(),
        sinks=[*sinks, _sums(what["sums"])] if what["sums"] else sinks,
        handle=_awaited(what["table"], row) if what["awaits"] else None,
        synchronous_commit=what["durable"],
        on_poison="dead_letter",
        dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None),
    )


class _ByCopy(Append[bytes, Any]):
    """An ``Append`` without the fast path for small batches, so that chunks come while the COPY is open."""


def _sums(table: str) -> Accumulate[bytes, Any]:
    """Adds each record to its partition's row, and to a row that all workers write."""

    def rows(record: Record[bytes, Any]) -> list[tuple[Any, ...]]:
        names = ("all", f"p{record.partition}")
        return [(record.topic, name, 1, record.offset, record.offset, record.offset) for name in names]

    key, add = ["topic", "name"], ["records", "offsets"]
    return Accumulate(table, key=key, add=add, least=["lowest"], most=["highest"], rows=rows)


def _row_by(name: str) -> Callable[[Record[bytes, Any]], Row]:
    def row(record: Record[bytes, Any]) -> Row:
        if record.value == POISON:
            raise Poison("broken", record)
        _crash_at([record.value])
        return record.topic, record.partition, record.offset, "refused" if record.value == REFUSED else name

    return row


def _awaited(
    table: str, row: Callable[[Record[bytes, Any]], Row]
) -> Callable[[AsyncConnection, Batch[bytes, Any]], Awaitable[None]]:
    """An async handler that writes these rows, with a task and a statement for each partition."""
    insert = text(
        f'INSERT INTO {table} (topic, partition, "offset", worker) VALUES (:topic, :partition, :offset, :worker)'
    )

    async def handle(tx: AsyncConnection, batch: Batch[bytes, Any]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for records in batch.by_partition().values():
                rows = [dict(zip((*ORIGINS, "worker"), row(record), strict=True)) for record in records]
                tasks.create_task(tx.execute(insert, rows))

    return handle


def _crash_at(values: Sequence[bytes | None]) -> None:
    if CRASHING in values:
        os.kill(os.getpid(), signal.SIGKILL)
