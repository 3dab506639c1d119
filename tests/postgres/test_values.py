"""How values reach columns: exact, converted as stated, or refused; the same by every statement.

``CELLS`` and ``CONVERTED`` have each cell of the table in docs/reference/sinks.md; a test lists all that fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import psycopg
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError

from seekpoint import Accumulate, Append, Json, Pipeline, Text, Upsert, schema
from seekpoint.pipeline.sink import RowRefused
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.upsert import upsert as upsert_module
from seekpoint.sinks.upsert.strategy import WriteStrategy
from support.sink_tables import (
    TOPIC,
    Forced,
    Rows,
    SinkTables,
    by_append,
    by_arrow,
    by_small_append,
    orders,
    own_type,
    with_own_types,
    write,
    writer_of,
)

EAST = timezone(timedelta(hours=2))
AT = datetime(2026, 1, 2, tzinfo=UTC)
DIGITS = "12345678901234567890.123456789"


class Transit(Enum):
    """Values and names differ."""

    IN_TRANSIT = "in-transit"
    DONE = "done"


class Level(Enum):
    LOW = 1
    HIGH = 2


class Kind(StrEnum):
    ONE = "one"


class Stage(StrEnum):
    IN_TRANSIT = "in-transit"
    DONE = "done"


class Named(Enum):
    """Values and names are the same."""

    IN_TRANSIT = "IN_TRANSIT"
    DONE = "DONE"


class Number(IntEnum):
    SEVEN = 7


class Point(NamedTuple):
    x: int
    y: int


class Part(msgspec.Struct):
    at: datetime
    price: Decimal


@dataclasses.dataclass
class Place:
    name: str


class Stored(NamedTuple):
    """What the column shows as text; None for NULL."""

    text: str | None


class Refused(NamedTuple):
    """What the message says."""

    message: str


def number(text: str) -> Any:
    """As the codec decodes it without a type."""
    return Json()(text.encode())


DROPS_ZONE = Refused("has a time zone, which the column drops: make the column timestamptz, or give the sink timezone=")
FINER = Refused("finer than a microsecond, and Postgres stores no more digits: give the sink round=True to cut them")
CELLS: list[tuple[str, Any, Stored | Refused]] = [
    ("text", "ä", Stored("ä")),
    ("text", 5, Stored("5")),
    ("text", Decimal("1.50"), Stored("1.50")),
    ("text", number("20.50"), Stored("20.50")),
    ("text", UUID(int=5), Stored(str(UUID(int=5)))),
    ("text", date(2026, 1, 2), Stored("2026-01-02")),
    ("text", True, Refused("column 'v' (text): it takes no bool, got True; make the column boolean")),
    ("text", b"or\xff", Refused("it takes no bytes, got b'or\\xff'; make the column bytea, or decode them: key=")),
    ("text", bytearray(b"x"), Refused("it takes no bytearray")),
    ("text", memoryview(b"x"), Refused("it takes no memoryview")),
    ("text", ["a"], Refused("column 'v' (text): it takes no list, got ['a']; make the column an array or jsonb")),
    ("text", (1, 2), Refused("it takes no tuple, got (1, 2); make the column an array, jsonb or a composite type")),
    ("text", Point(1, 2), Refused("it takes no Point, got Point(x=1, y=2)")),
    ("text", datetime(2026, 1, 2, 10), Stored("2026-01-02 10:00:00")),
    ("text", datetime(2026, 1, 2, 10, tzinfo=EAST), Stored("2026-01-02 10:00:00+02:00")),
    ("text", time(10, 0, 0, 5), Stored("10:00:00.000005")),
    ("text", None, Stored(None)),
    ("text", {"a": number("1.50")}, Stored('{"a":1.50}')),
    ("text", Transit.IN_TRANSIT, Stored("in-transit")),
    ("text", Kind.ONE, Stored("one")),
    ("varchar(20)", b"x", Refused("column 'v' (character varying(20)): it takes no bytes")),
    ("varchar(20)", (1, 2), Refused("it takes no tuple")),
    ("xml", True, Refused("it takes no bool")),
    ("xml", (1, 2), Refused("it takes no tuple")),
    ('"char"', "ab", Refused("'ab' is longer than the 1 bytes that the column keeps: make the column text")),
    ('"char"', 12, Refused("12 is longer than the 1 bytes")),
    ("name", "n" * 63, Stored("n" * 63)),
    ("name", "ä" * 32, Refused("is longer than the 63 bytes that the column keeps")),
    ("varchar(3)", "ab   ", Stored("ab ")),
    ("char(3)", "ab   ", Stored("ab")),  # as text, without its spaces
    ("int", Level.HIGH, Stored("2")),
    ("int", Number.SEVEN, Stored("7")),
    ("int", 1.0, Refused("invalid input syntax for type integer")),
    ("int", True, Refused("invalid input syntax for type integer")),
    ("int", Decimal("1.5"), Refused("invalid input syntax for type integer")),
    ("int", Decimal(2), Stored("2")),
    ("int", (1, 2), Refused("invalid input syntax for type integer")),
    ("int", None, Stored(None)),
    ("mood", "in-transit", Stored("in-transit")),
    ("mood", Transit.IN_TRANSIT, Stored("in-transit")),
    ("mood", Level.LOW, Refused("neither all values nor all names of Level are labels of the column's type (in-")),
    ("mood", Stage.IN_TRANSIT, Stored("in-transit")),
    ("mood", True, Refused("it takes no bool")),
    ("mood", b"done", Refused("it takes no bytes")),
    ("mood", ["done"], Refused("it takes no list")),
    ("mood", ("done",), Refused("it takes no tuple")),
    ("mood", None, Stored(None)),
    ("named", Transit.DONE, Stored("DONE")),
    ("named", Stage.IN_TRANSIT, Stored("IN_TRANSIT")),
    ("named", Named.DONE, Stored("DONE")),
    ("label", Transit.DONE, Stored("DONE")),
    ("label[]", [Transit.DONE, None], Stored("{DONE,NULL}")),
    ("either", Stage.DONE, Refused("all values and all names of Stage are labels")),
    ("either", Transit.DONE, Refused("all values and all names of Transit are labels")),
    ("numeric", number(DIGITS), Stored(DIGITS)),
    ("numeric", number("20.50"), Stored("20.50")),
    ("numeric", Decimal(DIGITS), Stored(DIGITS)),
    ("numeric", 0.1, Stored("0.1")),
    ("numeric", 2**200, Stored(str(2**200))),
    ("numeric(6,2)", Decimal("1.50000"), Stored("1.50")),
    ("numeric(6,2)", "1.5", Stored("1.50")),
    ("numeric(6,2)", 7, Stored("7.00")),
    ("numeric(6,2)", Decimal("1.005"), Refused("1.005 has more fraction digits than the column; give the sink")),
    ("numeric(6,2)", 1.005, Refused("1.005 has more fraction digits")),
    ("numeric(6,2)", number("1.0050000000000000001"), Refused("1.0050000000000000001 has more fraction digits")),
    ("numeric(6,2)", "1.005", Refused("has more fraction digits")),
    ("numeric(6,2)", Decimal("NaN"), Stored("NaN")),
    ("numeric(6,2)", "x", Refused("invalid input syntax for type numeric")),
    ("numeric", (1, 2), Refused("invalid input syntax for type numeric")),
    ("money", 7, Stored("$7.00")),
    ("money", -(2**62), Refused("out of range for type money")),
    ("money", Decimal("1.50"), Refused("the server's lc_monetary decides how it is read and which digits are kept")),
    ("money", 1.5, Refused("it takes no float")),
    ("money", "1.50", Refused("it takes no str, got '1.50'")),
    ("money", (1, 2), Refused("it takes no tuple")),
    ("money[]", [7, Decimal("1.50")], Refused("it takes no Decimal")),
    ("pair", (1, "a"), Stored("(1,a)")),
    ("pair", Point(1, 2), Stored("(1,2)")),
    ("pair[]", [(1, "a"), None], Stored('{"(1,a)",NULL}')),
    ("point", (1.5, 2), Stored("(1.5,2)")),
    ("point[]", [(1.5, 2)], Stored('{"(1.5,2)"}')),
    ("int4range", (1, 5), Refused("it takes no tuple, got (1, 5)")),
    ("int4range", "[1,5)", Stored("[1,5)")),
    ("interval hour", "10", Stored("10:00:00")),
    ("interval hour", timedelta(hours=10, minutes=30), Stored("10:00:00")),
    ("numeric(6,2)[]", [1, Decimal("1.005")], Refused("1.005 has more fraction digits")),
    ("numeric(6,2)", Decimal("1e-2000000"), Refused("has more fraction digits")),
    ("numeric(6,-2)", 150, Refused("150 has more fraction digits")),
    ("numeric(6,-2)", 200, Stored("200")),
    ("numeric(6,-2)", 0, Stored("0")),
    ("cents", Decimal("1.005"), Refused("1.005 has more fraction digits")),
    ("cents[]", [1, Decimal("1.50")], Stored("{1.00,1.50}")),
    ("cents[]", [Decimal("1.005")], Refused("1.005 has more fraction digits")),
    ("fee[]", [Decimal("1.005")], Refused("1.005 has more fraction digits")),
    ("real", 1.23456789, Stored("1.2345679")),
    ("float8", Decimal("0.12345678901234567890"), Stored("0.12345678901234568")),
    ("timestamp", datetime(2026, 1, 2, 10), Stored("2026-01-02 10:00:00")),
    ("timestamp", datetime(2026, 1, 2, 10, tzinfo=EAST), DROPS_ZONE),
    ("timestamp", "2026-01-02T10:00:00", Stored("2026-01-02 10:00:00")),
    ("timestamp", "infinity", Stored("infinity")),
    ("timestamp", "2026-01-02T10:00:00+02:00", DROPS_ZONE),
    ("timestamp", "2026-01-02T10:00:00Z", DROPS_ZONE),
    ("timestamp", "2026-01-02 10:00:00 Europe/Berlin", Refused("is not an ISO 8601 timestamp")),
    ("timestamp[]", [datetime(2026, 1, 2, 10, tzinfo=EAST)], DROPS_ZONE),
    ("wall_time[]", [datetime(2026, 1, 2, 10, tzinfo=EAST)], DROPS_ZONE),
    ("opening[]", [datetime(2026, 1, 2, 10, tzinfo=EAST)], DROPS_ZONE),
    ("opening[]", ["now"], Refused("is not an ISO 8601 timestamp")),
    ("timestamptz", datetime(2026, 1, 2, 10, tzinfo=EAST), Stored("2026-01-02 08:00:00+00")),
    ("timestamptz", "2026-01-02T10:00:00+02:00", Stored("2026-01-02 08:00:00+00")),
    ("timestamptz", datetime(2026, 1, 2, 10), Stored("2026-01-02 10:00:00+00")),  # the session's TimeZone is UTC
    ("timestamptz(0)", "2026-01-02T10:00:00.7+02:00", Stored("2026-01-02 08:00:01+00")),
    ("timestamptz", "2026-01-02T10:00:00.123456789Z", FINER),
    ("timestamptz", "20260102T100000.1234567Z", FINER),
    ("timestamptz", "2026-01-02T10:00:00.123456000Z", Stored("2026-01-02 10:00:00.123456+00")),
    ("timestamp", "2026-01-02 10:00:00.1234567", FINER),
    ("timestamp", "2026-01-02T10:00:00.1234560", Stored("2026-01-02 10:00:00.123456")),
    ("time", "10:00:00.1234567", FINER),
    ("timetz", "10:00:00.1234567+02", FINER),
    ("timestamptz[]", ["2026-01-02T10:00:00.1234567Z"], FINER),
    ("date", date(2026, 1, 2), Stored("2026-01-02")),
    ("date", datetime(2026, 1, 2, 10), Refused("it takes no datetime, got datetime.datetime(2026, 1, 2, 10, 0); the")),
    ("date", "2026-01-02T10:00", Refused("is not an ISO 8601 date; the column would drop a time of day")),
    ("date", "20260102T100000", Refused("is not an ISO 8601 date")),
    ("date", "20260102", Stored("2026-01-02")),
    ("date", "0044-03-15 BC", Stored("0044-03-15 BC")),
    ("date", "infinity", Stored("infinity")),
    ("date", "today", Refused("is not an ISO 8601 date")),
    ("timestamp", "now", Refused("is not an ISO 8601 timestamp")),
    ("timestamptz", "Tomorrow 10:00+02", Refused("would be another time if the record were read again")),
    ("timestamptz", "infinity", Stored("infinity")),
    ("timetz", "now", Refused("would be another time if the record were read again")),
    ("time", time(10), Stored("10:00:00")),
    ("time", "10:00", Stored("10:00:00")),
    ("time", time(10, tzinfo=EAST), Refused("has a time zone, which the column drops: make the column timetz")),
    ("time", "10:00+02", Refused("is not a time of day alone")),
    ("time", datetime(2026, 1, 2, 10), Refused("the column would drop the date: declare time, or give its time()")),
    ("timetz", time(10, tzinfo=EAST), Stored("10:00:00+02")),
    ("timetz", datetime(2026, 1, 2, 10, tzinfo=EAST), Refused("the column would drop the date: declare time, or give")),
    ("bytea", b"x", Stored("\\x78")),
    ("bytea", memoryview(b"x"), Stored("\\x78")),
    ("bytea", "\\x78", Stored("\\x78")),
    ("bytea", True, Refused("it takes no bool")),
    ("bytea", 5, Refused("column 'v' (bytea): it takes no int, got 5; make the column a type for such values")),
    ("bytea", number("1.50"), Refused("it takes no JsonFloat")),
    ("bytea", UUID(int=5), Refused("it takes no UUID")),
    ("bytea", date(2026, 1, 2), Refused("it takes no date")),
    ("bytea", {"a": 1}, Refused("it takes no dict")),
    ("bytea", [b"x"], Refused("it takes no list")),
    ("bytea", (b"x",), Refused("it takes no tuple")),
    ("bytea", None, Stored(None)),
    ("bytea[]", [b"x", None], Stored('{"\\\\x78",NULL}')),
    ("bytea[]", [b"x", 5], Refused("it takes no int")),
    ("boolean", True, Stored("true")),
    ("float8[]", [20, 20.5], Stored("{20,20.5}")),
    ("float8[]", number("[20, 20.5]"), Stored("{20,20.5}")),
    ("numeric[]", [20, 20.5, number("20.50"), Decimal("1.0"), None], Stored("{20,20.5,20.50,1.0,NULL}")),
    ("float8[][]", [[20, 20.5], [1, 2]], Stored("{{20,20.5},{1,2}}")),
    ("text[]", ["a", True], Refused("column 'v' (text[]): it takes no bool")),
    ("text[]", ["a", 5], Stored("{a,5}")),
    ("int[]", (1, 2), Stored("{1,2}")),
    ("int[]", ((1, 2), (3, 4)), Stored("{{1,2},{3,4}}")),
    ("text[]", [("a", 5)], Stored("{{a,5}}")),
    ("int[]", {}, Refused("{} is not a list")),
    ("int[]", "{1,2}", Stored("{1,2}")),
    ("numeric(6,2)[]", "{1.005}", Refused("'{1.005}' is not a list")),
    ("timestamp[]", "{2026-01-01T00:00:00+05:00}", Refused("'{2026-01-01T00:00:00+05:00}' is not a list")),
    ("timestamptz[]", "{now}", Refused("'{now}' is not a list")),
    ("int[]", [Number.SEVEN, Level.LOW], Stored("{7,1}")),
    ("mood[]", [Transit.DONE, Transit.IN_TRANSIT], Stored("{done,in-transit}")),
    ("json", {"a": number("[0.1234567890123456789, 1.50]")}, Stored('{"a":[0.1234567890123456789,1.50]}')),
    ("json", Part(AT, Decimal("1.50")), Stored('{"at":"2026-01-02T00:00:00Z","price":1.50}')),
    ("json", {"p": [Part(datetime(2026, 1, 2), Decimal(1))]}, Stored('{"p":[{"at":"2026-01-02T00:00:00","price":1}]}')),
    ("json", Place("x"), Stored('{"name":"x"}')),
    ("json", {"a": b"x", "b": Transit.DONE, "c": None}, Stored('{"a":"eA==","b":"done","c":null}')),
    ("json", msgspec.Raw(b'{"a":  1.50}'), Stored('{"a":  1.50}')),
    ("json", Jsonb('{"a":  1.50}', dumps=str), Stored('{"a":  1.50}')),
    ("json", {"raw": msgspec.Raw(b" 1.50")}, Stored('{"raw": 1.50}')),
    ("json", "5", Stored('"5"')),
    ("json", (1, "a"), Stored('[1,"a"]')),
    ("json", None, Stored(None)),
    ("json", [1, "€"], Stored('[1,"€"]')),
    ("jsonb", {"a": number("0.1234567890123456789")}, Stored('{"a": 0.1234567890123456789}')),
    ("jsonb", number(DIGITS), Stored(DIGITS)),
    ("jsonb", {"a": float("nan")}, Refused("JSON has no NaN and no infinity")),
    ("jsonb", {"a": object}, Refused("cannot be written as JSON")),
    ("jsonb[]", [Place("x"), "5", None], Stored('{"{\\"name\\": \\"x\\"}","\\"5\\"",NULL}')),
]  # fmt: skip
CONVERTED: list[tuple[str, Any, Mapping[str, Any], str]] = [
    ("timestamptz", "2026-01-02T10:00:00.123456789Z", {"round": True}, "2026-01-02 10:00:00.123456+00"),
    ("timestamp", "2026-01-02T10:00:00.1234569Z", {"round": True, "timezone": "UTC"}, "2026-01-02 10:00:00.123456"),
    ("time", "10:00:00.1234567", {"round": True}, "10:00:00.123456"),
    ("timestamp", datetime(2026, 1, 2, 10, tzinfo=EAST), {"timezone": "UTC"}, "2026-01-02 08:00:00"),
    ("timestamp", "2026-01-02T10:00:00+02:00", {"timezone": "UTC"}, "2026-01-02 08:00:00"),
    ("timestamp", datetime(2026, 1, 2, 10), {"timezone": "UTC"}, "2026-01-02 10:00:00"),
    ("timestamp", datetime(2026, 7, 2, 8, tzinfo=UTC), {"timezone": "Europe/Berlin"}, "2026-07-02 10:00:00"),
    ("money", Decimal("1.005"), {"round": True}, "$1.01"),
    ("money", "1.5", {"round": True}, "$1.50"),
    ("numeric(6,2)", Decimal("1.005"), {"round": True}, "1.01"),
    ("numeric(6,2)", number("1.0050000000000000001"), {"round": True}, "1.01"),
]


@pytest.fixture
def sink_tables(seekpoint_engine: Engine, seekpoint_schema: str) -> SinkTables:
    return with_own_types(SinkTables(seekpoint_engine, seekpoint_schema))


def by_upsert(
    strategy: WriteStrategy,
    sink_tables: SinkTables,
    path: tuple[str, str],
    columns: Sequence[str],
    rows: Rows,
    **options: Any,
) -> None:
    sink: Upsert[Any, Any] = Upsert(path, key=["id"], columns=columns, **options)
    writer_of(sink).strategies = Forced(strategy)
    write(sink_tables, sink, rows)


WRITES: dict[str, Callable[..., None]] = {
    "COPY": by_append,
    "INSERT": by_small_append,
    "Arrow": by_arrow,
    **{f"Upsert, {strategy.value}": partial(by_upsert, strategy) for strategy in WriteStrategy},
}


def outcome(
    sink_tables: SinkTables, write_rows: Callable[..., None], table: str, options: Mapping[str, Any], value: Any
) -> Stored | Refused:
    """What the column holds then, or what the refusal says."""
    sink_tables.sql(f'DELETE FROM "{table}"')
    try:
        write_rows(sink_tables, (sink_tables.schema, table), ["id", "v"], [(1, value)], **options)
    except RowRefused as refused:
        return Refused(str(refused.cause))
    except psycopg.DataError as error:  # of an INSERT that was sent with others: the batch is run again, by COPY
        return Refused(str(error))
    return Stored(sink_tables.value("v::text", table))


def _table(kind: str) -> str:
    return f"of {kind}".replace('"', "")


def failures(sink_tables: SinkTables, write_rows: Callable[..., None], cells: list[Any]) -> Iterator[str]:
    for kind in {cell[0] for cell in cells}:
        sink_tables.create(f"id int PRIMARY KEY, v {own_type(sink_tables, kind)}", _table(kind))
    for kind, value, options, expected in cells:
        got = outcome(sink_tables, write_rows, _table(kind), options, value)
        is_right = got == expected if isinstance(expected, Stored) else expected.message in getattr(got, "message", "")
        if not is_right:
            yield f"{value!r} into {kind}: {got}, not {expected}"


@pytest.mark.parametrize("strategy", WRITES)
def test_each_cell_of_the_page_by_each_statement(sink_tables: SinkTables, strategy: str) -> None:
    cells: list[Any] = [(kind, value, {}, expected) for kind, value, expected in CELLS]
    cells += [(kind, value, options, Stored(text)) for kind, value, options, text in CONVERTED]
    different = list(failures(sink_tables, WRITES[strategy], cells))
    assert not different, "\n".join(different)


@pytest.fixture
def percent_tables(seekpoint_engine: Engine, seekpoint_schema: str) -> Iterator[SinkTables]:
    """Tables of a schema whose name has a percent sign."""
    sink_tables = SinkTables(seekpoint_engine, f"{seekpoint_schema} 100%")
    sink_tables.sql(f'CREATE SCHEMA "{sink_tables.schema}"')
    yield sink_tables
    sink_tables.sql(f'DROP SCHEMA "{sink_tables.schema}" CASCADE')


@pytest.mark.parametrize("strategy", WRITES)
def test_a_percent_sign_in_a_name_is_no_placeholder(percent_tables: SinkTables, strategy: str) -> None:
    """In the name of a schema, a table or a column."""
    path = percent_tables.create('id int PRIMARY KEY, "50%" text', "%s of it")
    for _ in range(2):  # the second time with statements that are known
        percent_tables.sql(f'DELETE FROM "{path[1]}"')
        WRITES[strategy](percent_tables, path, ["id", "50%"], [(1, "%")])
        assert percent_tables.rows("50%", name=path[1]) == [("%",)]


@pytest.mark.parametrize("strategy", [WriteStrategy.UNNEST, WriteStrategy.TEMP_TABLE])
def test_a_percent_sign_in_a_name_of_a_table_of_sums(percent_tables: SinkTables, strategy: WriteStrategy) -> None:
    path = percent_tables.create('"%" int PRIMARY KEY, "50%" int, "%s" int', "%s of it")
    sink = Accumulate(path, key=["%"], add=["50%"], most=["%s"])
    writer_of(sink).strategies = Forced(strategy)
    for amount in (1, 2):
        write(percent_tables, sink, [(1, amount, amount)])
    assert percent_tables.rows("50%", "%s", name=path[1]) == [(3, 2)]


class Free(msgspec.Struct):
    """Its fields give the codec no type of a number."""

    id: int
    doc: dict[str, Any]
    amount: Any


@pytest.mark.parametrize("kind", [Append, AppendArrow, partial(Upsert, key=["id"])])
def test_fields_that_give_a_number_no_type_keep_the_records_digits(sink_tables: SinkTables, kind: Any) -> None:
    path = sink_tables.create("id int PRIMARY KEY, doc jsonb, amount numeric")
    pipeline = Pipeline("g", topics=TOPIC, value=Json(Free), sinks=[kind(path)])
    value = b'{"id": 1, "doc": {"rate": 0.1234567890123456789}, "amount": %s}' % DIGITS.encode()
    sink_tables.process(pipeline, *orders(value))
    assert sink_tables.value("doc::text || ' ' || amount") == f'{{"rate": 0.1234567890123456789}} {DIGITS}'


# A type, a text that its input refuses with an SQLSTATE that says something else, and one that it takes.
ODD_INPUT = [
    ("tsquery", "a & & b", "a & b"),
    ("jsonpath", "$.", "$.a"),
    ("regclass", "no_such_table", "pg_class"),
    ("hstore", "a=>", "a=>1"),
    ("ltree", "a..b", "a.b"),
    ("lquery", "a.{", "a.*"),
]
EXTENSIONS = {"hstore": "hstore", "ltree": "ltree", "lquery": "ltree"}


@pytest.fixture(scope="module")
def extended_sink_tables(idle_databases: Callable[[], AbstractContextManager[str]]) -> Iterator[SinkTables]:
    """Tables in another database: if one has ``hstore``, SQLAlchemy gives psycopg another dumper for a dict."""
    with idle_databases() as url:
        engine = create_engine(url)
        schema.upgrade(engine, schema="seekpoint")
        yield SinkTables(engine, "seekpoint")
        engine.dispose()


@pytest.fixture
def sink_tables_with(request: pytest.FixtureRequest, column: str) -> SinkTables:
    """The tables of a database that has the column's type, or in which it can be created."""
    sink_tables: SinkTables = request.getfixturevalue("extended_sink_tables" if column in EXTENSIONS else "sink_tables")
    return sink_tables


def extended(sink_tables: SinkTables, column: str) -> str:
    """The type's name; its extension is created if it is an extension's. Skips if the server does not have it."""
    if (extension := EXTENSIONS.get(column)) is None:
        return column
    try:
        sink_tables.sql(f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA public")
    except DBAPIError as error:
        if not isinstance(error.orig, psycopg.errors.FeatureNotSupported | psycopg.errors.UndefinedFile):
            raise
        pytest.skip(f"the server lacks the extension {extension}: {error.orig}")
    return f"public.{column}"


@pytest.mark.parametrize("kind", ["Append", "Upsert", "Upsert of many", "AppendArrow"])
@pytest.mark.parametrize(("column", "bad", "good"), ODD_INPUT, ids=[odd[0] for odd in ODD_INPUT])
def test_a_lone_record_that_a_types_input_refuses_is_a_dead_letter(
    sink_tables_with: SinkTables, monkeypatch: pytest.MonkeyPatch, *, column: str, bad: str, good: str, kind: str
) -> None:
    """A single record, too, although no other record shows that the statement is right."""
    sink_tables, name = sink_tables_with, f"{column}, {kind}"
    options: dict[str, Any] = {"columns": ["id", "v"], "row": lambda r: (r.offset, r.value)}
    path = sink_tables.create(f"id int PRIMARY KEY, v {extended(sink_tables, column)}", name)
    sink: Any = {"Append": Append, "AppendArrow": AppendArrow}.get(kind, partial(Upsert, key=["id"]))(path, **options)
    if kind == "Upsert of many":
        monkeypatch.setattr(upsert_module, "WriteStrategies", partial(Forced, WriteStrategy.TEMP_TABLE))
    pipeline = Pipeline(name, topics=TOPIC, value=Text(), sinks=[sink], on_poison="dead_letter")
    for offset, text in enumerate((good, bad, good, bad)):
        done = sink_tables.process(pipeline, *orders(text.encode(), start=offset))
        assert [dead_letter.offset for dead_letter in done.dead_letters] == [offset] * (text == bad)
    assert sink_tables.rows("id", name=name) == [(0,), (2,)]


WITH_ORDER = [odd for odd in ODD_INPUT if odd[0] not in {"jsonpath", "lquery"}]  # a key's index needs one


@pytest.mark.parametrize(("column", "bad", "good"), WITH_ORDER, ids=[odd[0] for odd in WITH_ORDER])
def test_a_lone_record_whose_key_a_types_input_refuses_is_added_to_no_sum(
    sink_tables_with: SinkTables, *, column: str, bad: str, good: str
) -> None:
    sink_tables, name = sink_tables_with, f"sums of {column}"
    path = sink_tables.create(f"v {extended(sink_tables, column)} PRIMARY KEY, n int NOT NULL", name)
    sink = Accumulate(path, key=["v"], add=["n"], row=lambda r: (r.value, 1))
    pipeline = Pipeline(name, topics=TOPIC, value=Text(), sinks=[sink], on_poison="dead_letter")
    for offset, text in enumerate((good, bad, good, bad)):
        done = sink_tables.process(pipeline, *orders(text.encode(), start=offset))
        assert [dead_letter.offset for dead_letter in done.dead_letters] == [offset] * (text == bad)
    assert sink_tables.rows("n", name=name) == [(2,)]
