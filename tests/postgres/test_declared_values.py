"""What fields' types tell is refused before the first record: no worker reads a topic that its table cannot hold."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest
from sqlalchemy import Engine

from seekpoint import Append, Json, Pipeline, Upsert
from seekpoint.codecs import CloudEvent, JsonSchema
from seekpoint.errors import ConfigError
from seekpoint.sinks.arrow import AppendArrow
from support.sink_tables import TOPIC, SinkTables, own_type, with_own_types


class Transit(Enum):
    """Values and names differ."""

    IN_TRANSIT = "in-transit"
    DONE = "done"


class Other(Enum):
    """Neither its values nor its names are labels."""

    LOST = "lost"


class Pair(NamedTuple):
    """What a composite column takes."""

    a: int
    b: str


class Price(msgspec.Struct):
    """Within a document."""

    amount: float


FLOAT = "a float keeps about 15 digits of a JSON number, and the column keeps all: declare Decimal, or give the sink "
ZONE = "a datetime may have a time zone, which the column drops: make the column timestamptz, or give the sink "
REFUSED: list[tuple[Any, str, str]] = [
    (float, "numeric", FLOAT),
    (float | None, "numeric(6,2)", FLOAT),
    (int | float, "numeric", FLOAT),
    (list[float], "numeric[]", FLOAT),
    (dict[str, float], "jsonb", FLOAT),
    (Price, "jsonb", FLOAT),
    (dict[str, list[Price]], "json", FLOAT),
    (datetime, "timestamp", ZONE),
    (Annotated[datetime, msgspec.Meta(tz=True)] | None, "timestamp", ZONE),
    (list[datetime], "timestamp[]", ZONE),
    (datetime, "date", "it takes no datetime; the column would drop the time of day: declare date"),
    (datetime, "time", "the column would drop the date: declare time"),
    (Annotated[time, msgspec.Meta(tz=True)], "time", "a time has a time zone, which the column drops"),
    (bytes, "text", "it takes no bytes; make the column bytea, or decode them: key=Text() for a record's key"),
    (bool, "text", "it takes no bool; make the column boolean"),
    (bool | None, "varchar(5)", "it takes no bool"),
    (list[str], "text", "it takes no list; make the column an array or jsonb"),
    (tuple[int, ...], "text", "it takes no tuple; make the column an array, jsonb or a composite type"),
    (tuple[int, str] | None, "varchar(9)", "it takes no tuple"),
    (Pair, "text", "it takes no tuple"),
    (tuple[int, int], "int4range", "it takes no tuple"),
    (tuple[int, int], "int", "it takes no tuple"),
    (list[tuple[bool, ...]], "text[]", "it takes no bool"),
    (Decimal | float, "money", "the server's lc_monetary decides how it is read and which digits are kept"),
    (list[bool], "text[]", "it takes no bool"),
    (Other, "mood", "neither all values nor all names of Other are labels of the column's type (in-transit, done)"),
    (Transit, "either", "all values and all names of Transit are labels"),
    (list[Other], "mood[]", "neither all values nor all names of Other are labels"),
]
TAKEN: list[tuple[Any, str]] = [
    (Decimal, "numeric(6,2)"),
    (int, "numeric"),
    (float, "float8"),
    (list[float], "float8[]"),
    (Any, "numeric"),
    (dict, "jsonb"),
    (dict[str, Decimal], "jsonb"),
    (msgspec.Raw, "jsonb"),
    (Annotated[datetime, msgspec.Meta(tz=False)], "timestamp"),
    (datetime, "timestamptz"),
    (date, "date"),
    (tuple[int, ...], "int[]"),
    (tuple[tuple[int, ...], ...], "int[]"),
    (tuple[int, str], "jsonb"),
    (tuple[int, str], "pair"),
    (Pair, "pair"),
    (list[Pair], "pair[]"),
    (tuple[float, float], "point"),
    (int, "money"),
    (str | int | None, "text"),
    (str, "mood"),
    (Transit, "mood"),
    (Transit, "named"),
    (Transit, "text"),
]


@pytest.fixture
def sink_tables(seekpoint_engine: Engine, seekpoint_schema: str) -> SinkTables:
    return with_own_types(SinkTables(seekpoint_engine, seekpoint_schema))


def refusal(sink_tables: SinkTables, pipeline: Pipeline[Any, Any]) -> str:
    """What a worker's start says; empty if it says nothing."""
    with sink_tables.engine.connect() as tx:
        try:
            pipeline.check_tables(tx)
        except ConfigError as error:
            return str(error)
    return ""


def table(sink_tables: SinkTables, kind: str) -> tuple[str, str]:
    sink_tables.sql("DROP TABLE IF EXISTS t")
    return sink_tables.create(f"id int PRIMARY KEY, v {own_type(sink_tables, kind)}")


def started(sink_tables: SinkTables, sink: Any, value: Any) -> str:
    return refusal(sink_tables, Pipeline("g", topics=TOPIC, value=value, sinks=[sink]))


class JsonOfOurs(Json[Any]):
    """A subclass decodes JSON, too."""


class Key(msgspec.Struct):
    v: float


@pytest.mark.parametrize("key", [Json(Key), Json(float), Json(dict[str, float])])
def test_a_float_in_a_key_is_refused_because_a_tombstone_would_miss_its_row(sink_tables: SinkTables, key: Any) -> None:
    path = sink_tables.create("v numeric PRIMARY KEY, n int")
    declared = {"topics": TOPIC, "value": Json(), "key": key}
    sinks = [Upsert(path, key=["v"], columns=["v", "n"])]
    assert f"a tombstone's key: field 'v', column 'v' (numeric): {FLOAT}" in refusal(
        sink_tables, Pipeline("g", sinks=sinks, **declared)
    )
    kept = Upsert(path, key=["v"], columns=["v", "n"], tombstone_key=lambda record: {"v": Decimal(record.key)})
    rounded = Upsert(path, key=["v"], columns=["v", "n"], round=True)
    undeleted = Upsert(path, key=["v"], columns=["v", "n"], tombstone=None, row=lambda record: None)
    for sink in (kept, rounded, undeleted):
        assert refusal(sink_tables, Pipeline("g", sinks=[sink], **declared)) == ""


@pytest.mark.parametrize("codec", [Json, JsonOfOurs, partial(JsonSchema, registry="http://localhost:1")])
@pytest.mark.parametrize("kind", [Append, AppendArrow, Upsert])
def test_a_field_that_its_column_cannot_hold_is_refused_at_the_start(
    sink_tables: SinkTables, kind: Any, codec: Any
) -> None:
    options: dict[str, Any] = {"key": ["id"]} if kind is Upsert else {}
    messages = []
    for field, column, wanted in REFUSED:
        value = msgspec.defstruct("Value", [("id", int), ("v", field)])
        message = started(sink_tables, kind(table(sink_tables, column), **options), codec(value))
        if not (wanted in message and "field 'v', column 'v'" in message):
            messages.append(f"{field} into {column}: {message or 'taken'}")
    assert not messages, "\n".join(messages)


def test_what_a_column_holds_is_not_refused(sink_tables: SinkTables) -> None:
    messages = []
    for field, column in TAKEN:
        value = msgspec.defstruct("Value", [("id", int), ("v", field)])
        if message := started(sink_tables, Append(table(sink_tables, column)), Json(value)):
            messages.append(f"{field} into {column}: {message}")
    assert not messages, "\n".join(messages)


class Binary:
    """A codec of another format, which knows its type."""

    type = msgspec.defstruct("Value", [("id", int), ("v", float)])

    def __call__(self, data: bytes) -> Any:
        return self.type(1, 0.1)


@dataclasses.dataclass
class Row:
    """A dataclass."""

    id: int
    v: float


class Keys(TypedDict):
    """A TypedDict."""

    id: int
    v: float


def test_every_kind_of_value_that_names_its_fields_is_checked(sink_tables: SinkTables) -> None:
    path = table(sink_tables, "numeric")
    for value, columns in ((Row, None), (Keys, ["id", "v"]), (dict[str, float], ["id", "v"])):
        assert FLOAT in started(sink_tables, Append(path, columns=columns), Json(value)), value


def test_the_data_of_a_cloud_event_is_checked_as_its_codec_decodes_it(sink_tables: SinkTables) -> None:
    columns = ["id", "data"]
    path = sink_tables.create("id text PRIMARY KEY, data jsonb")
    for inner, message in ((Json(Price), FLOAT), (Json(Keys), FLOAT), (Json(), ""), (Binary(), "")):
        assert message in (got := started(sink_tables, Append(path, columns=columns), CloudEvent(inner))), inner
        assert bool(got) == bool(message), got
    missing = sink_tables.create("id text", "missing")
    assert 'column "source" of relation "missing" does not exist' in started(
        sink_tables, Append(missing), CloudEvent(Json(Price))
    )


def test_the_sinks_options_allow_what_is_refused_without_them(sink_tables: SinkTables) -> None:
    value = msgspec.defstruct("Value", [("id", int), ("v", float)])
    assert not started(sink_tables, Append(table(sink_tables, "numeric"), round=True), Json(value))
    value = msgspec.defstruct("Value", [("id", int), ("v", datetime)])
    assert not started(sink_tables, Append(table(sink_tables, "timestamp"), timezone="UTC"), Json(value))
    with pytest.raises(ConfigError, match="timezone='Mars' is not a known time zone"):
        Append("t", timezone="Mars")


def test_floats_of_other_formats_have_their_digits(sink_tables: SinkTables) -> None:
    """A double of Avro is a double: no digit of the record is lost."""
    assert not started(sink_tables, Append(table(sink_tables, "numeric")), Binary())


LONG = "a_name_that_is_longer_than_the_sixty_three_bytes_that_postgres_takes"
CUT = LONG[:63]


@pytest.mark.parametrize("kind", [Append, AppendArrow, Upsert])
def test_a_name_that_the_server_would_cut_is_refused_with_both_spellings(sink_tables: SinkTables, kind: Any) -> None:
    options: dict[str, Any] = {"key": ["id"]} if kind is Upsert else {}
    path = sink_tables.create(f"id int PRIMARY KEY, {CUT} jsonb")
    value = msgspec.defstruct("Value", [("id", int), (LONG, Any)])
    assert f"the name '{LONG}' has 68 bytes, and Postgres cuts it to '{CUT}'" in started(
        sink_tables, kind(path, **options), Json(value)
    )
    for declared in ({"columns": ["id", LONG]}, {"columns": ["id"], "provenance": {"offset": LONG}}):
        with pytest.raises(ConfigError, match=f"{LONG}.*{CUT}"):
            kind(path, **options, **declared)
    with pytest.raises(ConfigError, match=f"{LONG}.*{CUT}"):
        kind(LONG, **options, columns=["id"])
