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
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from sqlalchemy import Connection, Engine, text

from seekpoint import Append, Batch, Pipeline, Upsert, events
from seekpoint.admin import Admin
from seekpoint.codecs import Avro, Debezium, JsonSchema, Protobuf
from seekpoint.errors import CodecUnavailable, ConfigError
from seekpoint.records import Cause
from seekpoint.testing import process, raw
from support.debezium import golden_avro
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
class RegistryGroup:
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
            rows = connection.execute(text(f'SELECT id, amount, at, uid FROM "{self.schema}".orders ORDER BY id'))
            return [tuple(row) for row in rows]

    def ids(self) -> list[int]:
        """The orders it has."""
        return [row[0] for row in self.rows()]


@pytest.fixture
def registry_group(request: pytest.FixtureRequest, registry: SchemaRegistry, group: str) -> RegistryGroup:
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
    return RegistryGroup(registry, engine, schema, name, pipeline, produce, work)


def test_avro_becomes_typed_rows(registry_group: RegistryGroup) -> None:
    """Two schemas of one subject, the id before the data and in a header, and nothing asked twice."""
    name, registry = registry_group.topic, registry_group.registry
    registry_group.send(OLD, *(order(n) for n in range(700)))
    headers: list[Any] = []
    (late,) = encode(registry, name, NEW, order(700, note="x"), headers=headers)
    registry_group.produce(name, [late], headers=headers)
    run = registry_group.work(registry_group.pipeline)
    run.finish(name, 701)
    assert registry_group.rows() == [(n, Decimal("12.30"), AT, UID) for n in range(701)]
    asked = [path.split("?")[0].split("/")[2] for path in registry.asked if path.startswith("/schemas")]
    assert asked == ["ids", "guids"]


def test_defaults_of_the_readers_schema_are_stored_as_values(registry_group: RegistryGroup, group: str) -> None:
    """Records from before three fields were added, and one that has them; the added uid is on fixed(16)."""
    name, registry = registry_group.topic, registry_group.registry
    uid = {"type": "fixed", "name": "Uid", "size": 16, "logicalType": "uuid"}
    added = zip(FIELDS[1:3], ("1", 1_000_000), strict=True)
    fields = [FIELDS[0], *({**field, "default": default} for field, default in added)]
    fields.append({"name": "uid", "type": uid, "default": "\x00" * 15 + "\x09"})
    whole = {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}
    registry_group.send(json.dumps({**whole, "fields": FIELDS[:1]}), *({"id": n} for n in range(3)))
    registry_group.send(json.dumps(whole), {**order(3), "uid": UID.bytes})
    codec = Avro(Order, registry=registry.url, schema=json.dumps(whole))
    run = registry_group.work(
        Pipeline(group, topics=name, value=codec, sinks=[Append(f"{registry_group.schema}.orders")])
    )
    run.finish(name, 4)
    default = (Decimal("0.49"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), UUID(int=9))
    assert registry_group.rows() == [*((n, *default) for n in range(3)), (3, Decimal("12.30"), AT, UID)]


def test_keys_and_messages_reach_a_handler(registry_group: RegistryGroup, group: str) -> None:
    name, registry = registry_group.topic, registry_group.registry
    seen: list[tuple[Any, Any]] = []
    client = SchemaRegistryClient({"url": registry.url})
    serialize = ProtobufSerializer(SHOP["Item"], client, {"use.deprecated.format": False})
    value = serialize(SHOP["Item"](sku="s", count=3), SerializationContext(name, MessageField.VALUE))
    (key,) = encode(registry, name, '"long"', 2**40, field="key")
    registry_group.produce(name, [(key, value), (None, None)])

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        seen.extend((record.key, record.value) for record in batch)

    codec = Protobuf(SHOP["Item"], registry=registry.url, tombstones=True)
    key_codec, written = Avro(int, registry=registry.url), f"{registry_group.schema}.orders"
    run = registry_group.work(Pipeline(group, topics=name, key=key_codec, value=codec, handle=handle, writes=[written]))
    run.finish(name, 2)
    assert seen == [(2**40, SHOP["Item"](sku="s", count=3)), (None, None)]


def test_a_bad_record_is_a_dead_letter_and_the_others_are_applied(registry_group: RegistryGroup) -> None:
    name, registry = registry_group.topic, registry_group.registry
    good = encode(registry, name, OLD, *(order(n) for n in range(3)))
    (other,) = encode(registry, name, '{"type": "record", "name": "Empty", "fields": []}', {})
    (number,) = encode(registry, name, '"long"', 5)
    unknown = b"\x00" + struct.pack(">I", 77) + b"\x0a\x0a"
    registry_group.produce(name, [good[0], b'{"id": 1}', unknown, good[1], number, other, None, good[2]])
    run = registry_group.work(registry_group.pipeline)
    run.finish(name, 8)
    assert registry_group.ids() == [0, 1, 2]
    aside = run.seen.all(events.DeadLettered)
    assert {dead_letter.failure.cause for dead_letter in aside} == {Cause.DECODE}
    errors = {dead_letter.offset: dead_letter.failure.error for dead_letter in aside}
    assert errors.keys() == {1, 2, 4, 5, 6}
    assert "Invalid magic byte" in errors[1]
    assert "LookupError: schema 77 is not in the registry" in errors[2]
    assert "ValidationError" in errors[4]
    assert not run.seen.all(events.CodecTrouble)


def test_json_that_does_not_fit_its_schema_is_a_dead_letter(registry_group: RegistryGroup, group: str) -> None:
    """The others' amounts have all their digits."""
    name, registry = registry_group.topic, registry_group.registry
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "amount": {"type": "number", "minimum": 0}}}
    client = SchemaRegistryClient({"url": registry.url})
    number = client.register_schema(f"{name}-value", Schema(json.dumps(schema), "JSON"))
    bodies = [
        b'{"id": %d, "amount": %s, "at": "2024-01-02T03:04:05.678901Z", "uid": "%s"}' % (n, amount, str(UID).encode())
        for n, amount in enumerate([b"0.10", b"-1", b"12345678901234567890.123456789"])
    ]
    registry_group.produce(name, [b"\0" + struct.pack(">I", number) + body for body in bodies])
    codec = JsonSchema(Order, registry=registry.url)
    sink = Append(f"{registry_group.schema}.orders")
    run = registry_group.work(Pipeline(group, topics=name, value=codec, sinks=[sink], on_poison="dead_letter"))
    run.finish(name, 3)
    assert [(row[0], str(row[1])) for row in registry_group.rows()] == [
        (0, "0.10"),
        (2, "12345678901234567890.123456789"),
    ]
    [aside] = run.seen.all(events.DeadLettered)
    assert aside.failure.error == "ValueError: -1 is less than the minimum of 0 - at `$.amount`"


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("how", ["refused", "silent", "503"])
def test_while_the_registry_is_away_the_worker_waits_without_dead_letters(
    how: str, registry_group: RegistryGroup
) -> None:
    """Known schemas are decoded without it; the first unknown one waits, and everything is there when it is back."""
    name, registry = registry_group.topic, registry_group.registry
    old = encode(registry, name, OLD, *(order(n) for n in range(100)))
    new = encode(registry, name, NEW, *(order(n, note="x") for n in range(100, 200)))
    registry_group.produce(name, old[:50])
    run = registry_group.work(registry_group.pipeline)
    run.reached(name, 50)

    if how == "refused":
        registry.stop()
    elif how == "silent":
        registry.silent.set()
    else:
        registry.answer = 503, b"busy"
    registry_group.produce(name, old[50:])
    run.reached(name, 100)
    assert run.health().ready

    registry_group.produce(name, new)
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
    assert registry_group.ids() == list(range(200))
    assert not run.seen.all(events.DeadLettered)
    assert not run.seen.all(events.PartitionStopped)
    assert len(run.seen.all(events.Recovered)) == 1


def test_a_worker_stops_while_the_registry_is_away_and_another_resumes(registry_group: RegistryGroup) -> None:
    name, registry = registry_group.topic, registry_group.registry
    registry_group.send(OLD, order(0))
    registry.stop()
    first = registry_group.work(registry_group.pipeline)
    first.seen.wait_for(events.CodecTrouble)
    first.stop()
    registry.start()
    registry_group.work(registry_group.pipeline).reached(name, 1)
    assert registry_group.ids() == [0]


def test_a_replay_counts_no_attempt_while_the_registry_is_away(registry_group: RegistryGroup) -> None:
    name, registry = registry_group.topic, registry_group.registry
    (value,) = encode(registry, name, OLD, order(0))
    known, registry.schemas = registry.schemas, []
    registry_group.produce(name, [value])
    run = registry_group.work(registry_group.pipeline)
    run.seen.wait_for(events.DeadLettered)
    run.stop()

    replay = Admin(registry_group.engine, schema=registry_group.schema).dead_letters(registry_group.pipeline)
    (dead_letter,) = replay.list()
    registry.stop()
    with pytest.raises(CodecUnavailable):
        replay.replay(dead_letter.id)
    assert list(replay.list()) == [dead_letter], "as it was"
    registry.schemas = known
    registry.start()
    assert replay.replay(dead_letter.id).is_applied
    assert registry_group.ids() == [0]


def test_refused_credentials_end_the_worker(registry_group: RegistryGroup) -> None:
    registry_group.send(OLD, order(0))
    registry_group.registry.answer = 401, b'{"error_code": 401, "message": "Unauthorized"}'
    run = registry_group.work(registry_group.pipeline)
    stopped = run.seen.wait_for(events.WorkerStopped)
    assert isinstance(stopped.error, ConfigError)
    with pytest.raises(ConfigError, match="refuses the credentials: Unauthorized"):
        run.stop()
    assert not run.seen.all(events.DeadLettered)


def test_the_unit_of_work_raises_it_streamed_or_collected(registry_group: RegistryGroup, group: str) -> None:
    """Streamed into one sink or collected for a handler: nothing is written, and the position stays."""
    registry = registry_group.registry
    encode(registry, "orders", OLD, order(0))
    framed = raw(b"\x00\x00\x00\x00\x01\x00", topic="orders")
    registry.stop()
    codec = Avro(Order, registry=quick(registry))
    sink = Append(f"{registry_group.schema}.orders")
    variants: list[dict[str, Any]] = [
        {"sinks": [sink]},
        {"sinks": [sink], "key": Avro(registry=quick(registry))},
        {"handle": lambda tx, batch: None, "writes": ["t"]},
    ]
    for number, options in enumerate(variants):
        pipeline = Pipeline(f"{group}-{number}", topics="orders", value=codec, on_poison="skip", **options)
        with pytest.raises(CodecUnavailable):
            process(pipeline, registry_group.engine, [framed], schema=registry_group.schema)
    assert not registry_group.rows()
    with registry_group.engine.connect() as connection:
        count = text(f'SELECT count(*) FROM "{registry_group.schema}".dead_letter')
        assert connection.execute(count).scalar_one() == 0


def test_changes_in_avro_wait_for_the_registry(registry_group: RegistryGroup, group: str) -> None:
    """Debezium's keys and values: nothing is a dead letter while the registry is away, and all are applied then."""
    name, registry = registry_group.topic, registry_group.registry
    client = SchemaRegistryClient({"url": registry.url})
    changes = golden_avro("schema", name, source="dbz.shop.fulls", client=client)[:2]
    path = f"{registry_group.schema}.fulls"
    with registry_group.engine.begin() as tx:
        tx.execute(text(f'CREATE TABLE "{registry_group.schema}".fulls (id int PRIMARY KEY, email text, name text)'))
    codec = Debezium(registry=quick(registry))
    sink = Upsert(path, key=["id"], columns=["id", "email", "name"], changes=True)
    registry_group.produce(name, [(record.key, record.value) for record in changes])
    registry.stop()
    run = registry_group.work(
        Pipeline(group, topics=name, value=codec, key=codec, sinks=[sink], on_poison="dead_letter")
    )
    assert "no answer from the schema registry" in run.seen.wait_for(events.CodecTrouble).error
    registry.start()
    run.finish(name, 2)
    with registry_group.engine.connect() as connection:
        rows = connection.execute(text(f'SELECT * FROM "{registry_group.schema}".fulls')).all()
    assert rows == [(1, "c@d", "Ada")]
    assert not run.seen.all(events.DeadLettered)
