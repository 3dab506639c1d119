"""Encodes values by the type of their column, for any statement that writes them.

The driver dumps a value by its type in Python, and the server reads that text by the column's type. Either both mean
the same value, or the server refuses the text, except in the columns that this module checks: those that read any text
(text, enums, JSON), and those that drop a part of it (the zone of a time, fraction digits beyond a scale). A value is
refused if its column cannot hold it unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from enum import Enum
from functools import partial
from operator import itemgetter
from types import NoneType
from typing import Any
from uuid import UUID

import psycopg
from psycopg.adapt import AdaptersMap, PyFormat

from seekpoint.codecs.json import JsonFloat
from seekpoint.pipeline.sink import Row
from seekpoint.sinks.column_type import BOOL, JSON, NUMERIC, TIMESTAMPTZ, TIMETZ, ColumnType, ColumnTypes
from seekpoint.sinks.conversions import Conversions
from seekpoint.sinks.enum_labels import labels_of
from seekpoint.sinks.event_values import EventRules
from seekpoint.sinks.json_text import json_text
from seekpoint.sinks.refused_types import remedy
from seekpoint.sinks.times import Convert, is_usual, time_converts

# Types whose input refuses any text that is not one of their values: bool, integers, floats, interval, uuid, addresses.
_STRICT = frozenset({BOOL, 20, 21, 23, 26, 700, 701, 1186, 2950, 869, 650, 829, 774})
_MOST_BYTES = {18: 1, 19: 63}  # bytes of a "char" and a name: the server cuts a longer text
_WIDE = Context(prec=200_000, Emin=MIN_EMIN, Emax=MAX_EMAX)  # more digits than a numeric has
_ZONED = frozenset({TIMETZ, TIMESTAMPTZ})
_TEXT: Mapping[type, Convert] = {  # for arrays of several types: the server reads each text by the array's type
    str: str,
    int: str,
    float: repr,
    JsonFloat: lambda value: value.text,
    Decimal: str,
}


class Unwritable(ValueError):  # noqa: N818 -- its name is read in messages about records
    """A value that cannot be written; the message begins with its column."""


class Encoders:
    """The encoders for those columns of a COPY or statement that need one."""

    def __init__(
        self,
        columns: Sequence[str],
        types: ColumnTypes,
        allowed: Conversions,
        driver: psycopg.Connection[Any],
        *,
        event_rules: EventRules | None = None,
    ) -> None:
        encoders = column_encoders(columns, types, allowed, driver, event_rules=event_rules)
        self._columns = [(place, encoders[name]) for place, name in enumerate(columns) if name in encoders]

    def rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows for the driver to dump. Raises Unwritable, which names the column."""
        changed: dict[int, Sequence[Any]] = {}
        for place, encoder in self._columns:
            values = list(map(itemgetter(place), rows))
            if (encoded := encoder.values(values)) is not values:
                changed[place] = encoded
        if not changed:
            return rows
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for place, encoded in changed.items():
            columns[place] = encoded
        return list(zip(*columns, strict=True))


def needs_look(column: ColumnType, allowed: Conversions) -> bool:
    """Whether the server may read a value of this column as another value."""
    if column.dimensions:
        return True
    if column.item == NUMERIC:
        return column.scale is not None and not allowed.round
    return column.item not in _STRICT and column.kind != "c"


def column_encoders(
    columns: Sequence[str],
    types: ColumnTypes,
    allowed: Conversions,
    driver: psycopg.Connection[Any],
    *,
    encoding: str | None = None,
    event_rules: EventRules | None = None,
) -> Mapping[str, ColumnEncoder]:
    """The encoders of those columns that need one. ``encoding`` of the text: by default that of the session."""
    encoding = encoding or driver.info.encoding
    return {
        name: ColumnEncoder(name, types[name], allowed, driver.adapters, encoding, event_rules=event_rules)
        for name in columns
        if name in types and (event_rules is not None or needs_look(types[name], allowed))
    }


class ColumnEncoder:
    """Encodes the values of one column; chooses the conversion for a type at its first value."""

    def __init__(
        self,
        name: str,
        column: ColumnType,
        allowed: Conversions,
        adapters: AdaptersMap,
        encoding: str,
        *,
        event_rules: EventRules | None = None,
    ) -> None:
        self._name, self._type, self._allowed = name, column, allowed
        self._adapters, self._encoding, self._event_rules = adapters, encoding, event_rules
        self._quantum = None if column.dimensions or column.scale is None else Decimal(1).scaleb(-column.scale)
        is_text = column.item in _ZONED or (
            column.category == "S" and column.kind == "b" and column.item not in _MOST_BYTES
        )
        is_event_text = event_rules is not None and event_rules(str, column, allowed) is not None
        self._takes_texts = is_text and not column.dimensions and not is_event_text
        self._as_is: set[type] = {NoneType}
        self._converts: dict[type, Convert] = {}

    def values(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values for the driver to dump; the same object if nothing changes. Raises Unwritable."""
        if self._are_usual_texts(values):
            return values
        kinds = set(map(type, values))
        if kinds <= self._as_is:
            return values
        if kinds == {Decimal} and self._quantum is not None and all(map(self._quantum.same_quantum, values)):
            return values  # fast path: amounts usually have the column's scale
        try:
            if self._type.dimensions:
                return [value if value is None else self._array(value) for value in values]
            for kind in kinds:
                self._meet(kind)
            as_is, converts = self._as_is, self._converts
            if kinds <= as_is:
                return values
            return [value if type(value) in as_is else converts[type(value)](value) for value in values]
        except Exception as error:
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise Unwritable(f"column {self._name!r} ({self._type.named}): {reason}") from error

    def _are_usual_texts(self, values: Sequence[Any]) -> bool:
        """Fast path: whether all values are texts that need no conversion. One check of the joined texts is faster."""
        if not self._takes_texts:
            return False
        try:
            texts = "".join(values)
        except TypeError:  # some are not texts
            return False
        return self._type.item not in _ZONED or is_usual(texts)

    def _meet(self, kind: type) -> None:
        if kind not in self._as_is and kind not in self._converts:
            convert = None if self._event_rules is None else self._event_rules(kind, self._type, self._allowed)
            if (convert := convert or self._convert(kind)) is None:
                self._as_is.add(kind)
            else:
                self._converts[kind] = convert

    def _one(self, value: Any) -> Any:
        self._meet(type(value))
        return value if type(value) in self._as_is else self._converts[type(value)](value)

    def _array(self, value: Any) -> Any:
        """A list with encoded items, as texts if they have several types.

        A text is passed to the server as it is, unless the items' type has checked texts: there the server would drop
        digits or zones without an error.
        """
        if isinstance(value, dict) or (isinstance(value, str) and self._checks_texts()):
            raise ValueError(f"{_short(value)} is not a list")
        if not isinstance(value, list | tuple):
            return value
        items = self._items(value, self._type.dimensions)
        kinds = set(map(type, _leaves(items)))
        return _texts(items) if len(kinds) > 1 and kinds <= _TEXT.keys() else items

    def _checks_texts(self) -> bool:
        return self._type.item not in JSON and self._convert(str) is not None

    def _items(self, values: Sequence[Any], depth: int) -> list[Any]:
        """The encoded items. For JSON, whose values may be lists, only the first ``depth`` levels are the array's."""
        is_json = self._type.item in JSON
        nested = list if self._type.takes_tuples else (list, tuple)
        items: list[Any] = []
        for value in values:
            if value is None:
                items.append(None)
            elif isinstance(value, nested) and (depth > 1 or not is_json):
                items.append(self._items(value, depth - 1))
            else:
                items.append(self._json_item(value) if is_json else self._one(value))
        return items

    # -- by type ------------------------------------------------------------------------------------------

    def _convert(self, kind: type) -> Convert | None:
        """The conversion for values of a type; None if the driver's dump is right."""
        column = self._type
        if column.item in JSON:
            return None if self._is_json(kind) else lambda value: json_text(value, self._encoding)
        if issubclass(kind, Enum):
            return self._enum(kind)
        if (instead := remedy(kind, column, self._allowed)) is not None:
            return self._refuses(instead)
        if issubclass(kind, UUID):  # the driver omits the dashes
            return str
        if column.item == NUMERIC:
            return self._scaled(kind)
        converts = time_converts(column.item, self._allowed)
        most = _MOST_BYTES.get(column.item)
        otherwise = None if most is None else partial(_whole, most)
        return next((converts[base] for base in kind.__mro__ if base in converts), otherwise)

    def _is_json(self, kind: type) -> bool:
        """Whether the driver dumps the type as JSON: Json, Jsonb, and types with a dumper by the application."""
        try:
            return kind is not dict and self._adapters.get_dumper(kind, PyFormat.TEXT).oid in JSON
        except psycopg.ProgrammingError:  # no dumper
            return False

    def _json_item(self, value: Any) -> str:
        """An array's item as JSON text, because the driver dumps all items of a list by one dumper."""
        if not self._is_json(type(value)):
            return json_text(value, self._encoding)
        dumped = self._adapters.get_dumper(type(value), PyFormat.TEXT)(type(value), None).dump(value)
        return bytes(dumped or b"null").decode()

    def _enum(self, kind: type[Enum]) -> Convert:
        if self._type.labels is None:
            return lambda member: self._one(member.value)
        labels = labels_of(kind, self._type.labels)
        return lambda member: labels[member]

    def _refuses(self, instead: str) -> Convert:
        def refuse(value: Any) -> Any:
            raise ValueError(f"it takes no {type(value).__name__}, got {_short(value)}; {instead}")

        return refuse

    def _scaled(self, kind: type) -> Convert | None:
        scale = self._type.scale
        if scale is None or self._allowed.round or (scale >= 0 and issubclass(kind, int)):
            return None

        def exact(value: Any) -> Any:
            text = value.text if isinstance(value, JsonFloat) else value
            try:
                number = text if type(text) is Decimal else Decimal(str(text))
            except InvalidOperation:  # not a number: the server refuses it
                return value
            if not number.is_finite():
                return value
            exponent = number.normalize(_WIDE).as_tuple().exponent
            if isinstance(exponent, int) and exponent < -scale and number:
                raise ValueError(f"{text} has more fraction digits than the column; give the sink round=True to round")
            return value

        return exact


def _leaves(items: Sequence[Any]) -> Iterator[Any]:
    """The items of nested lists, without None."""
    for item in items:
        if isinstance(item, list):
            yield from _leaves(item)
        elif item is not None:
            yield item


def _texts(items: Sequence[Any]) -> list[Any]:
    return [
        _texts(item) if isinstance(item, list) else None if item is None else _TEXT[type(item)](item) for item in items
    ]


def _whole(most: int, value: Any) -> Any:
    """The value, if its text has at most ``most`` bytes."""
    if len(str(value).encode()) > most:
        raise ValueError(f"{_short(value)} is longer than the {most} bytes that the column keeps: make the column text")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
