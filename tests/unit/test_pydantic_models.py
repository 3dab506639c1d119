"""Json of a Pydantic model: validated by Pydantic, each digit kept, errors without the record's values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from seekpoint import Json
from seekpoint.codecs import Avro
from seekpoint.codecs.codec import key_decoder, value_decoder
from seekpoint.codecs.json import JsonFloat, explained
from seekpoint.codecs.value_types import field_names, has_models, type_info
from seekpoint.errors import ConfigError, Poison
from seekpoint.testing import raw
from support.every_row import for_each


class Line(BaseModel):
    sku: str
    price: Decimal


class Order(BaseModel):
    """A model with an alias, a bound, and models in a list."""

    model_config = ConfigDict(populate_by_name=True)

    id: Annotated[int, Field(ge=0, lt=1 << 31)] = Field(alias="orderId")
    lines: list[Line] = []
    note: str | None = None


class Plain(BaseModel):
    """No field needs more digits than a float has."""

    id: int
    at: datetime
    rate: float = 0


@pydantic.dataclasses.dataclass
class Checked:
    """A dataclass of Pydantic, whose bounds msgspec would not check."""

    id: Annotated[int, Field(gt=0)]


class Holder(TypedDict):
    """A TypedDict of models."""

    order: Order
    more: NotRequired[Line]


@dataclass
class Parcel:
    """A dataclass of models."""

    order: Order


Id = pydantic.RootModel[int]


@for_each([
    (Plain, b'{"id": 5, "at": "2026-11-28T12:00:00Z"}', Plain(id=5, at=datetime(2026, 11, 28, 12, tzinfo=UTC))),
    (Order, b'{"orderId": 5}', Order(orderId=5)),
    (list[Order], b'[{"orderId": 5}]', [Order(orderId=5)]),
    (Order | None, b"null", None),
    (Checked, b'{"id": 5}', Checked(5)),
    (Holder, b'{"order": {"orderId": 5}}', {"order": Order(orderId=5)}),
    (Parcel, b'{"order": {"orderId": 5}}', Parcel(Order(orderId=5))),
    (Id, b"5", Id(5)),
])  # fmt: skip
def test_json_becomes_the_model(case: tuple[Any, bytes, Any]) -> None:
    kind, document, expected = case
    assert Json(kind)(document) == expected
    assert has_models(kind)


NUMBERS = [
    "20.50", "0.1234567890123456789", "12345678901234567890.12", "1E5", "1.0", "100", "-0.0", "1e-7", "1.10e2",
    "123456789012345678901234567890", '"0.10"', "5.000000000000000000000000000001",
]  # fmt: skip


@for_each(NUMBERS)
def test_a_decimal_has_the_records_digits(number: str) -> None:
    expected = Decimal(number.strip('"'))
    lines = Json(Order)(b'{"orderId": 1, "lines": [{"sku": "s", "price": %s}]}' % number.encode()).lines
    assert lines[0].price.as_tuple() == expected.as_tuple()


class Free(BaseModel):
    """Fields that no type describes."""

    model_config = ConfigDict(extra="allow")
    any: Any = None
    rate: float = 0.0


def test_a_number_that_no_type_describes_has_its_digits_and_a_float_is_a_float() -> None:
    value = Json(Free)(b'{"any": 20.50, "rate": 20.50, "more": {"x": 0.10}}')
    assert (type(value.any), str(value.any), type(value.rate)) == (JsonFloat, "20.50", float)
    assert value.model_extra == {"more": {"x": 0.1}}
    assert str(value.model_extra["more"]["x"]) == "0.10"


@given(st.decimals(allow_nan=False, allow_infinity=False), st.sampled_from(["", " "]))
def test_any_decimal_has_the_records_digits(number: Decimal, space: str) -> None:
    value = Json(Line)(f'{{"sku": "s",{space}"price": {number}}}'.encode())
    assert value.price == number


class Mood(Enum):
    GOOD = "good"


class Mixed(BaseModel):
    """Fields of many types, validated as values of Python, since ``price`` needs its digits."""

    price: Decimal = Decimal(1)
    one: int | float | bool | str | list[int] | None = None
    day: date | None = None
    moment: datetime | None = None
    took: timedelta | None = None
    id: UUID | None = None
    body: bytes | None = None
    pair: tuple[str, int] | None = None
    mood: Mood | None = None
    number: int | None = None
    rate: float | None = None
    flag: bool | None = None
    kind: Literal["a", 5] | None = None


DOCUMENTS = [
    "5", "5.0", "5.50", "1700000000.1234567", "true", '"2026-11-28T12:00:00Z"', '"2026-11-28"', "[1]", '["a", 1]',
    '"0190d5b0-0000-7000-8000-000000000001"', '"ä"', "{}", '"good"', '"PT5S"', "1.00", '"5"', '"yes"', '"a"', '"NaN"',
]  # fmt: skip


@for_each([(name, document) for name in Mixed.model_fields if name != "price" for document in DOCUMENTS])
def test_other_fields_are_what_pydantic_makes_of_json(case: tuple[str, str]) -> None:
    """In the way that keeps digits, too."""
    name, document = case
    data = f'{{"{name}": {document}}}'.encode()
    try:
        expected = getattr(Mixed.model_validate_json(data), name)
    except pydantic.ValidationError:
        expected = msgspec.ValidationError
    if case == ("took", "true"):
        return  # Python's True is the number 1
    try:
        value = getattr(Json(Mixed)(data), name)
    except msgspec.ValidationError:
        value = msgspec.ValidationError
    assert (repr(value), type(value)) == (repr(expected), type(expected))


SECRET = "Hunter2"
NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer"


@for_each([
    (Plain, b'{"id": "%s"}', f"{NO_INTEGER} - at `$.id`; Field required - at `$.at`"),
    (Order, b'{"orderId": -1, "note": "%s"}', "Input should be greater than or equal to 0 - at `$.orderId`"),
    (Order, b'{"orderId": 1, "lines": [{"sku": "s", "price": "%s"}]}',
     "Input should be a valid decimal - at `$.lines[0].price`"),
    (Plain, b'{"id": "%s', "Invalid JSON: EOF while parsing a string at line 1 column 15"),
    (Order, b'{"id": "%s', "Input data was truncated"),
    (Plain, b'{"id": 1, "at": "\\ud800%s"}', "Invalid JSON: unexpected end of hex escape at line 1 column 24"),
    (Order, b'{"orderId": "\\ud800%s"}', "surrogate pair"),
    (list[Plain], b"[%s]" % b",".join([b"{}"] * 4) , "; and 3 more"),
])  # fmt: skip
def test_an_error_says_what_and_where_and_has_no_value_of_the_record(case: tuple[Any, bytes, str]) -> None:
    kind, document, expected = case
    data = document.replace(b"%s", SECRET.encode())
    with pytest.raises(msgspec.DecodeError) as caught:
        Json(kind)(data)
    message = str(explained(caught.value, data))
    assert message == expected or (len(expected) < 20 and expected in message), message
    assert SECRET not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "a traceback would show the values"


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    price: Decimal


class StrictFree(BaseModel):
    model_config = ConfigDict(strict=True)
    id: int
    paid_at: datetime


class Base64(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    body: bytes
    price: Decimal


class Either(BaseModel):
    day: datetime | date | None
    price: Decimal


class Digits(BaseModel):
    price: Decimal | Annotated[str, pydantic.AfterValidator(str.strip)]


class Packed(BaseModel):
    inner: pydantic.Json[Line]


class Quantity(BaseModel):
    count: pydantic.StrictInt
    price: Decimal


class Struct(msgspec.Struct):
    order: Order


@for_each([
    (Strict, "Json.Strict.: it has a Decimal, .* and strict=True, which it validates differently"),
    (Base64, "and val_json_bytes='base64', which it validates differently"),
    (Packed, "and a field of the type Json, which it validates differently"),
    (Either, "and a union with datetime, which it validates differently"),
    (Digits, "and a union with decimal, which it validates differently"),
    (Struct, "Struct: Pydantic has no validator for it"),
])  # fmt: skip
def test_what_would_lose_digits_or_has_no_validator_is_refused_at_the_declaration(case: tuple[Any, str]) -> None:
    with pytest.raises(ConfigError, match=case[1]):
        Json(case[0])


def test_strict_models_without_decimals_and_strict_numbers_beside_them_are_taken() -> None:
    assert Json(StrictFree)(b'{"id": 1, "paid_at": "2026-11-28T12:00:00Z"}').paid_at == datetime(
        2026, 11, 28, 12, tzinfo=UTC
    )
    assert Json(Quantity)(b'{"count": 1, "price": 1.10}').price == Decimal("1.10")
    with pytest.raises(msgspec.ValidationError, match=r"valid integer - at `\$.count`"):
        Json(Quantity)(b'{"count": "1", "price": 1.10}')


def test_keys_and_tombstones() -> None:
    decode = key_decoder(Json(Order))
    assert (decode(raw(b"", key=b'{"orderId": 5}')), decode(raw(b""))) == (Order(orderId=5), None)
    assert value_decoder(Json(Order, tombstones=True))(raw(None)) is None
    with pytest.raises(Poison, match="a null value"):
        value_decoder(Json(Order))(raw(None))


def test_a_model_itself_is_no_codec() -> None:
    with pytest.raises(ConfigError, match=r"did you mean Json\(Order\)\?"):
        value_decoder(Order)  # type: ignore[arg-type]


def test_a_registrys_codec_converts_into_a_model() -> None:
    codec = Avro(Order, registry="mock://")
    assert codec._typed({"orderId": 5, "lines": [{"sku": "s", "price": Decimal("1.10")}]}).lines[0].price == Decimal(
        "1.10"
    )
    with pytest.raises(msgspec.ValidationError, match=r"Field required - at `\$.orderId`"):
        codec._typed({})


# -- types --------------------------------------------------------------------------------------------------


class Tree(BaseModel):
    """Holds itself."""

    children: list[Tree] = []
    size: float = 0


class Described(BaseModel):
    id: pydantic.PositiveInt
    small: Annotated[int, Field(ge=0, le=100)] | None
    bound: int = Field(gt=-5, lt=5)
    price: Annotated[Decimal, Field(max_digits=5)]
    aware: pydantic.AwareDatetime
    naive: pydantic.NaiveDatetime
    born: pydantic.PastDate
    size: pydantic.ByteSize
    took: timedelta
    mood: Mood
    kind: Literal["a"]
    tags: set[str]
    tree: Tree
    either: datetime | str
    root: Id


def test_the_fields_of_a_model_as_msgspec_describes_them() -> None:
    info = type_info(Described)
    assert isinstance(info, inspect.DataclassType)
    types = {field.name: field.type for field in info.fields}
    tree = types.pop("tree")
    assert types == {
        "id": inspect.IntType(gt=0),
        "small": inspect.UnionType((inspect.IntType(ge=0, le=100), inspect.NoneType())),
        "bound": inspect.IntType(gt=-5, lt=5),
        "price": inspect.DecimalType(),
        "aware": inspect.DateTimeType(tz=True),
        "naive": inspect.DateTimeType(tz=False),
        "born": inspect.DateType(),
        "size": inspect.IntType(),
        "took": inspect.TimeDeltaType(),
        "mood": inspect.EnumType(Mood),
        "kind": inspect.LiteralType(("a",)),
        "tags": inspect.SetType(inspect.StrType()),
        "either": inspect.UnionType((inspect.DateTimeType(), inspect.StrType())),
        "root": inspect.IntType(),
    }
    assert isinstance(tree, inspect.DataclassType)
    assert [field.type for field in tree.fields] == [inspect.ListType(inspect.AnyType()), inspect.FloatType()]
    holder = type_info(Holder)
    assert isinstance(holder, inspect.TypedDictType)
    assert {field.name: field.required for field in holder.fields} == {"order": True, "more": False}


def test_the_names_of_fields_are_those_of_attributes() -> None:
    assert (field_names(Order), field_names(Checked)) == (("id", "lines", "note"), ("id",))
    assert (field_names(Id), field_names(dict)) == (None, None)
    assert not any(map(has_models, (int, dict[str, Any], msgspec.Struct, list[int] | None)))
