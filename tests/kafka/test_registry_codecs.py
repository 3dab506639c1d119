"""Workers whose records need a schema registry: typed rows, poison beside them, and a registry that goes away."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from sqlalchemy import Connection, Engine, text

from seekpoint import Append, Batch, Pipeline, events
from seekpoint.admin import DeadLetterReplay
from seekpoint.codecs.registry import Avro, Protobuf
from seekpoint.errors import CodecUnavailable, ConfigError
from seekpoint.records import Cause
from seekpoint.testing import process, raw
from support.events import Run
from support.schema_registry import SchemaRegistry, shop


class Order(msgspec.Struct):
    id: int
    amount: Decimal
    at: datetime
    uid: UUID


FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
]
OLD = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": FIELDS})
NEW = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [*FIELDS, {"name": "note", "type": "string", "default": ""}],
    }
)
AT, UID = datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), UUID(int=7)
SHOP = shop()


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "amount": Decimal("12.30"), "at": AT, "uid": UID, **more}


def encode(
    registry: SchemaRegistry, topic: str, schema: str, *values: Any, field: str = "value", headers: Any = None
) -> list[bytes | str | None]:
    conf = {} if headers is None else {"schema.id.serializer": header_schema_id_serializer}
    serialize = AvroSerializer(SchemaRegistryClient({"url": registry.url}), schema, conf=conf)
    which = MessageField.KEY if field == "key" else MessageField.VALUE
    return [serialize(value, SerializationContext(topic, which, headers)) for value in values]


def quick(registry: SchemaRegistry) -> dict[str, Any]:
    return {"url": registry.url, "max.retries": 0, "timeout": 3}


@dataclass
class Stand:
    """A topic of orders, a table that takes each id once, a pipeline between them; poison goes to the dead letters."""

    registry: SchemaRegistry
    engine: Engine
    schema: str
    topic: str
    pipeline: Pipeline
    produce: Callable[..., Any]
    work: Callable[[Pipeline], Run]

    def send(self, schema: str, *values: Any) -> None:
        """Append these values, written with this schema."""
        self.produce(self.topic, encode(self.registry, self.topic, schema, *values))

    def rows(self) -> list[tuple[Any, ...]]:
        """What the table has."""
        with self.engine.connect() as connection:
            found = connection.execute(text(f'SELECT id, amount, at, uid FROM "{self.schema}".orders ORDER BY id'))
            return [tuple(row) for row in found]

    def ids(self) -> list[int]:
        """The orders it has."""
        return [row[0] for row in self.rows()]


@pytest.fixture
def stand(request: pytest.FixtureRequest, registry: SchemaRegistry, group: str) -> Stand:
    engine, schema = (request.getfixturevalue(f"seekpoint_{name}") for name in ("engine", "schema"))
    with engine.begin() as tx:
        columns = "id bigint PRIMARY KEY, amount numeric, at timestamptz, uid uuid"
        tx.execute(text(f'CREATE TABLE "{schema}".orders ({columns})'))
    name = request.getfixturevalue("topic")()
    pipeline = Pipeline(
        group,
        topics=name,
        value=Avro(Order, registry=quick(registry)),
        sinks=[Append(f"{schema}.orders")],
        on_poison="dead_letter",
    )
    produce, work = request.getfixturevalue("produce"), request.getfixturevalue("run_worker")
    return Stand(registry, engine, schema, name, pipeline, produce, work)


def test_avro_becomes_typed_rows(stand: Stand) -> None:
    """Two schemas of one subject, the id in front and in a header, and nothing asked twice."""
    name, registry = stand.topic, stand.registry
    stand.send(OLD, *(order(n) for n in range(700)))
    headers: list[Any] = []
    (late,) = encode(registry, name, NEW, order(700, note="x"), headers=headers)
    stand.produce(name, [late], headers=headers)
    run = stand.work(stand.pipeline)
    run.finish(name, 701)
    assert stand.rows() == [(n, Decimal("12.30"), AT, UID) for n in range(701)]
    asked = [path.split("?")[0].split("/")[2] for path in registry.asked if path.startswith("/schemas")]
    assert asked == ["ids", "guids"]


def test_defaults_of_the_readers_schema_are_stored_as_values(stand: Stand, group: str) -> None:
    """Records from before three fields were added, and one that has them; the added uid is on fixed(16)."""
    name, registry = stand.topic, stand.registry
    uid = {"type": "fixed", "name": "Uid", "size": 16, "logicalType": "uuid"}
    added = zip(FIELDS[1:3], ("1", 1_000_000), strict=True)
    fields = [FIELDS[0], *({**field, "default": default} for field, default in added)]
    fields.append({"name": "uid", "type": uid, "default": "\x00" * 15 + "\x09"})
    whole = {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}
    stand.send(json.dumps({**whole, "fields": FIELDS[:1]}), *({"id": n} for n in range(3)))
    stand.send(json.dumps(whole), {**order(3), "uid": UID.bytes})
    codec = Avro(Order, registry=registry.url, schema=json.dumps(whole))
    run = stand.work(Pipeline(group, topics=name, value=codec, sinks=[Append(f"{stand.schema}.orders")]))
    run.finish(name, 4)
    default = (Decimal("0.49"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), UUID(int=9))
    assert stand.rows() == [*((n, *default) for n in range(3)), (3, Decimal("12.30"), AT, UID)]


def test_keys_and_messages_reach_a_handler(stand: Stand, group: str) -> None:
    name, registry = stand.topic, stand.registry
    seen: list[tuple[Any, Any]] = []
    client = SchemaRegistryClient({"url": registry.url})
    serialize = ProtobufSerializer(SHOP["Item"], client, {"use.deprecated.format": False})
    value = serialize(SHOP["Item"](sku="s", count=3), SerializationContext(name, MessageField.VALUE))
    (key,) = encode(registry, name, '"long"', 2**40, field="key")
    stand.produce(name, [(key, value), (None, None)])

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        seen.extend((record.key, record.value) for record in batch)

    codec = Protobuf(SHOP["Item"], registry=registry.url, tombstones=True)
    key_codec, written = Avro(int, registry=registry.url), f"{stand.schema}.orders"
    run = stand.work(Pipeline(group, topics=name, key=key_codec, value=codec, handle=handle, writes=[written]))
    run.finish(name, 2)
    assert seen == [(2**40, SHOP["Item"](sku="s", count=3)), (None, None)]


def test_a_bad_record_is_a_dead_letter_and_the_others_are_applied(stand: Stand) -> None:
    name, registry = stand.topic, stand.registry
    good = encode(registry, name, OLD, *(order(n) for n in range(3)))
    (other,) = encode(registry, name, '{"type": "record", "name": "Empty", "fields": []}', {})
    (number,) = encode(registry, name, '"long"', 5)
    unknown = b"\x00" + struct.pack(">I", 77) + b"\x0a\x0a"
    stand.produce(name, [good[0], b'{"id": 1}', unknown, good[1], number, other, None, good[2]])
    run = stand.work(stand.pipeline)
    run.finish(name, 8)
    assert stand.ids() == [0, 1, 2]
    aside = run.seen.all(events.DeadLettered)
    assert {one.failure.cause for one in aside} == {Cause.DECODE}
    told = {one.offset: one.failure.error for one in aside}
    assert told.keys() == {1, 2, 4, 5, 6}
    assert "Invalid magic byte" in told[1]
    assert "LookupError: schema 77 is not in the registry" in told[2]
    assert "ValidationError" in told[4]
    assert not run.seen.all(events.CodecTrouble)


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("how", ["refused", "silent", "503"])
def test_while_the_registry_is_away_the_worker_waits_without_dead_letters(how: str, stand: Stand) -> None:
    """Known schemas are decoded without it; the first unknown one waits, and everything is there when it is back."""
    name, registry = stand.topic, stand.registry
    old = encode(registry, name, OLD, *(order(n) for n in range(100)))
    new = encode(registry, name, NEW, *(order(n, note="x") for n in range(100, 200)))
    stand.produce(name, old[:50])
    run = stand.work(stand.pipeline)
    run.reached(name, 50)

    if how == "refused":
        registry.stop()
    elif how == "silent":
        registry.silent.set()
    else:
        registry.answer = 503, b"busy"
    stand.produce(name, old[50:])
    run.reached(name, 100)
    assert run.health().ready

    stand.produce(name, new)
    trouble = run.seen.wait_for(events.CodecTrouble, count=2)
    assert "no answer from the schema registry at 'http://127.0.0.1" in trouble.error
    assert trouble.wait > 0
    health = run.health()
    assert (health.live, health.ready) == (True, False)
    assert "no answer from the schema registry" in (health.trouble or "")
    assert not run.seen.all(events.Recovered)
    opened = run.seen.mark()
    run.seen.wait_for(events.CodecTrouble, since=opened)
    assert not run.seen.all(events.BatchOpened, since=opened), "it is asked for without a transaction"

    registry.answer = None
    registry.silent.clear()
    if how == "refused":
        registry.start()
    run.seen.wait_for(events.Recovered)
    run.reached(name, 200)
    assert run.health().ready
    run.stop()
    assert stand.ids() == list(range(200))
    assert not run.seen.all(events.DeadLettered)
    assert not run.seen.all(events.PartitionStopped)
    assert len(run.seen.all(events.Recovered)) == 1


def test_a_worker_stops_while_the_registry_is_away_and_another_resumes(stand: Stand) -> None:
    name, registry = stand.topic, stand.registry
    stand.send(OLD, order(0))
    registry.stop()
    first = stand.work(stand.pipeline)
    first.seen.wait_for(events.CodecTrouble)
    first.stop()
    registry.start()
    stand.work(stand.pipeline).reached(name, 1)
    assert stand.ids() == [0]


def test_a_replay_counts_no_attempt_while_the_registry_is_away(stand: Stand) -> None:
    name, registry = stand.topic, stand.registry
    (value,) = encode(registry, name, OLD, order(0))
    known, registry.schemas = registry.schemas, []
    stand.produce(name, [value])
    run = stand.work(stand.pipeline)
    run.seen.wait_for(events.DeadLettered)
    run.stop()

    redrive = DeadLetterReplay(stand.pipeline, stand.engine, schema=stand.schema)
    (letter,) = redrive.list()
    registry.stop()
    with pytest.raises(CodecUnavailable):
        redrive.replay(letter.id)
    assert list(redrive.list()) == [letter], "as it was"
    registry.schemas = known
    registry.start()
    assert redrive.replay(letter.id).is_applied
    assert stand.ids() == [0]


def test_refused_credentials_end_the_worker(stand: Stand) -> None:
    stand.send(OLD, order(0))
    stand.registry.answer = 401, b'{"error_code": 401, "message": "Unauthorized"}'
    run = stand.work(stand.pipeline)
    stopped = run.seen.wait_for(events.WorkerStopped)
    assert isinstance(stopped.error, ConfigError)
    with pytest.raises(ConfigError, match="refuses our credentials: Unauthorized"):
        run.stop()
    assert not run.seen.all(events.DeadLettered)


def test_the_unit_of_work_raises_it_streamed_or_collected(stand: Stand, group: str) -> None:
    """Streamed into one sink or collected for a handler: nothing is written, and the position stays."""
    registry = stand.registry
    encode(registry, "orders", OLD, order(0))
    framed = raw(b"\x00\x00\x00\x00\x01\x00", topic="orders")
    registry.stop()
    codec = Avro(Order, registry=quick(registry))
    sink = Append(f"{stand.schema}.orders")
    ways: list[dict[str, Any]] = [
        {"sinks": [sink]},
        {"sinks": [sink], "key": Avro(registry=quick(registry))},
        {"handle": lambda tx, batch: None, "writes": ["t"]},
    ]
    for number, way in enumerate(ways):
        pipeline = Pipeline(f"{group}-{number}", topics="orders", value=codec, on_poison="skip", **way)
        with pytest.raises(CodecUnavailable):
            process(pipeline, stand.engine, [framed], schema=stand.schema)
    assert not stand.rows()
    with stand.engine.connect() as connection:
        count = text(f'SELECT count(*) FROM "{stand.schema}".dead_letter')
        assert connection.execute(count).scalar_one() == 0
