"""Rows and whole columns to COPY, from JSON, Avro, Protobuf and Arrow: the same payments, one worker, exactly once.

The records have typed fields (numbers, times), as these formats do. ``long way`` uses Confluent's deserializer for
every record. A record of the Arrow topic has 1,000 payments.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from sqlalchemy import Connection

from demo.flights import PARTITIONS
from peers import kinds
from seekpoint import Append, Batch, Json, Limits, Pipeline, Worker, events
from seekpoint.codecs import Avro, Codec, Protobuf
from seekpoint.codecs.arrow import Arrow
from seekpoint.sinks.arrow import AppendArrow, copy_into
from setting import BATCH, BROKERS, LIMIT, URL, upgrade
from subject import KIND, Clock, fresh_table

PAYMENTS = min(LIMIT, 200_000)
TOGETHER = 1000  # payments in a record of the Arrow topic
REGISTRY = SchemaRegistryClient.new_client({"url": "mock://"})


class Typed(msgspec.Struct, frozen=True, gc=False):
    """A payment with typed fields."""

    id: int
    account: int
    amount: Decimal
    kind: str
    at: datetime
    note: str


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "account", "type": "int"},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
            {"name": "kind", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "note", "type": "string"},
        ],
    }
)
ARROW = pa.schema(
    {
        "id": pa.int64(), "account": pa.int32(), "amount": pa.decimal128(12, 2), "kind": pa.string(),
        "at": pa.timestamp("ms", "UTC"), "note": pa.string(),
    }
)  # fmt: skip


def _message() -> Any:
    """The class that protoc would generate."""
    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="payment.proto", package="bench", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Payment")
    types = (proto.TYPE_INT64, proto.TYPE_INT32, proto.TYPE_STRING, proto.TYPE_STRING, None, proto.TYPE_STRING)
    for number, (name, kind) in enumerate(zip(Typed.__struct_fields__, types, strict=True), 1):
        field = message.field.add(name=name, number=number, label=proto.LABEL_OPTIONAL)
        if kind is None:
            field.type, field.type_name = proto.TYPE_MESSAGE, ".google.protobuf.Timestamp"
        else:
            field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Payment"))


MESSAGE = _message()


def typed() -> Iterator[Typed]:
    """The payments, with their types."""
    for payment in islice(KIND.make(PAYMENTS), PAYMENTS):
        yield msgspec.convert(msgspec.to_builtins(payment), Typed, strict=False)


def _avro(topic: str) -> Iterator[bytes | None]:
    serialize, context = AvroSerializer(REGISTRY, AVRO), SerializationContext(topic, MessageField.VALUE)
    return (serialize(msgspec.structs.asdict(payment), context) for payment in typed())


def _protobuf(topic: str) -> Iterator[bytes | None]:
    serialize = ProtobufSerializer(MESSAGE, REGISTRY, {"use.deprecated.format": False})
    context = SerializationContext(topic, MessageField.VALUE)
    for payment in typed():
        message = MESSAGE(
            id=payment.id, account=payment.account, amount=str(payment.amount), kind=payment.kind, note=payment.note
        )
        message.at.FromDatetime(payment.at)
        yield serialize(message, context)


def _arrow(_: str) -> Iterator[bytes]:
    payments = typed()
    while rows := list(islice(payments, TOGETHER)):
        written = pa.BufferOutputStream()
        with pa.ipc.new_stream(written, ARROW) as writer:
            writer.write_table(pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], schema=ARROW))
        yield bytes(written.getvalue())


TOPICS: dict[str, Callable[[str], Iterable[bytes | None]]] = {
    "json": lambda _: map(msgspec.json.encode, typed()),
    "avro": _avro,
    "protobuf": _protobuf,
    "arrow": _arrow,
}


def _fill(name: str) -> str:
    """Fill a topic of this format, new in every run, because the registry's schemas are lost with the process."""
    topic = f"columnar_{name}_{secrets.token_hex(3)}"
    values = enumerate(TOPICS[name](topic))
    kinds.send(BROKERS, topic, ({"value": value, "partition": number % PARTITIONS} for number, value in values))
    return topic


def _handle(tx: Connection, batch: Batch[Any, Any]) -> None:
    copy_into(tx, KIND.name, batch.arrow())


class Case(NamedTuple):
    """One way from a format's bytes to COPY."""

    mode: str
    topic: str
    codec: Codec
    does: dict[str, Any]
    size: int = 1  # payments in a record


def _cases() -> Iterator[Case]:
    def registry() -> Any:
        return REGISTRY

    by_row, by_column = {"sinks": [Append(KIND.name)]}, {"sinks": [AppendArrow(KIND.name)]}
    names = Typed.__struct_fields__
    avro, protobuf = Avro(Typed, registry=registry), Protobuf(MESSAGE, registry=registry, type=Typed)
    long: dict[str, Any] = {
        "use.latest.version": False
    }  # an option of Confluent's deserializer: with it, no record takes the fast path
    for name, codec in (("json", Json(Typed)), ("avro", avro), ("protobuf", protobuf)):
        yield Case(f"{name}, rows", name, codec, by_row)
        yield Case(f"{name}, columns", name, codec, by_column)
    yield Case("avro, batch.arrow() and copy_into", "avro", avro, {"handle": _handle, "writes": [KIND.name]})
    yield Case("avro, rows, long way", "avro", Avro(Typed, registry=registry, options=long), by_row)
    slow = Protobuf(MESSAGE, registry=registry, type=Typed, options=long)
    yield Case("protobuf, rows, long way", "protobuf", slow, by_row)
    flattened = {"sinks": [Append(KIND.name, columns=names, rows=lambda record: record.value.to_pylist())]}
    yield Case("arrow, rows", "arrow", Arrow(), flattened, TOGETHER)
    yield Case("arrow, columns", "arrow", Arrow(), by_column, TOGETHER)


def _measure(case: Case, topic: str) -> None:
    fresh_table()
    clock, done, records = Clock(), [0], -(-PAYMENTS // case.size)

    def observe(event: events.Event) -> None:
        match event:
            case events.ChunkRead():
                clock.start()
            case events.Committed():
                done[0] += event.records
                if done[0] >= records:
                    worker.stop()

    group = f"bench-{secrets.token_hex(4)}"
    worker = Worker(
        Pipeline(group, topics=topic, value=case.codec, **case.does),
        engine=URL,
        kafka={"bootstrap.servers": BROKERS},
        limits=Limits(batch_records=max(1, BATCH // case.size)),
        observe=[observe],
    )
    worker.run()
    clock.report("columnar", case.mode, PAYMENTS, payments_per_record=case.size)


if __name__ == "__main__":
    upgrade()
    filled = {name: _fill(name) for name in TOPICS}
    for case in _cases():
        _measure(case, filled[case.topic])
