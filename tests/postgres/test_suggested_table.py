"""The table that a pipeline needs takes each value as it is; what a table lacks for it is said as statements."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import attrs
import msgspec
import pytest
from sqlalchemy import MetaData, Table

from seekpoint import Append, Json, Pipeline, Upsert
from seekpoint.errors import ConfigError
from seekpoint.records import Record
from seekpoint.sinks.suggested_table import suggested_table
from seekpoint.sinks.table_changes import create_statement, table_changes
from seekpoint.testing import raw
from support.failures import for_each
from support.sink_tables import TOPIC, Ground


class Mood(Enum):
    GOOD = "good"
    SO_SO = "so-so"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Line(msgspec.Struct):
    sku: str
    price: Decimal


class Everything(msgspec.Struct):
    """One field of each kind of type."""

    id: int
    small: Annotated[int, msgspec.Meta(ge=0, le=100)]
    middle: Annotated[int, msgspec.Meta(gt=-40_000, lt=40_000)]
    wide: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    flag: bool
    rate: float
    price: Decimal
    note: str
    body: bytes
    at: datetime
    local: Annotated[datetime, msgspec.Meta(tz=False)]
    day: date
    clock: Annotated[time, msgspec.Meta(tz=False)]
    took: timedelta
    uuid: UUID
    mood: Mood
    level: Level
    kind: Literal["a", "b"]
    tags: list[str]
    prices: tuple[Decimal, ...]
    lines: list[Line]
    line: Line
    free: dict[str, Decimal]
    maybe: str | None = None


EVERYTHING = Everything(
    id=-(2**63),
    small=100,
    middle=39_999,
    wide=(1 << 62) - 1,
    flag=True,
    rate=1e308,
    price=Decimal("12345678901234567890.1234567890"),
    note='tab\tquote"back\\slash\nline',
    body=bytes(range(256)),
    at=datetime(2026, 3, 29, 1, 59, 59, 999999, UTC),
    local=datetime(2026, 3, 29, 1, 59, 59),
    day=date(9999, 12, 31),
    clock=time(23, 59, 59, 999999),
    took=timedelta(days=2, microseconds=1),
    uuid=UUID("0190d5b0-0000-7000-8000-000000000001"),
    mood=Mood.SO_SO,
    level=Level.HIGH,
    kind="b",
    tags=["a,b", 'quo"te', "NULL"],
    prices=(Decimal("1.10"),),
    lines=[Line("s", Decimal("0.10"))],
    line=Line("s", Decimal("0.20")),
    free={"x": Decimal("0.30")},
)


def suggest(sink: Any, *types: Any) -> Table:
    return suggested_table(sink, [Json(kind) for kind in types], MetaData())


def changes(ground: Ground, sink: Any, kind: Any) -> list[str]:
    with ground.engine.connect() as tx:
        return table_changes(tx, suggest(sink, kind))


def make(ground: Ground, sink: Any, kind: Any) -> None:
    for statement in changes(ground, sink, kind):
        ground.sql(statement)


@pytest.mark.parametrize("kind", [Append, Upsert])
def test_every_value_comes_out_of_the_suggested_table_as_it_went_in(ground: Ground, group: str, kind: Any) -> None:
    origins = ["topic", "partition", "offset"]
    sink = kind((ground.schema, "t"), provenance=origins, **({} if kind is Append else {"key": ["id"]}))
    make(ground, sink, Everything)
    assert changes(ground, sink, Everything) == []
    pipeline = Pipeline(group, topics=TOPIC, value=Json(Everything), sinks=[sink])
    record = raw(msgspec.json.encode(EVERYTHING), topic=TOPIC)
    assert ground.process(pipeline, record).records == 1
    stored = {name: ground.value(f'"{name}"') for name in Everything.__struct_fields__}
    plain = {name: getattr(EVERYTHING, name) for name in Everything.__struct_fields__}
    lines = {"lines": [{"sku": "s", "price": 0.1}], "line": {"sku": "s", "price": 0.2}, "free": {"x": 0.3}}
    assert stored == {**plain, "mood": "so-so", "level": 2, "prices": [Decimal("1.10")], **lines}
    assert [ground.value(f'"{name}"') for name in origins] == [TOPIC, 0, 0]


def test_a_field_that_may_be_none_may_be_null_and_a_key_is_the_primary_key(ground: Ground) -> None:
    class Order(msgspec.Struct):
        select: int
        shop: str
        note: str | None
        anything: Any = None
        count: int = 0

    statement = create_statement(suggest(Upsert("shop.orders", key=["shop", "select"]), Order))
    assert statement.replace("\t", "").replace(" \n", "\n").replace("\n ", "\n") == (
        "CREATE TABLE shop.orders (\n"
        '"select" BIGINT NOT NULL,\nshop TEXT NOT NULL,\nnote TEXT,\nanything JSONB,\ncount BIGINT NOT NULL,\n'
        'PRIMARY KEY (shop, "select")\n'
        ")\nWITH (fillfactor = 50);"
    )
    assert "fillfactor" not in create_statement(suggest(Append("orders"), Order))


@attrs.define
class Attrs:
    id: int
    note: str | None


class Typed(TypedDict):
    id: int
    note: str | None


def typed_row(_: Record[Any, Any]) -> Typed | None:
    return None


def typed_rows(_: Record[Any, Any]) -> Iterable[Attrs]:
    return []


def untyped_row(_):  # type: ignore[no-untyped-def]
    return None


SOURCES: list[tuple[Any, list[Any]]] = [
    (Append("t"), [Attrs]),
    (Append("t", columns=["id", "note"]), [Typed]),
    (Append("t", columns=["id", "note"], row=typed_row), [bytes]),
    (Append("t", rows=typed_rows), [bytes, Line]),
]


@for_each(SOURCES)
def test_where_the_fields_of_a_row_come_from(source: tuple[Any, list[Any]]) -> None:
    columns = suggest(source[0], *source[1]).columns
    assert [(column.name, str(column.type), column.nullable) for column in columns] == [
        ("id", "BIGINT", False),
        ("note", "TEXT", True),
    ]


class Mixed(msgspec.Struct):
    id: int
    value: int | str


class Measured(msgspec.Struct):
    id: int
    readings: dict[str, float]


REFUSED: list[tuple[Any, list[Any], str]] = [
    (Append("t"), [dict], "fields of its rows are not known"),
    (Append("t"), [Line, Mixed], "fields of its rows are not known"),
    (Append("t", columns=["id"], row=untyped_row), [Line], "fields of its rows are not known: .* annotate what row="),
    (Append("t", columns=["id", "colour"]), [Attrs], "columns= names colour, which .*Attrs.* does not have"),
    (Upsert("t", key=["colour"]), [Attrs], "key= names colour, which its rows do not have"),
    (Append("t"), [Mixed], "field 'value' has values of several types"),
    (Append("t"), [Measured], "field 'readings': a float keeps about 15 digits"),
]


@for_each(REFUSED)
def test_what_no_table_can_be_suggested_for(refused: tuple[Any, list[Any], str]) -> None:
    sink, types, message = refused
    with pytest.raises(ConfigError, match=message):
        suggest(sink, *types)


class Sale(msgspec.Struct):
    id: int
    cents: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    note: str | None
    at: datetime
    tags: list[str]


LACKS: dict[str, list[str]] = {
    "id bigint PRIMARY KEY, cents int, note text, at timestamptz, tags text[]": [],
    "id numeric PRIMARY KEY, cents bigint, note varchar, at timestamptz, tags varchar[], more text": [],
    "id bigint PRIMARY KEY, cents int, note text, at timestamptz, tags text[], made int NOT NULL DEFAULT 1": [],
    "id bigint NOT NULL UNIQUE, cents int, note text, at timestamptz, tags text[]": [],
    "id int PRIMARY KEY, cents smallint, note text, at timestamptz, tags text[]": [
        "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT;",
        "ALTER TABLE {t} ALTER COLUMN cents TYPE INTEGER;",
    ],
    "id bigint, cents int, at timestamp, tags text[]": [
        "ALTER TABLE {t} ADD COLUMN note TEXT;",
        "ALTER TABLE {t} ALTER COLUMN at TYPE TIMESTAMP WITH TIME ZONE;",
        "ALTER TABLE {t} ADD CONSTRAINT t_pkey PRIMARY KEY (id);",
    ],
    "other int PRIMARY KEY, id bigint, cents int, note varchar(9) NOT NULL, at timestamptz, tags text": [
        "ALTER TABLE {t} ALTER COLUMN note TYPE TEXT;",
        "ALTER TABLE {t} ALTER COLUMN note DROP NOT NULL;",
        "ALTER TABLE {t} ALTER COLUMN tags TYPE TEXT[];",
        "ALTER TABLE {t} ALTER COLUMN other DROP NOT NULL;",
        "CREATE UNIQUE INDEX t_id_key ON {t} (id);",
    ],
}


@for_each(LACKS)
def test_what_a_table_lacks(body: str, ground: Ground) -> None:
    ground.sql("DROP TABLE IF EXISTS t")
    ground.create(body)
    lacks = changes(ground, Upsert((ground.schema, "t"), key=["id"]), Sale)
    assert lacks == [statement.replace("{t}", f"{ground.schema}.t") for statement in LACKS[body]]
