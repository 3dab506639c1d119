"""The pipeline of a pool's workers: a row per record; some records are poison, refused, or crash their process.

In a pool with ``changes`` each record is also a change of a row, as Debezium writes it: see :class:`_Changes`. In a
pool with ``waits`` the handler fails on some records, again and again: see :func:`_awaited`. In a pool with
``cloud_events`` the load wraps each value by :func:`as_event`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from chaos.worker.checks import CHANGED, FIRSTS, SUMS, TABLE
from seekpoint import Accumulate, Append, Batch, Bytes, Pattern, Pipeline, Poison, Upsert
from seekpoint.codecs import Change, CloudEvent, Debezium, Event
from seekpoint.pipeline.policy import DeadLetterLimits, Retry
from seekpoint.records import RawRecord, Record
from seekpoint.testing import raw
from support.debezium import event, field, key_of

GOOD, POISON, REFUSED, CRASHING, EDITED = (  # as msgspec writes them
    b'{"worker":"any"}',
    b'{"worker":null}',
    b'{"worker":"refused"}',
    b'{"worker":"crashing"}',
    b'{"worker":"edited"}',
)

ORIGINS = ("topic", "partition", "offset")

Row = tuple[Any, ...]
SOON = Retry(attempts=1000, wait_initial=0.1, multiplier=1)
FAILING = 200  # one record in so many


def pipeline_of(what: Mapping[str, Any]) -> Pipeline[Any, Any]:
    """The pipeline that ``what`` describes."""
    row, kind = _row_by(what["name"]), Append if what["durable"] else _ByCopy
    table = "chaos_{name}" if what["found"] else TABLE
    columns = [*ORIGINS, "worker", *(["key", "event"] if what["cloud_events"] else [])]
    sinks: list[Any] = [] if what["awaits"] else [kind(table, columns=columns, row=row)]
    sinks += [_sums(SUMS)] if what["sums"] else []
    sinks += [_changes(CHANGED)] if what["changes"] else []
    sinks += [_firsts(FIRSTS)] if what["firsts"] else []
    codec: Any = _Changes() if what["changes"] else Bytes()
    prefix = re.escape(what["topic"].rpartition(".")[0])
    return Pipeline(
        what["group"],
        topics=Pattern(rf"{prefix}\.(?P<name>[a-z]+)\d*") if what["found"] else what["topic"],
        value=CloudEvent(codec) if what["cloud_events"] else codec,
        key=codec,
        sinks=sinks,
        handle=_awaited(TABLE, row, random.Random(what["name"])) if what["awaits"] else None,
        retry=SOON if what["waits"] else Retry(),
        retry_order=what["waits"] or "partition",
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


def _changes(table: str) -> Upsert[Any, Any]:
    """Applies each record's change to a row."""
    return Upsert(table, key=["p", "id"], columns=["p", "id", "v"], changes=True, offset_column="o")


def _firsts(table: str) -> Upsert[Any, Any]:
    """Keeps the first row of each key: 64 offsets have eight keys, and the records of these alternate."""

    def row(record: Record[Any, Any]) -> Row:
        return record.topic, record.partition, record.offset // 64 * 8 + record.offset % 8, record.offset

    return Upsert(table, key=["topic", "p", "k"], columns=["topic", "p", "k", "o"], on_conflict="keep", row=row)


def as_event(key: str | None, value: bytes) -> tuple[dict[str, str | bytes | None], bytes]:
    """Headers and value of the CloudEvent with this data, and its key as id: structured if the key is even."""
    if key is not None and int(key) % 2 == 0:
        attributes = f'"specversion":"1.0","id":"{key}","source":"/chaos","type":"made"'
        headers: dict[str, str | bytes | None] = {"content-type": "application/cloudevents+json; charset=UTF-8"}
        return headers, f'{{{attributes},"data":{value.decode()}}}'.encode()
    return {"ce_specversion": "1.0", "ce_id": key or "none", "ce_source": "/chaos", "ce_type": "made"}, value


class _Changes(Debezium):
    """Takes each record for a change that its offset decides, in the order of a table's life.

    Of every 32 offsets eight insert rows, eight update them, eight change their keys from ``id`` to ``id + 8``, and
    eight delete them: those with an even ``id`` by a delete, the others by a tombstone alone. ``v`` is the offset. The
    database refuses the row of a snapshot, in the table that has a row for each record.
    """

    def decode(self, record: RawRecord, /) -> Any:
        if record.value == POISON:
            raise Poison("broken", record)
        _crash_at([record.value])
        turn, id_, moved = record.offset % 32 // 8, record.offset % 8, record.offset % 8 + 8
        if record.value == REFUSED:
            return self._of(record, "r", None, {"id": id_, "v": record.offset})
        if turn < 2:
            return self._of(record, "cu"[turn], None, {"id": id_, "v": record.offset})
        if turn == 2:
            return self._of(record, "u", {"id": id_, "v": None}, {"id": moved, "v": record.offset})
        return None if id_ % 2 else self._of(record, "d", {"id": moved, "v": None}, None)

    def decode_key(self, record: RawRecord, /) -> Any:
        turn = record.offset % 32 // 8
        return super().decode_key(raw(None, key=key_of(p=record.partition, id=record.offset % 8 + 8 * (turn > 1))))

    def _of(self, record: RawRecord, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Any:
        p = {"p": record.partition}
        rows = [None if row is None else p | row for row in (before, after)]
        fields = [field("p", "int32"), field("id", "int32"), field("v", "int64")]
        return super().decode(raw(event(fields, op, *rows), topic=record.topic))


def _row_by(name: str) -> Callable[[Record[Any, Any]], Row]:
    def row(record: Record[Any, Any]) -> Row:
        event = record.value if isinstance(record.value, Event) else None
        value = record.value if event is None else event.data
        if value == POISON:
            raise Poison("broken", record)
        _crash_at([value])
        is_refused = value == REFUSED or (isinstance(value, Change) and value.op == "r")
        worker = "refused" if is_refused else "edited" if value == EDITED else name
        columns = record.topic, record.partition, record.offset, worker
        if event is None:
            return columns
        return (*columns, record.key and record.key.decode(), f"{event.type} {event.id} {event.data.decode()}")

    return row


def _awaited(
    table: str, row: Callable[[Record[bytes, Any]], Row], chance: random.Random
) -> Callable[[AsyncConnection, Batch[bytes, Any]], Awaitable[None]]:
    """An async handler that writes these rows, with a task and a statement for each partition.

    Three times of four it raises for a record that its offset decides.
    """
    insert = _insert(table)

    def values(record: Record[bytes, Any]) -> dict[str, Any]:
        is_failing = zlib.crc32(f"{record.partition}/{record.offset}".encode()) % FAILING == 0
        if is_failing and chance.random() < 0.75:
            raise TimeoutError(f"no answer for {record.offset}")
        key = None if record.key is None else record.key.decode()
        return dict(zip((*ORIGINS, "worker"), row(record), strict=True)) | {"key": key}

    async def handle(tx: AsyncConnection, batch: Batch[bytes, Any]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for records in batch.by_partition().values():
                tasks.create_task(tx.execute(insert, [values(record) for record in records]))

    return handle


def _insert(table: str) -> TextClause:
    columns = (*ORIGINS, "worker", "key")
    names, values = ", ".join(f'"{name}"' for name in columns), ", ".join(f":{name}" for name in columns)
    return text(f"INSERT INTO {table} ({names}) VALUES ({values})")


def _crash_at(values: Sequence[bytes | None]) -> None:
    if CRASHING in values:
        os.kill(os.getpid(), signal.SIGKILL)
