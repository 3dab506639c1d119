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

from seekpoint import Accumulate, Append, Json, Pipeline, Upsert
from seekpoint.errors import ConfigError
from seekpoint.records import Record
from seekpoint.sinks.suggested_table import joined_table, suggested_table
from seekpoint.sinks.table_changes import create_statement, table_changes
from seekpoint.testing import raw
from support.every_row import for_each
from support.sink_tables import TOPIC, SinkTables


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


def changes(sink_tables: SinkTables, sink: Any, kind: Any) -> list[str]:
    with sink_tables.engine.connect() as tx:
        return table_changes(tx, suggest(sink, kind))


def make(sink_tables: SinkTables, sink: Any, kind: Any) -> None:
    for statement in changes(sink_tables, sink, kind):
        sink_tables.sql(statement)


@pytest.mark.parametrize("kind", [Append, Upsert])
def test_every_value_comes_out_of_the_suggested_table_as_it_went_in(
    sink_tables: SinkTables, group: str, kind: Any
) -> None:
    origins = ["topic", "partition", "offset"]
    sink = kind((sink_tables.schema, "t"), provenance=origins, **({} if kind is Append else {"key": ["id"]}))
    make(sink_tables, sink, Everything)
    assert changes(sink_tables, sink, Everything) == []
    pipeline = Pipeline(group, topics=TOPIC, value=Json(Everything), sinks=[sink])
    record = raw(msgspec.json.encode(EVERYTHING), topic=TOPIC)
    assert sink_tables.process(pipeline, record).records == 1
    stored = {name: sink_tables.value(f'"{name}"') for name in Everything.__struct_fields__}
    plain = {name: getattr(EVERYTHING, name) for name in Everything.__struct_fields__}
    lines = {"lines": [{"sku": "s", "price": 0.1}], "line": {"sku": "s", "price": 0.2}, "free": {"x": 0.3}}
    assert stored == {**plain, "mood": "so-so", "level": 2, "prices": [Decimal("1.10")], **lines}
    assert [sink_tables.value(f'"{name}"') for name in origins] == [TOPIC, 0, 0]


def test_a_field_that_may_be_none_may_be_null_and_a_key_is_the_primary_key(sink_tables: SinkTables) -> None:
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


class Take(msgspec.Struct):
    """What a shop takes, of which sums, the lowest and the highest are kept."""

    shop: str
    day: date
    cents: Annotated[int, msgspec.Meta(ge=-100, le=100)]
    weight: float
    price: Decimal
    guests: int | None
    first: datetime
    best: Decimal | None = None


def takings(schema: str, **options: Any) -> Accumulate[Any, Any]:
    added = ["cents", "weight", "price", "guests"]
    return Accumulate((schema, "t"), key=["day", "shop"], add=added, least=["first"], most=["best"], **options)


def test_a_sum_has_a_column_that_is_wider_than_its_records(sink_tables: SinkTables, group: str) -> None:
    """400 records of 100 are beyond a smallint; a sum is never NULL, and None adds nothing to it."""
    sink = takings(sink_tables.schema)
    columns = {column.name: (str(column.type), column.nullable) for column in suggest(sink, Take).columns}
    assert columns == {
        "day": ("DATE", False), "shop": ("TEXT", False), "cents": ("BIGINT", False), "weight": ("DOUBLE", False),
        "price": ("NUMERIC", False), "guests": ("BIGINT", False), "first": ("TIMESTAMP", False),
        "best": ("NUMERIC", True),
    }  # fmt: skip
    make(sink_tables, sink, Take)
    assert changes(sink_tables, sink, Take) == []
    pipeline = Pipeline(group, topics=TOPIC, value=Json(Take), sinks=[sink])
    time = datetime(2026, 11, 1, tzinfo=UTC)
    take = Take("north", time.date(), 100, 0.5, Decimal("0.10"), None, time)
    records = [raw(msgspec.json.encode(take), topic=TOPIC, offset=n) for n in range(400)]
    assert sink_tables.process(pipeline, *records).records == 400
    sums = sink_tables.rows("cents", "weight", "price", "guests", "first", "best")
    assert sums == [(40_000, 200.0, Decimal("40.00"), 0, time, None)]
    assert "fillfactor = 50" in create_statement(suggest(sink, Take))


def test_a_first_record_that_subtracts_has_no_lowest_and_no_highest_value() -> None:
    table = suggest(takings("shop", subtract=lambda r: None), Take)
    assert [column.name for column in table.columns if column.nullable] == ["first", "best"]


SUMS_LACK: dict[str, list[str]] = {
    "id bigint PRIMARY KEY, cents numeric, ordered_at timestamptz": [],
    "id bigint PRIMARY KEY, cents int, ordered_at timestamptz, note text": [
        "ALTER TABLE {t} ALTER COLUMN cents TYPE BIGINT;"
    ],
    "id bigint, cents bigint": [
        "ALTER TABLE {t} ADD COLUMN ordered_at TIMESTAMP WITH TIME ZONE;",
        "ALTER TABLE {t} ADD CONSTRAINT t_pkey PRIMARY KEY (id);",
    ],
}


@for_each(SUMS_LACK)
def test_what_a_table_of_sums_lacks(body: str, sink_tables: SinkTables) -> None:
    sink_tables.sql("DROP TABLE IF EXISTS t")
    sink_tables.create(body)
    lacks = changes(
        sink_tables, Accumulate((sink_tables.schema, "t"), key=["id"], add=["cents"], most=["ordered_at"]), Sale
    )
    assert lacks == [statement.replace("{t}", f"{sink_tables.schema}.t") for statement in SUMS_LACK[body]]


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
    (Upsert("t", key=["colour"]), [Attrs], "key= names colour, which its rows do not have: they have .*id"),
    (Upsert("t", key=["id"], columns=["id"], changes=True), [Line], "take the statement from the source"),
    (Append("t"), [Mixed], "field 'value' has values of several types"),
    (Append("t"), [Measured], "field 'readings': a float keeps about 15 digits"),
    (Accumulate("t", key=["id"], add=["colour"]), [Attrs], "key=, add=, least= or most= names colour, which .*Attrs"),
    (Accumulate("t", key=["id"], add=["note"]), [Attrs], "add= names 'note', whose values are not numbers"),
    (
        Accumulate("t", key=["id"], most=["flag"]),
        [Everything],
        "'flag' is Boolean.*, and Postgres has no min",
    ),
    (Accumulate("t", key=["id"], least=["line"]), [Everything], "'line' is JSONB.*, and Postgres has no min"),
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
    ordered_at: datetime
    tags: list[str]


LACKS: dict[str, list[str]] = {
    "id bigint PRIMARY KEY, cents int, note text, ordered_at timestamptz, tags text[]": [],
    "id numeric PRIMARY KEY, cents bigint, note varchar, ordered_at timestamptz, tags varchar[], more text": [],
    "id bigint PRIMARY KEY, cents int, note text, ordered_at timestamptz, tags text[], made int NOT NULL DEFAULT 1": [],
    "id bigint NOT NULL UNIQUE, cents int, note text, ordered_at timestamptz, tags text[]": [],
    "id int PRIMARY KEY, cents smallint, note text, ordered_at timestamptz, tags text[]": [
        "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT;",
        "ALTER TABLE {t} ALTER COLUMN cents TYPE INTEGER;",
    ],
    "id bigint, cents int, ordered_at timestamp, tags text[]": [
        "ALTER TABLE {t} ADD COLUMN note TEXT;",
        "ALTER TABLE {t} ALTER COLUMN ordered_at TYPE TIMESTAMP WITH TIME ZONE;",
        "ALTER TABLE {t} ADD CONSTRAINT t_pkey PRIMARY KEY (id);",
    ],
    "other int PRIMARY KEY, id bigint, cents int, note varchar(9) NOT NULL, ordered_at timestamptz, tags text": [
        "ALTER TABLE {t} ALTER COLUMN note TYPE TEXT;",
        "ALTER TABLE {t} ALTER COLUMN note DROP NOT NULL;",
        "ALTER TABLE {t} ALTER COLUMN tags TYPE TEXT[];",
        "ALTER TABLE {t} ALTER COLUMN other DROP NOT NULL;",
        "CREATE UNIQUE INDEX t_id_key ON {t} (id);",
    ],
}


@for_each(LACKS)
def test_what_a_table_lacks(body: str, sink_tables: SinkTables) -> None:
    sink_tables.sql("DROP TABLE IF EXISTS t")
    sink_tables.create(body)
    lacks = changes(sink_tables, Upsert((sink_tables.schema, "t"), key=["id"]), Sale)
    assert lacks == [statement.replace("{t}", f"{sink_tables.schema}.t") for statement in LACKS[body]]


def test_one_table_takes_the_rows_of_two_sinks(sink_tables: SinkTables, group: str) -> None:
    class Placed(msgspec.Struct):
        id: int
        shop: str

    class Paid(msgspec.Struct):
        id: int
        cents: Annotated[int, msgspec.Meta(ge=0, le=1000)]
        note: str | None = None

    class Counted(msgspec.Struct):
        id: Annotated[int, msgspec.Meta(ge=0, le=1000)]
        cents: int

    path = (sink_tables.schema, "t")
    upserts = [suggest(Upsert(path, key=["id"]), kind) for kind in (Placed, Paid)]
    append = suggest(Append(path), Counted)
    joined = joined_table([append, *upserts])
    columns = {column.name: (repr(column.type), column.nullable) for column in joined.columns}
    assert columns == {
        "id": ("BigInteger()", False),
        "cents": ("BigInteger()", True),
        "shop": ("Text()", True),
        "note": ("Text()", True),
    }
    assert joined.primary_key.columns.keys() == ["id"]
    assert create_statement(joined).endswith("WITH (fillfactor = 50);")
    sink_tables.sql(create_statement(joined))
    pipeline = Pipeline(
        group,
        topics=TOPIC,
        value=Json(dict),
        sinks=[
            Upsert(path, key=["id"], row=lambda record: Placed(record.value["id"], "s")),
            Upsert(path, key=["id"], row=lambda record: Paid(record.value["id"] + 1, 5)),
        ],
    )
    assert sink_tables.process(pipeline, raw(b'{"id": 1}', topic=TOPIC)).records == 1
    assert sink_tables.rows("id", "shop", "cents", "note") == [(1, "s", None, None), (2, None, 5, None)]


class _Id(msgspec.Struct):
    id: int


class _Name(msgspec.Struct):
    id: str
    name: str


class _Shop(msgspec.Struct):
    name: str


@pytest.mark.parametrize(
    ("sinks", "refused"),
    [
        ([(Upsert("s.t", key=["id"]), _Name), (Upsert("s.t", key=["name"]), _Name)], "different keys"),
        ([(Append("s.t"), _Shop), (Upsert("s.t", key=["id"]), _Id)], "not every sink writes the key's column 'id'"),
        ([(Append("s.t"), _Id), (Append("s.t"), _Name)], r"write column 'id' as BigInteger\(\) and as Text\(\)"),
    ],
)
def test_sinks_that_no_one_table_suits_are_refused(sinks: list[tuple[Any, Any]], refused: str) -> None:
    with pytest.raises(ConfigError, match=rf"^s\.t: .*{refused}"):
        joined_table([suggest(sink, kind) for sink, kind in sinks])


def test_what_a_view_lacks_is_a_comment(sink_tables: SinkTables) -> None:
    """ALTER TABLE adds no column to a view."""
    sink_tables.create("id bigint, note text", "base")
    sink_tables.sql(f"CREATE VIEW {sink_tables.schema}.shown AS SELECT id FROM {sink_tables.schema}.base")
    sink = Append((sink_tables.schema, "shown"), columns=["id"])
    assert changes(sink_tables, sink, Sale) == []
    sink = Append((sink_tables.schema, "shown"), columns=["id", "note"])
    (comment,) = changes(sink_tables, sink, Sale)
    assert comment.startswith(f"-- {sink_tables.schema}.shown is a view: change its query, or the table that it reads")
    assert comment.endswith("ADD COLUMN note TEXT;")
