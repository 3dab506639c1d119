"""A column of Python's values as the text that COPY reads: what psycopg would write for each, all at once.

A column whose values are all of one well-known type goes through Arrow; any other, value by value through psycopg's own
dumpers. Both mean the same to the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import MappingProxyType, NoneType
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from seekpoint.sinks.arrow.text import TEXT, column, escaped
from seekpoint.sinks.copy import Texts

Written = Any  # an Arrow array of strings


def column_of(name: str, values: Sequence[Any], one_by_one: Texts, base: int | None) -> Written:
    """The values as COPY's text, NULL for None; ``one_by_one`` is psycopg's way of writing this column.

    ``base`` is the column's base type, None where it takes JSON. Raises Unwritable for a value that has no text.
    """
    kinds = set(map(type, values))
    kinds.discard(NoneType)
    if not kinds:
        return pa.nulls(len(values), TEXT)
    make = _maker(kinds.pop(), base) if len(kinds) == 1 else None
    if make is not None:
        try:
            made = make(values)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
            made = None  # a number beyond 64 bits, a lone surrogate: psycopg knows, or says what is wrong
        if made is not None:
            return made if pa.types.is_large_string(made.type) else column(name, made)
    return escaped(pa.array([one_by_one.of((value,))[0] for value in values], TEXT))


def _maker(kind: type, base: int | None) -> Callable[[Sequence[Any]], Written] | None:
    """How Arrow writes values of one type, where the column's type takes that as it takes what psycopg writes."""
    if base is None or (kind in _ONLY_INTO and base not in _ONLY_INTO[kind]):
        return None
    return _MAKERS.get(kind)


def _strings(values: Sequence[Any]) -> Written:
    return escaped(pa.array(values, TEXT))


def _named(write: Callable[[Any], str]) -> Callable[[Sequence[Any]], Written]:
    def make(values: Sequence[Any]) -> Written:
        return pa.array([None if value is None else write(value) for value in values], TEXT)

    return make


def _decimals(values: Sequence[Any]) -> Written:
    """Each with its own digits: Arrow would give all of them the same scale."""
    texts = [None if value is None else str(value) for value in values]
    made = pa.array(texts, TEXT)
    return None if pc.any(pc.match_substring(made, "sNaN")).as_py() else made


def _instants(values: Sequence[Any]) -> Written:
    """Only in UTC, or without a zone: with any other, a column without a zone takes the time on that zone's clock."""
    zones = {value.tzinfo for value in values if value is not None}
    if len(zones) > 1:
        return None
    zone = zones.pop()
    if zone is None:
        return pa.array(values, pa.timestamp("us"))
    return pa.array(values, pa.timestamp("us", "UTC")) if zone is UTC else None


def _times(values: Sequence[Any]) -> Written:
    return None if any(value is not None and value.tzinfo is not None for value in values) else pa.array(values)


_MAKERS: Mapping[type, Callable[[Sequence[Any]], Written]] = MappingProxyType(
    {
        int: lambda values: pa.array(values, pa.int64()),
        float: lambda values: pa.array(values, pa.float64()),
        str: _strings,
        bool: _named(lambda value: "t" if value else "f"),
        Decimal: _decimals,
        datetime: _instants,
        date: lambda values: pa.array(values, pa.date32()),
        time: _times,
        bytes: lambda values: pa.array(values, pa.large_binary()),
        UUID: _named(lambda value: value.hex),
    }
)
# Arrow writes 1.0 as "1", and a time with all six digits: another text, another scale of a numeric.
_ONLY_INTO: Mapping[type, frozenset[int]] = MappingProxyType(
    {float: frozenset({700, 701}), datetime: frozenset({1114, 1184}), time: frozenset({1083, 1266})}
)
