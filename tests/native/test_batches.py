"""Whole batches on a real Postgres: with the compiled part the tables are what they are without it."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import secrets
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any
from unittest.mock import patch
from uuid import UUID

import msgspec
import psycopg
import pytest
from psycopg.types.json import Json as JsonType
from psycopg.types.json import JsonDumper
from psycopg.types.numeric import DecimalDumper, FloatDumper
from sqlalchemy import Engine, create_engine, event

from native.odd_json import Field, Odd
from seekpoint import Append, Json, Partition, Pipeline, Upsert
from seekpoint.pipeline import pipeline as declaration
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.pipeline.sink import RowRefused
from seekpoint.records import LazyRecords, RawRecord
from seekpoint.sinks import copy, small_append
from seekpoint.sinks.native import PLAN
from seekpoint.sinks.native.encoder import STOPS
from seekpoint.testing import record
from seekpoint.worker import apply as apply_module
from support.sink_tables import TOPIC, Ground, orders, stopped_at

SQL = {
    "int": "bigint",
    "float": "float8",
    "str": "text",
    "bool": "bool",
    "decimal": "numeric",
    "datetime": "timestamptz",
    "date": "date",
    "time": "timetz",
    "uuid": "uuid",
    "bytes": "bytea",
    "any": "jsonb",
    "object": "jsonb",
    "array": "json",
}


ORIGINS = {"topic": "text", "partition": "int", "offset": "bigint"}


class Order(msgspec.Struct):
    id: int
    note: str | None = None


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few records are encoded, too, and sent by COPY."""
    monkeypatch.setattr(declaration, "ENCODED", 1)
    monkeypatch.setattr(small_append, "MOST_ROWS_PIPELINED", 0)
    monkeypatch.setattr(apply_module, "MOST_RECORDS_IN_ONE_INSERT", 0)


def of(group: str, type_: Any, sink: Any) -> Pipeline:
    return Pipeline(
        group,
        topics=TOPIC,
        value=Json(type_),
        sinks=[sink],
        on_poison="dead_letter",
        dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None),
    )


def values(*, start: int, count: int, note: str = "n") -> list[bytes]:
    return [json.dumps({"id": n, "note": note}).encode() for n in range(start, start + count)]


def apply(ground: Ground, pipeline: Pipeline, first: bytes, given: list[bytes]) -> list[RawRecord]:
    """The first record in a batch of its own: Python makes its row, and from there on the type is known."""
    records = orders(first, *given)
    ground.process(pipeline, records[0])
    ground.process(pipeline, *records)
    return records


def column(field: Field) -> str:
    return f"{field.name} {SQL[field.kind]}{'[]' * field.is_list}"


def test_tables_and_dead_letters_are_the_same_with_and_without(ground: Ground, group: str, sent: list[bool]) -> None:
    """Random types, random records, some of them broken: each goes where it goes without the compiled part."""
    seed = int(os.environ.get("SEED") or secrets.randbits(32))
    print(f"SEED={seed}")
    odd = Odd(seed)
    for n in range(30):
        struct, fields, columns = odd.struct()
        first, given = odd.decodable(struct, fields), [odd.decodable(struct, fields) for _ in range(40)]
        if n % 3 == 0:
            given += [odd.value(struct, fields) for _ in range(5)]
        origins = odd.random.sample(sorted(ORIGINS), odd.random.randint(0, 3))
        provenance = {name: f"the_{name}" for name in origins} or None
        columns_of_table = [*map(column, fields), *(f"the_{name} {ORIGINS[name]}" for name in origins)]
        results = []
        for name in ("with", "without"):
            table = ground.create(", ".join(columns_of_table), f"{name}_{n}")
            sink: Append[Any, Any] = Append(table, columns=columns, provenance=provenance)
            pipeline = of(f"{group}-{name}-{n}", struct, sink)
            with patch("seekpoint.sinks.base.PLAN", PLAN if name == "with" else None):
                apply(ground, pipeline, first, given)
            results.append((rows(ground, f"{name}_{n}"), dead_letters(ground, pipeline), ground.positions(pipeline)))
        assert results[0] == results[1], (seed, fields, origins)
    assert any(sent)


def rows(ground: Ground, name: str) -> list[str]:
    with ground.engine.connect() as tx:
        found = tx.exec_driver_sql(f'SELECT CAST(t AS text) FROM "{ground.schema}"."{name}" t ORDER BY ctid')
        return [row[0] for row in found]


def dead_letters(ground: Ground, pipeline: Pipeline) -> list[tuple[Any, ...]]:
    query = f'SELECT record_offset, cause, error, value FROM "{ground.schema}".dead_letter WHERE consumer_group = %s'
    with ground.engine.connect() as tx:
        found = tx.exec_driver_sql(f"{query} ORDER BY 1", (pipeline.group,))
        return [(offset, cause, error.replace("without_", "with_"), value) for offset, cause, error, value in found]


def test_a_value_that_is_left_to_python_keeps_its_place(ground: Ground, group: str, sent: list[bool]) -> None:
    sink = ground.append("id numeric, note text, n int GENERATED ALWAYS AS IDENTITY")
    ids = [5, 10**20, 6, 10**30, 7]
    apply(ground, of(group, Order, sink), b'{"id": 4}', [b'{"id": %d}' % n for n in ids])
    assert [int(row[1]) for row in ground.rows("n", "id")] == [4, *ids]
    assert sent == [True]


def test_a_chunk_of_many_odd_values_is_pythons(ground: Ground, group: str, sent: list[bool]) -> None:
    sink = ground.append("id numeric, note text, n int GENERATED ALWAYS AS IDENTITY")
    ids = [n if n % 2 else 10**20 + n for n in range(4 * STOPS)]
    apply(ground, of(group, Order, sink), b'{"id": 4}', [b'{"id": %d}' % n for n in ids])
    assert [int(row[1]) for row in ground.rows("n", "id")] == [4, *ids]
    assert sent == [True]


def test_a_refused_row_names_its_own_record(ground: Ground, group: str, sent: list[bool]) -> None:
    sink = ground.append("id numeric CHECK (id <> 77), note text")
    given = [*values(start=50, count=20), b'{"id": 99999999999999999999}', *values(start=71, count=20)]
    pipeline = Pipeline(group, topics=TOPIC, value=Json(Order), sinks=[sink])
    records = orders(b'{"id": 1}', *given)
    ground.process(pipeline, records[0])
    stop = stopped_at(ground.process(pipeline, *records), 0, 1 + 27)
    assert "violates check constraint" in str(stop)
    assert ground.positions(pipeline) == {Partition(TOPIC, 0): 28}
    assert len(ground.rows("id")) == 28
    assert sent[0]


@pytest.mark.parametrize("names", [*itertools.permutations(ORIGINS, 3), ("partition",), ("topic",)])
def test_provenance_follows_the_rows_columns(
    ground: Ground, group: str, sent: list[bool], names: tuple[str, ...]
) -> None:
    table = ground.create('id numeric, note text, topic text, partition int, "offset" bigint')
    sink: Append[Any, Any] = Append(table, provenance={name: name for name in names})
    ids = [5, 10**20, 6, 7]  # the second is left to Python
    apply(ground, of(group, Order, sink), b'{"id": 4}', [b'{"id": %d}' % n for n in ids])
    expected = {"topic": [TOPIC] * 5, "partition": [0] * 5, "offset": [*range(5)]}
    assert ground.rows("id", *names) == sorted(zip([4, *ids], *(expected[name] for name in names), strict=True))
    assert sent == [True]


def test_provenance_in_a_column_of_json_is_pythons(ground: Ground, group: str, sent: list[bool]) -> None:
    table = ground.create("id int, note text, at jsonb")
    sink: Append[Any, Any] = Append(table, provenance={"offset": "at"})
    pipeline = of(group, Order, sink)
    apply(ground, pipeline, b'{"id": 0}', values(start=1, count=5))
    assert [row[0] for row in ground.rows("at")] == [*range(6)]
    assert True not in sent


def test_a_row_that_cannot_be_written_names_its_own_place(ground: Ground, sent: list[bool]) -> None:
    """The driver refuses it, after rows that were text: the count of both is its line."""
    sink: Append[Any, Any] = ground.append("id numeric, note text")
    list(sink.rows(record(Order(0))))
    given = [*values(start=0, count=5), b'{"id": 5, "note": "\\u0000"}', *values(start=6, count=5)]
    raw = LazyRecords(given, range(11), lambda: orders(*given), topic=TOPIC, partitions=[0] * 11, size=0)
    encoded = sink.encoded_rows(Json(Order), raw)
    assert encoded is not None
    with (
        ground.engine.connect() as tx,
        pytest.raises(RowRefused) as refused,
        copy.open_copy(tx, sink.path, lambda: sink.columns) as writer,
    ):
        writer.write(encoded)
    assert refused.value.line == 6
    assert sent == [True]


def test_a_list_of_mixed_values_is_pythons(ground: Ground, group: str, sent: list[bool]) -> None:
    class Tagged(msgspec.Struct):
        tags: list[int | str]

    sink = ground.append("tags text[]")
    apply(ground, pipeline := of(group, Tagged, sink), b'{"tags": ["a"]}', [b'{"tags": ["b", 1]}', b'{"tags": ["c"]}'])
    assert ground.rows("tags") == [(["a"],), (["c"],)]
    assert [offset for offset, *_ in dead_letters(ground, pipeline)] == [1]
    assert sent == []


class Wrapped(msgspec.Struct):
    id: int
    order: Order | None


def test_a_nested_struct_is_refused_as_without(ground: Ground, group: str, sent: list[bool]) -> None:
    """The way to store one is a field of type dict; Python refuses a Struct in a column of json."""
    sink = ground.append('id int, "order" jsonb')
    nulls = [b'{"id": %d, "order": null}' % n for n in range(3)]
    apply(
        ground, pipeline := of(group, Wrapped, sink), nulls[0], [nulls[1], b'{"id": 9, "order": {"id": 1}}', nulls[2]]
    )
    assert ground.rows("id") == [(0,), (1,), (2,)]
    assert [(offset, cause) for offset, cause, *_ in dead_letters(ground, pipeline)] == [(2, "database")]
    assert sent == []


def test_a_broken_value_is_a_dead_letter_and_its_neighbours_are_rows(
    ground: Ground, group: str, sent: list[bool]
) -> None:
    class Positive(msgspec.Struct):
        id: Annotated[int, msgspec.Meta(gt=0)]

    sink = ground.append("id int")
    apply(ground, of(group, Positive, sink), b'{"id": 1}', [b'{"id": 2}', b'{"id": -3}', b'{"id": 4}'])
    assert ground.rows("id") == [(1,), (2,), (4,)]
    assert sent == [], "a type with constraints is Python's"


def test_text_for_a_column_of_json_is_dumped_as_json(ground: Ground, group: str, sent: list[bool]) -> None:
    sink = ground.append("id int, note jsonb")
    pipeline = of(group, Order, sink)
    apply(ground, pipeline, b'{"id": 0}', values(start=1, count=5, note="5"))
    assert {row[0] for row in ground.rows("note")} == {None, "5"}
    assert True not in sent


class Account(msgspec.Struct):
    balance: Decimal


class InCents(DecimalDumper):
    """A program's own way to write decimals."""

    def dump(self, obj: Decimal) -> bytes:
        return str(int(obj * 100)).encode()


def test_a_dumper_of_the_programs_own_is_used(ground: Ground, group: str, sent: list[bool], engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: psycopg.Connection[Any], _: object) -> None:
        connection.adapters.register_dumper(Decimal, InCents)

    other = Ground(engine, ground.schema)
    sink = other.append("balance int")
    apply(other, of(group, Account, sink), b'{"balance": 1.50}', [b'{"balance": 2.50}', b'{"balance": "3.50"}'])
    assert other.rows("balance") == [(150,), (250,), (350,)]
    assert sent == [False]


@pytest.fixture
def engine(ground: Ground) -> Iterator[Engine]:
    """An engine of the test's own."""
    made = create_engine(ground.engine.url)
    yield made
    made.dispose()


class Note(msgspec.Struct):
    data: Any


class Shouted(JsonDumper):
    """A program's own way to write JSON."""

    def dump(self, obj: Any) -> bytes:
        return bytes(super().dump(obj) or b"").upper()


class Rounded(FloatDumper):
    """A program's own way to write floats: as JSON, without a fraction."""

    oid = psycopg.adapters.types["jsonb"].oid

    def dump(self, obj: float) -> bytes:
        return str(int(obj)).encode()


OWN_JSON: dict[str, tuple[Any, Any, bytes, object]] = {
    "Json": (JsonType, Shouted, b'{"data": "a"}', "A"),
    "float": (float, Rounded, b'{"data": 5.5}', 5),
}


@pytest.mark.parametrize("case", OWN_JSON)
def test_a_dumper_of_the_programs_own_is_used_for_json(
    ground: Ground, group: str, sent: list[bool], engine: Engine, case: str
) -> None:
    type_, dumper, value, stored = OWN_JSON[case]

    @event.listens_for(engine, "connect")
    def connected(connection: psycopg.Connection[Any], _: object) -> None:
        connection.adapters.register_dumper(type_, dumper)

    other = Ground(engine, ground.schema)
    sink = other.append("data jsonb")
    apply(other, of(group, Note, sink), value, [value, value])
    assert other.rows("data") == [(stored,)] * 3
    assert sent == [False]


def test_a_property_in_the_place_of_a_field_is_the_rows_value(ground: Ground, group: str, sent: list[bool]) -> None:
    named = {"note": property(lambda order: f"order {order.id}")}
    computed = msgspec.defstruct("Computed", [], bases=(Order,), namespace=named)
    sink: Append[Any, Any] = ground.append("id int, note text", columns=["note"])
    apply(ground, of(group, computed, sink), b'{"id": 1, "note": "a"}', values(start=2, count=2))
    assert ground.rows("note") == [("order 1",), ("order 2",), ("order 3",)]
    assert sent == []


class Silent(msgspec.Struct):
    id: int
    note: str = "\0"


def test_a_default_that_cannot_be_written_is_pythons(ground: Ground, group: str, sent: list[bool]) -> None:
    sink = ground.append("id int, note text")
    pipeline = of(group, Silent, sink)
    apply(ground, pipeline, b'{"id": 0, "note": "a"}', [*values(start=1, count=2), b'{"id": 3}'])
    assert [row[0] for row in ground.rows("id")] == [0, 1, 2]
    assert [offset for offset, *_ in dead_letters(ground, pipeline)] == [3]
    assert sent[0]


def test_an_integer_that_its_column_cannot_hold_is_a_dead_letter(ground: Ground, group: str, sent: list[bool]) -> None:
    sink = ground.append("id smallint, note text")
    pipeline = of(group, Order, sink)
    apply(ground, pipeline, b'{"id": 1}', [b'{"id": 2}', b'{"id": 40000}', b'{"id": 3}'])
    assert ground.rows("id") == [(1,), (2,), (3,)]
    assert [(offset, cause) for offset, cause, *_ in dead_letters(ground, pipeline)] == [(2, "database")]
    assert sent[0]


class Dated(msgspec.Struct):
    at: dt.datetime
    day: dt.date


@pytest.mark.parametrize("style", ["ISO, DMY", "ISO, YMD"])
def test_dates_are_read_alike_whatever_the_order_of_datestyle(
    ground: Ground, group: str, sent: list[bool], engine: Engine, style: str
) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: psycopg.Connection[Any], _: object) -> None:
        connection.execute(f"SET DateStyle = '{style}'".encode())
        connection.commit()

    other = Ground(engine, ground.schema)
    sink = other.append("at timestamptz, day date")
    value = b'{"at": "2026-02-03T04:05:06.5+05:30", "day": "2026-02-03"}'
    apply(other, of(group, Dated, sink), value, [value, value])
    at = dt.datetime(2026, 2, 2, 22, 35, 6, 500000, dt.UTC)
    assert ground.rows("at", "day") == [(at, dt.date(2026, 2, 3))] * 3
    assert sent == [True]


class Blob(msgspec.Struct):
    data: bytes


def test_bytes_where_strings_take_backslashes_as_escapes(
    ground: Ground, group: str, sent: list[bool], engine: Engine
) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: psycopg.Connection[Any], _: object) -> None:
        connection.execute("SET standard_conforming_strings = off")
        connection.commit()

    results = []
    for name, on in (("plain", ground), ("escaping", Ground(engine, ground.schema))):
        sink = on.append("data bytea", name=name)
        apply(on, of(f"{group}-{name}", Blob, sink), b'{"data": "YWI="}', [b'{"data": "AAEC"}'])
        results.append([bytes(row[0]) for row in on.rows("data", name=name)])
    assert sent == [True, False]
    assert results[0] == [b"\x00\x01\x02", b"ab"]


class Priced(msgspec.Struct):
    at: dt.datetime
    id: UUID | None = None
    price: float = 0.5


@pytest.mark.parametrize("keyless", [b'{"id": null, "at": "2026-01-01T00:00:00Z"}', b'{"at": "2026-01-01T00:00:00Z"}'])
@pytest.mark.parametrize("keys", ["new", "known"])
def test_an_upsert_has_the_same_rows(ground: Ground, group: str, sent: list[bool], keys: str, keyless: bytes) -> None:
    """COPY into the table while keys are new, into a temporary table where they are known; a null key is poison."""
    ids = [str(UUID(int=n)) for n in range(300)]
    known = ids if keys == "known" else []
    made = [{"id": n, "at": f"2026-01-01T00:00:{at % 60:02}Z"} for at, n in enumerate([*known, *ids], 1)]
    given = [json.dumps(one).encode() for one in made]
    given.insert(200, keyless)
    results = []
    for name in ("with", "without"):
        table = ground.create("at timestamptz, id uuid, price float8, UNIQUE NULLS NOT DISTINCT (id)", f"{name}_table")
        pipeline = of(f"{group}-{name}", Priced, Upsert(table, key=["id"]))
        with patch("seekpoint.sinks.base.PLAN", PLAN if name == "with" else None):
            records = orders(given[0], *given)
            ground.process(pipeline, records[0])
            ground.process(pipeline, *records[:200])
            ground.process(pipeline, *records)
        results.append(
            (sorted(rows(ground, f"{name}_table")), dead_letters(ground, pipeline), ground.positions(pipeline))
        )
    assert results[0] == results[1]
    assert (len(results[0][0]), len(results[0][1])) == (300, 1)
    assert True in sent
