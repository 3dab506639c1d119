"""Values of one type as COPY text for one table's columns, without an object for each; and the rows that they are.

The compiled part stops before the first value of which it is not certain. That one is decoded by msgspec and written by
psycopg, and the next are encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import msgspec
from msgspec import inspect

from seekpoint.pipeline.sink import Row
from seekpoint.records import LazyRecords
from seekpoint.sinks.native import PLAN
from seekpoint.sinks.native.kinds import DEFAULTS, Kind, fields_of, kind_of

STOPS = 8  # of one chunk: from there on its values are Python's

RowsOf = Callable[[slice], list[Row] | None]
"""Makes the rows of some of the records in Python; None where all records are to be decoded one by one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the text was made for. ``json``: columns of json and jsonb. ``types``: what psycopg would be given."""

    columns: tuple[str, ...]
    json: frozenset[str]
    types: frozenset[type]


class EncodedRows(Sequence[Row]):
    """The rows of some values. ``parts`` has them as COPY text, and between them those that Python has to write.

    Looked at as rows, they are decoded: every writer that takes rows takes these.
    """

    __slots__ = ("_decode", "_rows", "encoder", "layout", "parts")

    def __init__(
        self,
        encoder: Encoder,
        layout: Layout,
        parts: Sequence[tuple[bytes, int] | list[Row]],
        decode: Callable[[], list[Row]],
    ) -> None:
        self.encoder, self.layout, self.parts = encoder, layout, parts
        self._decode, self._rows = decode, list[Row]()

    def rows(self) -> list[Row]:
        """All of them as tuples."""
        if not self._rows:
            self._rows = self._decode()
        return self._rows

    def __len__(self) -> int:
        return sum(len(part) if isinstance(part, list) else part[1] for part in self.parts)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows())

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self.rows()[index]


class Encoder:
    """Encodes values of ``struct`` for these columns. In columns of ``required``, null is Python's to decide about.

    After them come the columns of ``provenance``, as the sink has it. Which columns are of json is not known before the
    table is open: first those whose values can be nothing else; ``table_has`` corrects it.
    """

    def __init__(
        self,
        struct: type[msgspec.Struct],
        columns: tuple[str, ...],
        required: Collection[str],
        provenance: Mapping[str, str],
    ) -> None:
        self._fields, self._columns, self._required = fields_of(struct), columns, required
        self._provenance = provenance
        self._made: tuple[Any, Layout] | None = None
        self.table_has(
            frozenset(field.name for field in self._fields or () if self._kind(field, is_json=False) is None)
        )

    def table_has(self, json: frozenset[str]) -> None:
        """The columns of json and jsonb are these."""
        self._made = self._plan(json)

    def turn_off(self) -> None:
        """Python writes all: this program's psycopg does not write as psycopg does by itself."""
        self._fields = self._made = None

    def encode(self, raw: LazyRecords, rows_of: RowsOf) -> EncodedRows | None:
        """The rows of these records, of one topic; None where Python makes them all."""
        if self._made is None:
            return None
        plan, layout = self._made
        given, tails = list(raw.values), self._tails(raw)
        parts: list[tuple[bytes, int] | list[Row]] = []
        at = stops = 0
        while at < len(given):
            text, end = plan.encode(given, at, tails)
            if end > at:
                parts.append((text, end - at))
            if end < len(given):
                stops += 1
                upto = len(given) if stops == STOPS else end + 1
                if (rows := rows_of(slice(end, upto))) is None:
                    return None
                parts.append(rows)
                end = upto
            at = end
        if not any(isinstance(part, tuple) for part in parts):
            return None
        return EncodedRows(self, layout, parts, partial(_decoded, rows_of))

    def _tails(self, raw: LazyRecords) -> list[bytes] | None:
        """The COPY text of each record's provenance. No character of a topic's name is one that COPY escapes."""
        if not self._provenance:
            return None
        form = "".join(f"\t{raw.topic}" if name == "topic" else "\t%d" for name in self._provenance)
        numbers = {"partition": raw.partitions, "offset": raw.offsets}
        chosen = [numbers[name] for name in self._provenance if name in numbers]
        if not chosen:
            return [form.encode()] * len(raw)
        return [(form % each).encode() for each in zip(*chosen, strict=True)]

    def _plan(self, json: frozenset[str]) -> tuple[Any, Layout] | None:
        """The compiled plan; None where one of the fields is Python's."""
        fields = self._fields or ()
        kinds = [self._kind(field, is_json=field.name in json) for field in fields]
        known = [kind for kind in kinds if kind is not None]
        names = [field.name for field in fields]
        origins = self._provenance.values()
        if not fields or len(known) < len(fields) or not set(self._columns) <= set(names) or json & {*origins}:
            return None
        given = [
            (
                field.encode_name,
                kind.name,
                kind.nullable and field.name not in self._required,
                self._missing(field, json),
            )
            for field, kind in zip(fields, known, strict=True)
        ]
        types = frozenset[type]().union(*(self._types(field, kind) for field, kind in zip(fields, known, strict=True)))
        types |= {str if name == "topic" else int for name in self._provenance}
        layout = Layout((*self._columns, *origins), json, types)
        return PLAN(given, [names.index(name) for name in self._columns]), layout

    def _kind(self, field: inspect.Field, *, is_json: bool) -> Kind | None:
        kind = kind_of(field.type, is_json=is_json)
        if kind is None and field.name not in self._columns:  # its value is only checked
            return kind_of(field.type, is_json=not is_json)
        return kind

    def _types(self, field: inspect.Field, kind: Kind) -> frozenset[type]:
        if field.name not in self._columns:
            return frozenset()
        has_default = field.default is not msgspec.NODEFAULT and field.default is not None
        return kind.types | {type(field.default)} if has_default else kind.types

    def _missing(self, field: inspect.Field, json: frozenset[str]) -> bytes | None:
        """The COPY text of a field that is missing; None where only Python may decide."""
        if type(field.default) not in DEFAULTS:
            return None
        if field.default is None:
            return None if field.name in self._required else b"\\N"
        return None if field.name in json else _text(field.default)


def _decoded(rows_of: RowsOf) -> list[Row]:
    rows = rows_of(slice(None))
    assert rows is not None, "a row that was encoded cannot be made"
    return rows


def _text(value: object) -> bytes | None:
    """The value as COPY text; None where psycopg refuses it."""
    from psycopg.adapt import PyFormat, Transformer  # noqa: PLC0415 -- a declaration needs no database driver

    try:
        dumped = Transformer().get_dumper(value, PyFormat.TEXT).dump(value)
    except Exception:  # noqa: BLE001 -- dumpers raise what they like: a NUL, a lone surrogate
        return None
    return None if dumped is None else re.sub(rb"[\b\t\n\v\f\r\\]", _escape, bytes(dumped))


def _escape(found: re.Match[bytes]) -> bytes:
    return b"\\" + found[0].translate(_ESCAPES)


_ESCAPES = bytes.maketrans(b"\b\t\n\v\f\r", b"btnvfr")
