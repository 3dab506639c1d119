"""Codecs, and bytes that are not what they expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekpoint import Bytes, Json, Text
from seekpoint.codecs import Codec
from seekpoint.codecs.codec import key_decoder, value_decoder
from seekpoint.codecs.json import explained
from seekpoint.errors import ConfigError, Poison
from seekpoint.records import RawRecord
from seekpoint.testing import raw
from support.sink_tables import Order


@dataclass
class Parcel:
    id: int


class Typed(TypedDict):
    id: int


# -- JSON ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Order, Order(5)), (Parcel, Parcel(5)), (Typed, {"id": 5}), (dict[str, int], {"id": 5}), (Any, {"id": 5})],
)
def test_json_becomes_the_type(kind: Any, expected: Any) -> None:
    assert Json(kind)(b' {"id": 5} ') == expected


class Money:
    """A class that msgspec does not fill."""


@dataclass
class Priced:
    id: int
    price: Money


@dataclass
class Cached:
    id: int
    price: Money | None = None  # of no record


def test_a_type_that_no_record_becomes_is_refused_at_once() -> None:
    message = "no record becomes a Money: use a Struct, dataclass"
    for kind in (Money, list[Money], dict[str, tuple[Money, ...]], Priced, Priced | None, list[Priced]):
        with pytest.raises(ConfigError, match=message):
            Json(kind)  # type: ignore[arg-type]
    unusable: list[tuple[Any, str]] = [(3, "Type '3'"), ("Order", "Order"), (Parcel | Priced, "more than one")]
    for declared, cause in unusable:
        with pytest.raises(ConfigError, match=f"no type for a codec: .*{cause}"):
            Json(declared)
    assert Json(Cached)(b'{"id": 5}') == Cached(5)
    assert Json(object)(b'{"id": 5}') == {"id": 5}


def test_json_without_a_type_becomes_what_it_is() -> None:
    document = b'{"a": [1, 2.5, "x", null, true], "\\u00e4": {"b": {}}, "": ""}'
    assert Json()(document) == {"a": [1, 2.5, "x", None, True], "ä": {"b": {}}, "": ""}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'{"id": "5"}', "Expected `int`, got `str` - at `$.id`"),
        (b'{"id": 5.5}', "Expected `int`, got `float` - at `$.id`"),
        (b'{"id": null}', "Expected `int`, got `null` - at `$.id`"),
        (b"{}", "Object missing required field `id`"),
        (b"[5]", "Expected `object`, got `array`"),
        (b"null", "Expected `object`, got `null`"),
        (b'{"id": 1e400}', "Number out of range"),
    ],
)
def test_json_of_another_shape_says_where(document: bytes, message: str) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        Json(Order)(document)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [
        b"", b" ", b"{", b"}", b'{"a": 1,}', b"{'a': 1}", b'"open', b"nul", b"1 2", b"01", b"+1", b".5", b"0x10",
        b"NaN", b"Infinity", b"-Infinity", b"[NaN]", b"\x00", b'"a\x00b"', b'"a\nb"', b"\xef\xbb\xbf{}",
        b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\\ud800"', b'"\\u12"', b"\xff\xfe{\x00}\x00",
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(document: bytes) -> None:
    """NaN is not JSON, NUL and a byte order mark are not white space, half a surrogate pair is no text."""
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        Json()(document)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'"\\ud800"', "a lone surrogate \\ud800 at byte 1: UTF-8 has no code for it"),
        (b'{"a": "x\\uDC01y"}', None),
        (b'"\\ud83d\\ude00', "Input data was truncated"),
        (b'"\\ud800', "Input data was truncated"),
    ],
)
def test_a_lone_surrogate_is_named(document: bytes, message: str | None) -> None:
    """msgspec says of one at the end of a text that the input was truncated."""
    with pytest.raises(msgspec.DecodeError) as refused:
        Json()(document)
    assert str(explained(refused.value, document)) == (message or str(refused.value))


@pytest.mark.parametrize("document", [b"\0\0\0\0\x01{}", b"\x01" + bytes(16) + b"{}"])
def test_a_registrys_wire_format_is_named(document: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as refused:
        Json()(document)
    assert "invalid character (byte 0): it is in a schema registry's wire" in str(explained(refused.value, document))


def test_an_escaped_nul_is_text() -> None:
    assert Json()(b'"a\\u0000b"') == "a\0b"


def test_of_duplicate_keys_the_last_one_counts() -> None:
    assert Json()(b'{"id": 1, "id": 2}') == {"id": 2}
    assert Json(Order)(b'{"id": 1, "id": 2}') == Order(2)


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 2**64, -(2**63) - 1, 10**4000])
def test_integers_are_exact_beyond_64_bits_too(number: int) -> None:
    for codec in (Json(), Json(int)):
        assert codec(str(number).encode()) == number
        assert isinstance(codec(str(number).encode()), int)


def test_an_integer_longer_than_python_reads_is_refused() -> None:
    for codec in (Json(), Json(int)):
        with pytest.raises(msgspec.ValidationError, match="out of range"):
            codec(b"1" * 5000)


@pytest.mark.parametrize("depth", [900, 1000, 100_000])
@pytest.mark.parametrize(("left", "right"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_json_nested_deep_is_decoded_or_refused(depth: int, left: bytes, right: bytes) -> None:
    """Which of the two depends on the interpreter's stack; a crash it must never be."""
    document = left * depth + b"1" + right * depth
    try:
        value = Json()(document)
    except RecursionError:
        return
    levels = 0
    while not isinstance(value, int):
        value = value[0] if isinstance(value, list) else value["a"]
        levels += 1
    assert levels == depth


@given(st.binary(max_size=64))
def test_no_bytes_do_more_than_raise(data: bytes) -> None:
    for codec in (Json(), Json(Order), Text(), Text("utf-16"), Text("ascii")):
        try:
            codec(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue


# -- text and bytes -----------------------------------------------------------------------------------------


@given(st.text())
def test_text_comes_back_as_it_was(text: str) -> None:
    assert Text()(text.encode()) == text
    assert Text("utf-16")(text.encode("utf-16")) == text


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_broken_utf8_is_refused_not_replaced(data: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        Text()(data)


def test_bytes_stay_bytes() -> None:
    assert Bytes()(b"\x00\xff") == b"\x00\xff"


def test_codecs_show_themselves() -> None:
    assert [repr(c) for c in (Json(), Json(Order), Text(), Bytes())] == [
        "Json(Any)",
        "Json(Order)",
        "Text('utf-8')",
        "Bytes()",
    ]


# -- null ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Json(), Json(Order), Text(), Bytes(), lambda data: data])
def test_a_null_value_is_poison_unless_declared(codec: Codec) -> None:
    record = raw(None)
    with pytest.raises(Poison, match="the codec does not declare tombstones=True") as caught:
        value_decoder(codec)(record)
    assert caught.value.records == (record,)


@pytest.mark.parametrize("make", [Json, Text, Bytes])
def test_a_declared_tombstone_is_none(make: Callable[..., Codec]) -> None:
    assert value_decoder(make(tombstones=True))(raw(None)) is None


def test_an_empty_value_is_not_null() -> None:
    assert value_decoder(Bytes(tombstones=True))(raw(b"")) == b""
    assert value_decoder(Text())(raw(b"")) == ""


@pytest.mark.parametrize("codec", [Json(), Text(), Bytes(), lambda data: data])
def test_a_null_key_is_none_and_reaches_no_callable(codec: Codec) -> None:
    assert key_decoder(codec)(raw(b"", key=None)) is None


def test_keys_are_decoded_like_values() -> None:
    assert key_decoder(Text())(raw(None, key="ä".encode())) == "ä"
    assert key_decoder(Json(int))(raw(None, key=b"5")) == 5
    assert key_decoder(Bytes())(raw(None, key=b"\xff")) == b"\xff"


# -- anything else ------------------------------------------------------------------------------------------


def test_any_callable_is_a_codec() -> None:
    assert value_decoder(int)(raw(b" 12 ")) == 12
    assert value_decoder(lambda data: data[::-1])(raw(b"abc")) == b"cba"
    assert value_decoder(msgspec.msgpack.Decoder(Order).decode)(raw(b"\x81\xa2id\x05")) == Order(5)


def test_a_callable_raises_what_it_likes() -> None:
    with pytest.raises(ZeroDivisionError):
        value_decoder(lambda data: 1 // 0)(raw(b""))


class Versioned:
    """Decodes by a header, and knows tombstones by itself."""

    def decode(self, record: RawRecord, /) -> tuple[list[bytes | None], str, bytes | None]:
        return [value for name, value in record.headers if name == "version"], record.topic, record.value


def test_a_record_codec_sees_headers_and_null() -> None:
    record = raw(None, topic="t", headers=[("version", b"1"), ("version", b"2"), ("x", None)])
    assert value_decoder(Versioned())(record) == ([b"1", b"2"], "t", None)
    assert key_decoder(Versioned())(record) == ([b"1", b"2"], "t", None)


async def later(data: bytes) -> bytes:
    return data


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Json, r"Json is a class, and a codec must be an instance: Json\(\.\.\.\)"),
        (Text, r"Text is a class"),
        (Bytes, r"Bytes is a class"),
        (str, r"str is a class, and a codec must be an instance: Text\(\)"),
        (bytes, r"bytes is a class, and a codec must be an instance: Bytes\(\)"),
        (Versioned, r"Versioned is a class"),
        (Order, r"Order is a type of values, not a codec: did you mean Json\(Order\)\?"),
        (msgspec.json.Decoder(Order), r"give its method, decoder\.decode"),
        (msgspec.msgpack.Decoder(), r"give its method, decoder\.decode"),
        (later, r"is an async function"),
        ("json", r"must be callable or have decode\(record\), got 'json'"),
        (5, r"must be callable or have decode\(record\), got 5"),
    ],
)
def test_what_is_easily_meant_and_would_do_something_else_is_refused(codec: Any, message: str) -> None:
    for decoder in (value_decoder, key_decoder):
        with pytest.raises(ConfigError, match=message):
            decoder(codec)
