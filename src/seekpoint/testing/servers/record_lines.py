"""Records to produce, read from lines of text or of JSON; a line that cannot be read is named by its number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from seekpoint.errors import ConfigError

_EXAMPLE = '{"key": "ada", "value": {"id": 1}, "headers": {"source": "web"}}'


class Outgoing(NamedTuple):
    """A record to produce, and the number of its line (from 1)."""

    line: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class _Object(msgspec.Struct, forbid_unknown_fields=True):
    value: msgspec.Raw
    key: msgspec.Raw = msgspec.Raw(b"null")
    headers: dict[str, str | None] = {}


def read_values(lines: Iterable[bytes], source: str, separator: str | None = None) -> Iterator[Outgoing]:
    """Each line is a value or, with a separator, a key and a value. Raises ConfigError for a line without it."""

    def parse(number: int, line: bytes) -> Outgoing:
        if separator is None:
            return Outgoing(number, None, line, [])
        key, found, value = line.partition(separator.encode())
        if not found:
            raise ConfigError(f"{source}, line {number}: there is no {separator!r} between a key and a value")
        return Outgoing(number, key, value, [])

    yield from _numbered(lines, parse)


def read_objects(lines: Iterable[bytes], source: str) -> Iterator[Outgoing]:
    """Each line is a JSON object with ``value``, and ``key`` and ``headers`` where they are wanted.

    A key or value that is a JSON string is sent as its text, null as no key or no value (a tombstone), anything else as
    the JSON that the line has. Raises ConfigError for a line that is no such object.
    """

    def parse(number: int, line: bytes) -> Outgoing:
        try:
            found = msgspec.json.decode(line, type=_Object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}, line {number}: {error}; expected {_EXAMPLE}") from None
        headers = [(name, None if text is None else text.encode()) for name, text in found.headers.items()]
        return Outgoing(number, _content(found.key), _content(found.value), headers)

    yield from _numbered(lines, parse)


def _numbered(lines: Iterable[bytes], parse: Callable[[int, bytes], Outgoing]) -> Iterator[Outgoing]:
    for number, line in enumerate(lines, 1):
        if text := line.rstrip(b"\r\n"):
            yield parse(number, text)


def _content(raw: msgspec.Raw) -> bytes | None:
    json = bytes(raw)
    if json == b"null":
        return None
    return msgspec.json.decode(json, type=str).encode() if json.startswith(b'"') else json
