"""What a type checker knows of the public API. Checked by ``mypy --strict`` with everything else; never run.

Each line that must be refused says so: an unused ``type: ignore`` is an error, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, assert_type

import msgspec
from sqlalchemy import Connection, Engine

from seekpoint import (
    Append,
    Assignment,
    Batch,
    Bytes,
    Json,
    Ledger,
    Limits,
    Partition,
    Pipeline,
    Poison,
    Record,
    Span,
    StartAt,
    Text,
    Worker,
    consumer_config,
)
from seekpoint.errors import PartitionStopped
from seekpoint.events import Event
from seekpoint.ledger import Claim, Claimed, Position
from seekpoint.records import RawRecord
from seekpoint.testing import Processed, batch, process, raw, record
from seekpoint.worker.health import Health


class Order(msgspec.Struct):
    id: int


def codecs(data: bytes) -> None:
    assert_type(Json(Order), Json[Order])
    assert_type(Json(Order)(data), Order)
    assert_type(Json(Order, tombstones=True)(data), Order | None)
    assert_type(Json()(data), Any)
    assert_type(Json(dict[str, int])(data), dict[str, int])
    assert_type(Text()(data), str)
    assert_type(Bytes()(data), bytes)
    Json("Order")  # type: ignore[call-overload]


def records(one: Record[Order, str], some: Batch[Order, str]) -> None:
    assert_type(one.value, Order)
    assert_type(one.key, str)
    assert_type(one.headers, tuple[tuple[str, bytes | None], ...])
    assert_type(one.timestamp, datetime | None)
    assert_type(one.leader_epoch, int | None)
    assert_type(one.id, str)
    assert_type(some[0], Record[Order, str])
    assert_type(some[1:], tuple[Record[Order, str], ...])
    assert_type([r.value.id for r in some], list[int])
    assert_type(some.by_partition(), Mapping[Partition, Sequence[Record[Order, str]]])
    assert_type(some.spans, tuple[Span, ...])
    assert_type(some.spans[0].partition.number, int)
    raise Poison("why", one)


def post(tx: Connection, some: Batch[Order, bytes | None]) -> None:
    """A handler that names its types."""


async def post_later(tx: Connection, some: Batch[Order, bytes | None]) -> None:
    """A handler that would never run."""


class ByVersion:
    """A codec that sees headers."""

    def decode(self, record: RawRecord, /) -> Order:
        return Order(len(record.headers))


def parse(data: bytes) -> Order:
    return Order(len(data))


def declarations() -> None:
    Pipeline("g", topics="orders", value=Json(Order), handle=post)
    Pipeline("g", topics=["a", "b"], value=parse, key=Bytes(), handle=post, writes=["t"], version=2, strict=True)
    Pipeline("g", topics={"a": Json(Order), "b": ByVersion()}, sinks=[Append("s.t"), Append(("s", "t"))])
    Pipeline("g", topics="orders", value=ByVersion(), handle=post, start=StartAt.offsets({("orders", 0): 5}))
    Append("t", columns=["id"], row=lambda r: (r.offset,), topics={"a"})
    Append("t", columns=["id"], rows=lambda r: [(r.offset,)])
    Pipeline("g", topics="orders", value=Json(Order), handle=post_later)  # type: ignore[arg-type]
    Pipeline("g", topics="orders", value="json", handle=post)  # type: ignore[call-overload]
    Pipeline("g", topics="orders", value=Bytes(), sinks=["t"])  # type: ignore[list-item]
    Pipeline("g", topics="orders", value=Json(Order), handle=post, start="earliest")  # type: ignore[call-overload]
    Pipeline("g", topics="orders", value=Json(Order), handle=post, on_poison="skip")
    Pipeline("g", topics="orders", value=Json(Order), handle=post, on_poison="pass")  # type: ignore[call-overload]
    Pipeline("g", "orders", value=Json(Order), handle=post)  # type: ignore[call-overload]
    Limits(batch_records=5, batch_age=0.5)
    Limits(5)  # type: ignore[call-arg]


def seen(event: Event) -> None:
    assert_type(event.at, float)


def working(pipeline: Pipeline, engine: Engine) -> None:
    worker = Worker(pipeline, engine=engine, kafka={"bootstrap.servers": "localhost"}, observe=[seen, print])
    assert_type(worker.health(), Health)
    assert_type(worker.health().stopped, Mapping[Partition, PartitionStopped])
    assert_type(worker.run(), None)
    with worker.running() as running:
        assert_type(running.health().live, bool)
    Worker(pipeline, engine="postgresql://localhost/x", kafka={}, partitions=[("orders", 0)])
    Worker(pipeline, engine="postgresql://localhost/x")  # type: ignore[call-arg]


async def serving(worker: Worker) -> None:
    async with worker.running() as running:
        assert_type(running.health(), Health)


def own_loop(tx: Connection, ledger: Ledger, held: Assignment, messages: list[Any], claimed: Claimed) -> None:
    assert_type(consumer_config({"bootstrap.servers": "localhost"}, group="g"), dict[str, Any])
    chunk = held.accept_poll(messages)
    moved = held.advance(tx, chunk)
    assert_type(moved, list[Claim])
    assert_type(held.accept(moved), None)
    assert_type(held.resync(), None)
    assert_type(ledger.read(), list[Position])
    assert_type(ledger.reset_offset("orders", 0, 5, log=None, reason="why"), Position)
    assert_type(claimed.granted, Mapping[Partition, Claim])
    assert_type(claimed.refused, Mapping[Partition, PartitionStopped])


def kit(pipeline: Pipeline, engine: Engine) -> None:
    assert_type(raw(b"{}", topic="orders"), RawRecord)
    assert_type(record(Order(1)).value, Order)
    assert_type(batch(record(1)), Batch[Any, Any])
    assert_type(process(pipeline, engine, [raw(b"{}")]), Processed)
    assert_type(process(pipeline, engine, []).stopped, Mapping[Partition, PartitionStopped])
