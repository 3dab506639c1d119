"""``seekpoint dev produce``: which record a line becomes, and what is said of a line that is none."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from seekpoint.errors import ConfigError
from seekpoint.testing.servers.topics import Outgoing, read_objects, read_values


def lines(text: str) -> Iterable[bytes]:
    return text.encode().splitlines(keepends=True)


def test_a_line_is_a_value_without_its_end_and_empty_lines_are_left_out() -> None:
    values = list(read_values(lines("a: 1 \r\n\nb\n\nc"), "stdin"))
    assert values == [Outgoing(1, None, b"a: 1 ", []), Outgoing(3, None, b"b", []), Outgoing(5, None, b"c", [])]


def test_bytes_that_are_no_text_are_sent_as_they_are() -> None:
    assert [value.value for value in read_values([b"\xff\xfe\n"], "stdin")] == [b"\xff\xfe"]


def test_the_first_separator_ends_the_key() -> None:
    values = list(read_values(lines("a::b::c\n::\n"), "stdin", "::"))
    assert [(value.key, value.value) for value in values] == [(b"a", b"b::c"), (b"", b"")]


def test_a_line_without_a_separator_is_named() -> None:
    read = read_values(lines("a:1\nb\nc:2\n"), "orders.txt", ":")
    assert next(read).key == b"a"
    with pytest.raises(
        ConfigError, match=r"^orders.txt, line 2: there is no ':' between a key and a value \[SP1001\]$"
    ):
        next(read)


@pytest.mark.parametrize(
    ("json", "value"),
    [
        ('{"price": 1.10, "b":  [1]}', b'{"price": 1.10, "b":  [1]}'),  # as it is written
        ('"text \\u00e9"', "text é".encode()),
        ('""', b""),
        ("null", None),
        ("17", b"17"),
        ("true", b"true"),
    ],
)
def test_an_objects_key_and_value(json: str, value: bytes | None) -> None:
    (record,) = read_objects(lines(f'{{"value": {json}, "key": {json}}}\n'), "stdin")
    assert record == Outgoing(1, value, value, [])


def test_an_objects_headers() -> None:
    (record,) = read_objects(lines('{"headers": {"a": "x", "none": null, "empty": ""}, "value": 1}'), "stdin")
    assert record == Outgoing(1, None, b"1", [("a", b"x"), ("none", None), ("empty", b"")])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"key": "a"}', "Object missing required field `value`"),
        ('{"vlaue": 1}', "Object contains unknown field `vlaue`"),
        ('{"value": 1, "headers": {"a": 1}}', "Expected `str | null`, got `int` - at `$.headers[...]`"),
        ("[1]", "Expected `object`, got `array`"),
        ('{"value": }', "JSON is malformed"),
        ('{"value": 1', "Input data was truncated"),
    ],
)
def test_a_line_that_is_no_such_object_is_named(line: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        list(read_objects(lines(f'{{"value": 1}}\n{line}\n'), "stdin"))
    message = str(raised.value)
    assert message.startswith(f"stdin, line 2: {reason}")
    assert message.endswith('; expected {"key": "ada", "value": {"id": 1}, "headers": {"source": "web"}} [SP1001]')
