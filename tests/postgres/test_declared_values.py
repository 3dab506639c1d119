"""What fields' types tell is refused before the first record: no worker reads a topic that its table cannot hold."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from sqlalchemy import Engine

from seekpoint import Append, Json, Pipeline, Upsert
from seekpoint.errors import ConfigError
from seekpoint.sinks.arrow import AppendArrow
from support.sink_tables import TOPIC, Ground, with_enums


class Transit(Enum):
    """Values and names differ."""

    IN_TRANSIT = "in-transit"
    DONE = "done"


class Other(Enum):
    """Neither its values nor its names are labels."""

    LOST = "lost"


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
    (datetime, "date", "a datetime has a time of day, which the column drops: declare date"),
    (datetime, "time", "a datetime has a date: declare time"),
    (Annotated[time, msgspec.Meta(tz=True)], "time", "a time has a time zone, which the column drops"),
    (bytes, "text", "it takes no bytes: make the column bytea, or decode them (key=Text() for a record's key"),
    (bool, "text", "it takes no bool: make the column boolean"),
    (bool | None, "varchar(5)", "it takes no bool"),
    (list[str], "text", "it takes no list: make the column an array or jsonb"),
    (list[bool], "text[]", "it takes no bool"),
    (Other, "mood", "neither all values nor all names of Other are labels of the type, which has in-transit, done"),
    (Transit, "either", "of Transit all values and all names are labels"),
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
    (str | int | None, "text"),
    (str, "mood"),
    (Transit, "mood"),
    (Transit, "named"),
    (Transit, "text"),
]


@pytest.fixture
def ground(seekpoint_engine: Engine, seekpoint_schema: str) -> Ground:
    return with_enums(Ground(seekpoint_engine, seekpoint_schema))


def refusal(ground: Ground, pipeline: Pipeline[Any, Any]) -> str:
    """What a worker's start says; empty where it says nothing."""
    with ground.engine.connect() as tx:
        try:
            pipeline.check_tables(tx)
        except ConfigError as error:
            return str(error)
    return ""


def table(ground: Ground, kind: str) -> tuple[str, str]:
    ground.sql("DROP TABLE IF EXISTS t")
    own = kind.removesuffix("[]") in {"mood", "named", "either"}
    return ground.create(f"id int PRIMARY KEY, v {f'{chr(34)}{ground.schema}{chr(34)}.' if own else ''}{kind}")


def started(ground: Ground, sink: Any, value: Any) -> str:
    return refusal(ground, Pipeline("g", topics=TOPIC, value=value, sinks=[sink]))


@pytest.mark.parametrize("kind", [Append, AppendArrow, Upsert])
def test_a_field_that_its_column_cannot_hold_is_refused_at_the_start(ground: Ground, kind: Any) -> None:
    options: dict[str, Any] = {"key": ["id"]} if kind is Upsert else {}
    found = []
    for field, column, said in REFUSED:
        value = msgspec.defstruct("Value", [("id", int), ("v", field)])
        told = started(ground, kind(table(ground, column), **options), Json(value))
        if not (said in told and "field 'v', column 'v'" in told):
            found.append(f"{field} into {column}: {told or 'taken'}")
    assert not found, "\n".join(found)


def test_what_a_column_holds_is_not_refused(ground: Ground) -> None:
    found = []
    for field, column in TAKEN:
        value = msgspec.defstruct("Value", [("id", int), ("v", field)])
        if told := started(ground, Append(table(ground, column)), Json(value)):
            found.append(f"{field} into {column}: {told}")
    assert not found, "\n".join(found)


@dataclasses.dataclass
class Row:
    """A dataclass."""

    id: int
    v: float


class Keys(TypedDict):
    """A TypedDict."""

    id: int
    v: float


def test_every_kind_of_value_that_names_its_fields_is_checked(ground: Ground) -> None:
    path = table(ground, "numeric")
    for value, columns in ((Row, None), (Keys, ["id", "v"]), (dict[str, float], ["id", "v"])):
        assert FLOAT in started(ground, Append(path, columns=columns), Json(value)), value


def test_the_sinks_options_allow_what_is_refused_without_them(ground: Ground) -> None:
    value = msgspec.defstruct("Value", [("id", int), ("v", float)])
    assert not started(ground, Append(table(ground, "numeric"), round=True), Json(value))
    value = msgspec.defstruct("Value", [("id", int), ("v", datetime)])
    assert not started(ground, Append(table(ground, "timestamp"), timezone="UTC"), Json(value))
    with pytest.raises(ConfigError, match="timezone='Mars' is no time zone that is known"):
        Append("t", timezone="Mars")


def test_floats_of_other_formats_have_their_digits(ground: Ground) -> None:
    """A double of Avro is a double: no digit of the record is lost."""
    value = msgspec.defstruct("Value", [("id", int), ("v", float)])

    class Binary:
        """A codec that knows its type."""

        type = value

        def __call__(self, data: bytes) -> Any:
            return value(1, 0.1)

    assert not started(ground, Append(table(ground, "numeric")), Binary())


LONG = "a_name_that_is_longer_than_the_sixty_three_bytes_that_postgres_takes"
CUT = LONG[:63]


@pytest.mark.parametrize("kind", [Append, AppendArrow, Upsert])
def test_a_name_that_the_server_would_cut_is_refused_with_both_spellings(ground: Ground, kind: Any) -> None:
    options: dict[str, Any] = {"key": ["id"]} if kind is Upsert else {}
    path = ground.create(f"id int PRIMARY KEY, {CUT} jsonb")
    value = msgspec.defstruct("Value", [("id", int), (LONG, Any)])
    assert f"the name '{LONG}' has 68 bytes, and Postgres cuts it to '{CUT}'" in started(
        ground, kind(path, **options), Json(value)
    )
    for declared in ({"columns": ["id", LONG]}, {"columns": ["id"], "provenance": {"offset": LONG}}):
        with pytest.raises(ConfigError, match=f"{LONG}.*{CUT}"):
            kind(path, **options, **declared)
    with pytest.raises(ConfigError, match=f"{LONG}.*{CUT}"):
        kind(LONG, **options, columns=["id"])
