"""Models of Pydantic, and attrs classes, are rows as Structs are: their tables, start checks, rows and keys."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import attrs
import pytest
from pydantic import AwareDatetime, BaseModel, Field, NaiveDatetime
from sqlalchemy import MetaData

from seekpoint import Append, Json, OnPoison, Pipeline, Upsert
from seekpoint.errors import ConfigError
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.dead_letters import DeadLetters, Where
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.suggested_table import suggested_table
from seekpoint.sinks.table_changes import table_changes
from seekpoint.testing import raw
from support.sink_tables import TOPIC, SinkTables


class Mood(Enum):
    SO_SO = "so-so"


class Line(BaseModel):
    sku: str
    price: Decimal


class Everything(BaseModel):
    """One field of each kind of type."""

    id: int = Field(alias="orderId")
    small: Annotated[int, Field(ge=0, le=100)]
    middle: int | None = Field(gt=-40_000, lt=40_000)
    rate: float
    price: Annotated[Decimal, Field(max_digits=40)]
    at: AwareDatetime
    local: NaiveDatetime
    day: date
    took: timedelta
    uuid: UUID
    mood: Mood
    tags: list[str]
    line: Line
    lines: list[Line] = []
    free: Any = None


DOCUMENT = b"""{"orderId": 5, "small": 100, "middle": null, "rate": 0.5, "price": 20.50, "at": "2026-11-28T12:00:00Z",
"local": "2026-11-28T12:00:00", "day": "2026-11-28", "took": "PT5S", "uuid": "0190d5b0-0000-7000-8000-000000000001",
"mood": "so-so", "tags": ["a", "b"], "line": {"sku": "s", "price": 0.1234567890123456789},
"lines": [{"sku": "s", "price": 0.10}], "free": {"x": 0.30}}"""
DDL = """id BIGINT NOT NULL, small SMALLINT NOT NULL, middle INTEGER, rate DOUBLE PRECISION NOT NULL,
price NUMERIC NOT NULL, at TIMESTAMP WITH TIME ZONE NOT NULL, local TIMESTAMP WITHOUT TIME ZONE NOT NULL,
day DATE NOT NULL, took INTERVAL NOT NULL, uuid UUID NOT NULL, mood TEXT NOT NULL, tags TEXT[] NOT NULL,
line JSONB NOT NULL, lines JSONB NOT NULL, free JSONB""".replace("\n", " ")


def suggested(sink_tables: SinkTables, sink: Any, codec: Any) -> list[str]:
    """The statements that the database needs for the sink."""
    with sink_tables.engine.connect() as tx:
        return table_changes(tx, suggested_table(sink, [codec], MetaData()))


@pytest.mark.parametrize("kind", [Append, Upsert, AppendArrow])
def test_every_field_of_a_model_comes_out_of_the_suggested_table(
    sink_tables: SinkTables, group: str, kind: Any
) -> None:
    """By one statement, and by COPY."""
    codec: Any = Json(Everything)
    sink = kind((sink_tables.schema, "t"), **({"key": ["id"]} if kind is Upsert else {}))
    (statement,) = suggested(sink_tables, sink, codec)
    assert DDL in " ".join(statement.split())
    sink_tables.sql(statement)
    assert suggested(sink_tables, sink, codec) == []
    pipeline = Pipeline(group, topics=TOPIC, value=codec, sinks=[sink])
    with sink_tables.engine.connect() as tx:
        pipeline.check_tables(tx)
    for start, count in ((0, 1), (1, 300)):
        records = [raw(DOCUMENT, topic=TOPIC, offset=n) for n in range(start, start + count)]
        assert sink_tables.process(pipeline, *records).records == count
        *plain, line, lines, free = sink_tables.rows(*Everything.model_fields)[-1]
        assert plain == [
            5, 100, None, 0.5, Decimal("20.50"), datetime(2026, 11, 28, 12, tzinfo=UTC), datetime(2026, 11, 28, 12),
            date(2026, 11, 28), timedelta(seconds=5), UUID("0190d5b0-0000-7000-8000-000000000001"), "so-so", ["a", "b"],
        ]  # fmt: skip
        digits = "concat_ws(' ', line ->> 'price', lines -> 0 ->> 'price', free ->> 'x', price)"
        assert sink_tables.value(f"string_agg(DISTINCT {digits}, ',')") == "0.1234567890123456789 0.10 0.30 20.50"
        assert (line["sku"], lines, free) == ("s", [{"sku": "s", "price": 0.1}], {"x": 0.3})


class Floats(BaseModel):
    id: int
    v: list[Line] | float


class Times(BaseModel):
    id: int
    v: datetime


class Measured(BaseModel):
    reading: float


class Holds(BaseModel):
    id: int
    v: Measured


@pytest.mark.parametrize(
    ("model", "column", "message"),
    [
        (Floats, "numeric", "a float keeps about 15 digits of a JSON number"),
        (Holds, "jsonb", "a float keeps about 15 digits of a JSON number"),
        (Times, "timestamp", "a datetime may have a time zone, which the column drops"),
    ],
)
def test_a_models_field_that_its_column_cannot_hold_is_refused_at_the_start(
    sink_tables: SinkTables, model: Any, column: str, message: str
) -> None:
    sink: Append[Any, Any] = Append(sink_tables.create(f"id int, v {column}"))
    pipeline = Pipeline("g", topics=TOPIC, value=Json(model), sinks=[sink])
    with sink_tables.engine.connect() as tx, pytest.raises(ConfigError, match=f"field 'v', column 'v' .*{message}"):
        pipeline.check_tables(tx)


class Key(BaseModel):
    id: int


@attrs.define
class Attrs:
    """An attrs class, as a value and as a key."""

    id: int
    note: str | None = None


@pytest.mark.parametrize("key", [Key, Attrs])
@pytest.mark.parametrize("kind", [Append, Upsert])
def test_rows_and_keys_are_models_and_attrs_classes(sink_tables: SinkTables, group: str, key: Any, kind: Any) -> None:
    """Rows are values, and what ``row=`` and ``rows=`` make; a tombstone's key is one, too."""
    table = sink_tables.create("id int PRIMARY KEY, note text")
    options: dict[str, Any] = {"key": ["id"]} if kind is Upsert else {}
    sinks = [
        kind(table, topics="values", **options),
        kind(table, topics="row", row=lambda r: Attrs(r.value.id, "row"), **options),
        kind(table, topics="rows", rows=lambda r: [Attrs(r.value.id, "rows")], **options),
    ]
    tombstones = {"tombstones": True} if kind is Upsert else {}
    pipeline = Pipeline(
        group,
        topics={name: Json(Attrs, **tombstones) for name in ("values", "row", "rows")},
        key=Json(key),
        sinks=sinks,
    )
    records = [
        raw(b'{"id": %d}' % n, key=b'{"id": %d}' % n, topic=topic) for n, topic in enumerate(("values", "row", "rows"))
    ]
    sink_tables.process(pipeline, *records)
    assert sink_tables.rows("id", "note") == [(0, None), (1, "row"), (2, "rows")]
    if kind is Upsert:
        sink_tables.process(pipeline, raw(None, key=b'{"id": 1}', topic="row", offset=1))
        assert sink_tables.rows("id", "note") == [(0, None), (2, "rows")]


def test_a_record_that_does_not_fit_the_model_is_a_dead_letter_with_pydantics_message(
    sink_tables: SinkTables, group: str
) -> None:
    sink: Append[Any, Any] = Append(sink_tables.create("sku text, price numeric"))
    pipeline = Pipeline(group, topics=TOPIC, value=Json(Line), sinks=[sink], on_poison=OnPoison.DEAD_LETTER)
    records = [raw(body, topic=TOPIC, offset=n) for n, body in enumerate((b'{"sku": "s", "price": "Hunter2"}', b"{}"))]
    sink_tables.process(pipeline, *records, raw(b'{"sku": "s", "price": 1.10}', topic=TOPIC, offset=2))
    assert sink_tables.rows("price") == [(Decimal("1.10"),)]
    dead_letters = DeadLetters(GroupLedger(sink_tables.engine, group, schema=sink_tables.schema)).list(Where())
    assert [dead_letter.error for dead_letter in dead_letters] == [
        "ValidationError: Input should be a valid decimal - at `$.price`",
        "ValidationError: Field required - at `$.sku`; Field required - at `$.price`",
    ]
    assert not any("Hunter2" in f"{dead_letter.traceback}" for dead_letter in dead_letters)
