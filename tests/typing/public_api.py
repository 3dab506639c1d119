"""What a type checker knows of the public API. Checked by mypy and by pyright; never run.

Each line that must be refused says so, for both: an unused ``type: ignore`` is an error, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, assert_type

import msgspec
from sqlalchemy import Connection, Engine

from seekpoint import (
    Accumulate,
    Append,
    Assignment,
    Batch,
    Bytes,
    Claim,
    Claimed,
    Handler,
    Health,
    Json,
    Ledger,
    Limits,
    Partition,
    Pattern,
    Pipeline,
    Poison,
    Position,
    RawRecord,
    Record,
    Span,
    StartAt,
    Text,
    Upsert,
    Worker,
    consumer_config,
)
from seekpoint.codecs import Arrow, Avro, Codec, Protobuf
from seekpoint.errors import PartitionStopped
from seekpoint.events import Event
from seekpoint.sinks import AppendArrow, Row, Sink, SinkWriter, Writer
from seekpoint.testing import Processed, batch, process, raw, record


class Order(msgspec.Struct):
    id: int


class Refund(msgspec.Struct):
    reason: str


class OrderByVersion:
    """A codec that sees headers."""

    def decode(self, record: RawRecord, /) -> Order:
        return Order(len(record.headers))


def parse(data: bytes) -> Order:
    return Order(len(data))


def post(tx: Connection, batch: Batch[Order, bytes | None]) -> None:
    assert_type([record.value.id for record in batch], list[int])


def post_by_text(tx: Connection, batch: Batch[Order, str | None]) -> None: ...
def post_by_bytes(tx: Connection, batch: Batch[Order, bytes]) -> None: ...
def post_both(tx: Connection, batch: Batch[Order | Refund, bytes | None]) -> None: ...
def post_present_or_null(tx: Connection, batch: Batch[Order | None, bytes | None]) -> None: ...
def post_anything(tx: Connection, batch: Batch[Any, Any]) -> None: ...
def post_refunds(tx: Connection, batch: Batch[Refund, bytes | None]) -> None: ...


class Posting:
    def __call__(self, tx: Connection, batch: Batch[Order, Any], *, currency: str = "EUR") -> None: ...


def row(record: Record[Order, bytes | None]) -> tuple[int]:
    return (record.value.id,)


def row_of_any_key(record: Record[Order, Any]) -> tuple[int]:
    return (record.value.id,)


def rows(record: Record[Order, bytes | None]) -> list[tuple[int]]:
    return [(record.value.id,)]


def row_of_refund(record: Record[Refund, bytes | None]) -> tuple[str]:
    return (record.value.reason,)


def row_of_text_key(record: Record[Order, str | None]) -> tuple[str | None]:
    return (record.key,)


class OrderWriter(SinkWriter[Order, Any]):
    """A writer of one's own."""

    def rows(self, record: Record[Order, Any]) -> Iterable[Row]:
        return [(record.value.id,)]

    def open(self, tx: Connection) -> AbstractContextManager[Writer]:
        raise NotImplementedError


class OrderSink(Sink[Order, Any]):
    """A sink of one's own, for records of one type."""

    @property
    def tables(self) -> tuple[str, ...]:
        return ("t",)

    def takes(self, topic: str) -> bool:
        return True

    def writer(self) -> OrderWriter:
        return OrderWriter()


def types_come_from_the_codecs() -> None:
    assert_type(Pipeline("g", topics="t", value=Json(Order), handle=post), Pipeline[Order, bytes])
    assert_type(Pipeline("g", topics=["t", "u"], value=parse, handle=post), Pipeline[Order, bytes])
    assert_type(Pipeline("g", topics=Pattern("t.*"), value=Json(Order), handle=post), Pipeline[Order, bytes])
    assert_type(Pipeline("g", topics=Pattern("t.*"), value=parse, handle=post).with_topics("t"), Pipeline[Order, bytes])
    assert_type(Pipeline("g", topics="t", value=OrderByVersion(), handle=post), Pipeline[Order, bytes])
    assert_type(Pipeline("g", topics="t", value=Json(Order), key=Text(), handle=post_by_text), Pipeline[Order, str])
    assert_type(Pipeline("g", topics="t", value=Json(Order), key=Bytes(), handle=post), Pipeline[Order, bytes])
    assert_type(Pipeline("g", topics="t", value=Json(Order), handle=post_anything), Pipeline[Order, bytes])
    assert_type(Pipeline("g", topics="t", value=Json(Order), handle=Posting()), Pipeline[Order, bytes])
    assert_type(Pipeline("g", topics="t", value=Json(), handle=post), Pipeline[Any, bytes])
    assert_type(Pipeline("g", topics="t", value=Text(), sinks=[Append("t")]), Pipeline[str, bytes])
    assert_type(Pipeline("g", topics="t", value=Bytes(), sinks=[Append("t")]), Pipeline[bytes, bytes])
    assert_type(Pipeline("g", topics="t", value=Avro(Order, registry="u"), handle=post), Pipeline[Order, bytes])
    assert_type(Pipeline("g", topics="t", value=Arrow(), sinks=[AppendArrow("t")]), Pipeline[Any, bytes])
    Pipeline("g", topics="t", value=Protobuf(Any, registry=None, type=Order), handle=post)


def the_handlers_type_is_checked() -> None:
    Pipeline("g", topics="t", value=Json(Order), handle=post_refunds)  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=parse, handle=post_refunds)  # type: ignore[arg-type]
    Pipeline("g", topics=Pattern("t.*"), value=parse, handle=post_refunds)  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=OrderByVersion(), handle=post_refunds)  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Avro(Order, registry="u"), handle=post_refunds)  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Order), sinks=[Append("t")], handle=post_refunds)  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Order), handle=post_by_text)  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Order), key=Text(), handle=post)  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Order), handle=post_by_bytes)  # type: ignore[arg-type] # a key may be null
    Pipeline("g", topics={"t": Json(Order)}, handle=post_by_text)  # type: ignore[arg-type]


def the_rows_type_is_checked() -> None:
    Pipeline("g", topics="t", value=Json(Order), sinks=[Append("t", row=row), Append("u", rows=rows)])
    Pipeline("g", topics=Pattern("t.*"), value=Json(Order), sinks=[Append(lambda topic: topic.upper(), row=row)])
    Pipeline("g", topics=Pattern("t.*"), value=Json(Refund), sinks=[Append(str.upper, row=row)])  # type: ignore[arg-type]
    Append(len)  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Order), sinks=[Append("t"), Upsert("u", key=["id"]), AppendArrow("v")])
    Pipeline("g", topics="t", value=Json(Order), sinks=[Accumulate("t", key=["id"], add=["n"], row=row)])
    Pipeline("g", topics="t", value=Json(Refund), sinks=[Accumulate("t", key=["id"], add=["n"], row=row)])  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Order), key=Text(), sinks=[Append("t", row=row_of_any_key)])
    Pipeline("g", topics="t", value=Json(Order), sinks=[Append("t", row=lambda r: (r.value.id, r.offset))])
    Pipeline("g", topics="t", value=Json(Order), sinks=[OrderSink()], handle=post)
    Pipeline("g", topics="t", value=Json(Order), sinks=[Append("t", row=row_of_refund)])  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Order), sinks=[Append("t", row=row_of_text_key)])  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Refund), sinks=[Append("t", rows=rows)])  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Refund), sinks=[AppendArrow("t", row=row)])  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Refund), sinks=[Upsert("t", key=["id"], row=row)])  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Json(Refund), sinks=[Append("t"), OrderSink()])  # type: ignore[list-item]
    Pipeline("g", topics="t", value=Json(Order), sinks=[Append("t", row=lambda r: (r.value.reason,))])  # type: ignore[attr-defined]
    Pipeline("g", topics="t", value=Json(Order), sinks=["t"])  # type: ignore[list-item]


def null_values_are_typed() -> None:
    deletable = Json(Order, tombstones=True)
    assert_type(Pipeline("g", topics="t", value=deletable, handle=post_present_or_null), Pipeline[Order | None, bytes])
    Pipeline("g", topics="t", value=Json(Order), handle=post_present_or_null)
    Pipeline("g", topics="t", value=deletable, sinks=[Upsert("t", key=["id"], row=row)])  # row= gets no null value
    Pipeline("g", topics="t", value=deletable, sinks=[Accumulate("t", key=["id"], add=["n"], row=row)])  # nor here
    # pyright takes the record of a lambda for one that may be null.
    of_lambda = Upsert("t", key=["id"], row=lambda r: (r.offset,))
    Pipeline("g", topics="t", value=deletable, sinks=[of_lambda])
    Pipeline("g", topics="t", value=deletable, handle=post)  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=deletable, sinks=[Append("t", row=row)])  # type: ignore[arg-type]
    Pipeline("g", topics="t", value=Avro(Order, registry="u", tombstones=True), handle=post)  # type: ignore[arg-type]


def values_of_several_types_are_not_checked() -> None:
    """A sink may take one topic alone, and a type checker does not know which."""
    codecs = {"t": Json(Order), "u": Json(Refund)}
    of_refunds = Append("u", row=row_of_refund, topics=["u"])
    assert_type(Pipeline("g", topics=codecs, handle=post_both), Pipeline[Any, bytes])
    Pipeline("g", topics={"t": Json(Order), "u": OrderByVersion()}, handle=post)
    Pipeline("g", topics={"t": Json(Order), "u": Json(Refund)}, sinks=[Append("t", row=row, topics=["t"]), of_refunds])
    Pipeline("g", topics={"t": Json(Order), "u": Json(Refund)}, key=Text(), handle=post_anything)


declared: Pipeline[Order, bytes] = Pipeline("g", topics="t", value=Json(Order), handle=post_anything)
of_text: Pipeline[Order, str] = Pipeline("g", topics="t", value=Json(Order), key=Text(), handle=post_anything)
wrong: Pipeline[Order, bytes] = Pipeline("g", topics="t", value=Json(Refund), handle=post_anything)  # type: ignore[arg-type]


class Orders(Pipeline[Order, bytes]):
    """A pipeline with a constructor of its own."""

    def __init__(self, group: str, extra: Sequence[Sink[Order, bytes | None]] = ()) -> None:
        super().__init__(group, topics="t", value=Json(Order), sinks=[Append("t"), *extra], handle=post)


def untyped_parts_fit(value: Codec, sinks: list[Sink], handle: Handler, options: dict[str, Any]) -> Pipeline:
    Pipeline("g", topics="t", value=value, sinks=sinks, handle=handle)
    return Pipeline("g", topics="t", value=Json(Order), sinks=sinks, handle=handle, **options)


def pipelines_of_any_type_run(engine: Engine, make: Callable[[], Pipeline]) -> None:
    for pipeline in (declared, of_text, Orders("g"), make()):
        Worker(pipeline, engine=engine, kafka={})
        process(pipeline, engine, [raw(b"{}")])


# -- everything else --------------------------------------------------------------------------------------------


def codecs(data: bytes) -> None:
    assert_type(Json(Order), Json[Order])
    assert_type(Json(Order)(data), Order)
    assert_type(Json(Order, tombstones=True)(data), Order | None)
    assert_type(Json()(data), Any)
    assert_type(Json(dict[str, int])(data), dict[str, int])
    assert_type(Text()(data), str)
    assert_type(Bytes()(data), bytes)
    Json("Order")  # type: ignore[call-overload]


def records(record: Record[Order, str], some: Batch[Order, str]) -> None:
    assert_type(record.value, Order)
    assert_type(record.key, str)
    assert_type(record.headers, tuple[tuple[str, bytes | None], ...])
    assert_type(record.timestamp, datetime | None)
    assert_type(record.leader_epoch, int | None)
    assert_type(record.id, str)
    assert_type(some[0], Record[Order, str])
    assert_type(some[1:], tuple[Record[Order, str], ...])
    assert_type([r.value.id for r in some], list[int])
    assert_type(some.by_partition(), Mapping[Partition, Sequence[Record[Order, str]]])
    assert_type(some.spans, tuple[Span, ...])
    assert_type(some.spans[0].partition.number, int)
    raise Poison("why", record)


async def post_later(tx: Connection, some: Batch[Order, bytes | None]) -> None:
    """A handler that would never run."""


def declarations() -> None:
    Pipeline("g", topics="orders", value=Json(Order), handle=post)
    Pipeline("g", topics=["a", "b"], value=parse, key=Bytes(), handle=post, writes=["t"], version=2)
    Pipeline("g", topics={"a": Json(Order), "b": OrderByVersion()}, sinks=[Append("s.t"), Append(("s", "t"))])
    Pipeline("g", topics="orders", value=OrderByVersion(), handle=post, start=StartAt.offsets({("orders", 0): 5}))
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
    assert_type(claimed.granted, Mapping[Partition, Claim])
    assert_type(claimed.refused, Mapping[Partition, PartitionStopped])


def kit(pipeline: Pipeline, engine: Engine) -> None:
    assert_type(raw(b"{}", topic="orders"), RawRecord)
    assert_type(record(Order(1)).value, Order)
    assert_type(batch(record(1)), Batch[Any, Any])
    assert_type(process(pipeline, engine, [raw(b"{}")]), Processed)
    assert_type(process(pipeline, engine, []).stopped, Mapping[Partition, PartitionStopped])
