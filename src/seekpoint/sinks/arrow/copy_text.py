"""Arrow's columns as the text that COPY reads: whole columns at a time, one line for each row.

Text format has advantages over CSV: each row is one line whatever its strings contain, so the line that the server
names is the row; NULL differs from the empty string; and the server reads it faster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import MappingProxyType, NoneType
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from seekpoint.sinks.copy import Texts
from seekpoint.sinks.encoders import Unwritable

PIECE = 8192  # rows written at a time: few enough that their text stays in the processor's cache

TEXT = pa.large_string()
EMPTY = pa.scalar("", TEXT)
ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
NULL = "\\N"

Written = Any  # an Arrow array of strings, which pyarrow's type hints cannot express


def lines(table: Any, by_value: Callable[[str, Any], Written | None]) -> Iterator[memoryview]:
    """The table's rows as COPY's text, piece by piece. Raises Unwritable, which names the column.

    ``by_value`` writes columns whose encoding depends on their values; it returns None for others.
    """
    for piece in table.combine_chunks().to_batches(max_chunksize=PIECE):
        texts = []
        for name, array in zip(table.column_names, piece.columns, strict=True):
            written = by_value(name, array)
            texts.append(column(name, array) if written is None else written)
        yield joined(texts)


def joined(columns: Sequence[Written]) -> memoryview:
    """Columns of text joined into lines, one for each row."""
    missing: Any = {"null_handling": "replace", "null_replacement": NULL}
    *first, last = columns
    ended = pc.binary_join_element_wise(last, pa.scalar("\n", TEXT), EMPTY, **missing)
    rows = pc.binary_join_element_wise(*first, ended, pa.scalar("\t", TEXT), **missing) if first else ended
    _, offsets, data = rows.buffers()
    end = pa.Array.from_buffers(pa.int64(), len(rows) + 1, [None, offsets])[len(rows)].as_py()
    return memoryview(data)[:end]


def column(name: str, array: Any) -> Written:
    """The column as COPY reads it. Raises Unwritable for a type or a value that has no text."""
    try:
        kind = _plain(array).type
        if is_binary(kind):
            return _hex(_plain(array), "\\\\x")
        texts = text(array)
        return escaped(texts) if _holds_anything(kind) else texts
    except Exception as error:  # of pyarrow, Python and Seekpoint
        raise Unwritable(f"column {name!r}: {type(error).__name__}: {error}") from error


def escaped(texts: Written) -> Written:
    """The strings with COPY's special characters escaped."""
    data = texts.cast(TEXT).buffers()[2]
    # Also checks bytes outside the slice; a replacement then changes nothing.
    held = b"" if data is None else bytes(data)
    for character, instead in ESCAPES:
        if character.encode() in held:
            texts = pc.replace_substring(texts, character, instead)
    return texts


# -- values of each type ----------------------------------------------------------------------------------------


def text(array: Any) -> Written:
    """The values as text for Postgres. Raises ValueError, TypeError or pyarrow's errors for values that have none."""
    array = _plain(array)
    for applies, write in _KINDS:
        if applies(array.type):
            return write(array)
    raise TypeError(f"Seekpoint cannot write Arrow's {array.type}: cast the column, or leave it out")


def _plain(array: Any) -> Any:
    """The array decoded: no dictionary, no run-end encoding, no views, no extension type but uuid."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    if isinstance(kind, pa.BaseExtensionType):
        return array if kind.extension_name == "arrow.uuid" else _plain(array.storage)
    if pa.types.is_string_view(kind):
        return array.cast(TEXT)
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    return array


def is_json(array: Any) -> bool:
    """Whether the values are JSON text already."""
    return getattr(array.type, "extension_name", None) == "arrow.json"


def is_binary(kind: Any) -> bool:
    return any(
        is_kind(kind) for is_kind in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    )


def is_list(kind: Any) -> bool:
    types = pa.types
    several = types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view
    return any(is_kind(kind) for is_kind in several)


def is_object(kind: Any) -> bool:
    """Whether values become JSON: structs, maps, and lists of them."""
    while is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind))


def _is_string(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _holds_anything(kind: Any) -> bool:
    """Whether the text may need escaping."""
    return _is_string(kind) or is_list(kind) or is_object(kind)


def _cast(array: Any) -> Written:
    return array.cast(TEXT)


def _date(array: Any) -> Written:
    return array.cast(pa.date32()).cast(TEXT)


def _to_micros(array: Any, kind: Callable[[str], Any]) -> Any:
    """Nanoseconds as microseconds, which Postgres stores. Raises ValueError if digits would be lost."""
    if array.type.unit != "ns":
        return array
    try:
        return array.cast(kind("us"))
    except pa.ArrowInvalid as error:
        raise ValueError(f"Postgres stores only microseconds: round the column first ({error})") from error


def _timestamp(array: Any) -> Written:
    zone = array.type.tz
    instants = _to_micros(array.view(pa.timestamp(array.type.unit)), pa.timestamp).cast(TEXT)
    return instants if zone is None else pc.binary_join_element_wise(instants, pa.scalar("+00:00", TEXT), EMPTY)


def _time(array: Any) -> Written:
    return (array if pa.types.is_time32(array.type) else _to_micros(array, pa.time64)).cast(TEXT)


def _duration(array: Any) -> Written:
    micros = _to_micros(array, pa.duration).cast(pa.duration("us")).cast(pa.int64()).cast(TEXT)
    return pc.binary_join_element_wise(micros, pa.scalar(" microseconds", TEXT), EMPTY)


def _small_decimal(array: Any) -> Written:
    return array.cast(pa.decimal128(array.type.precision, array.type.scale)).cast(TEXT)


def _hex(array: Any, prefix: str = "\\x") -> Written:
    """``\\x`` and two digits for each byte; converts all bytes of the column at once."""
    array = array.cast(pa.large_binary())
    valid, offsets, data = array.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(array) + 1, [None, offsets], offset=array.offset)
    first, last = (ends[0].as_py(), ends[-1].as_py()) if len(array) else (0, 0)
    digits = memoryview(data)[first:last].hex() if data is not None else ""
    places = pc.multiply(pc.subtract(ends, first), 2)
    valid = None if valid is None else pc.is_valid(array).buffers()[1]
    texts = pa.Array.from_buffers(TEXT, len(array), [valid, places.buffers()[1], pa.py_buffer(digits.encode())])
    return pc.binary_join_element_wise(pa.scalar(prefix, TEXT), texts, EMPTY) if prefix else texts


def _uuid(array: Any) -> Written:
    return _hex(array.storage, "")


def _in_json(array: Any) -> Written:
    """The values as JSON, as psycopg dumps a dict; null becomes NULL."""
    values = array.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if value is None else json.dumps(value) for value in values], TEXT)


def _array(array: Any) -> Written:
    """A list as a literal of a Postgres array."""
    array = array.cast(pa.large_list(array.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = pa.concat_arrays([pa.array([0], pa.int64()), _chunk(pc.cumulative_sum(lengths))])
    inner = _plain(array.flatten())
    texts = text(inner)
    if not is_list(inner.type) and not (pa.types.is_integer(inner.type) or pa.types.is_boolean(inner.type)):
        for character, instead in (("\\", "\\\\"), ('"', '\\"')):
            texts = pc.replace_substring(texts, character, instead)
        quote = pa.scalar('"', TEXT)
        texts = pc.binary_join_element_wise(quote, texts, quote, EMPTY)
    several = pa.ListArray.from_arrays(ends.cast(pa.int32()), _chunk(pc.fill_null(texts, "NULL")))
    inside = pc.binary_join(several, pa.scalar(",", TEXT))
    literals = pc.binary_join_element_wise(pa.scalar("{", TEXT), inside, pa.scalar("}", TEXT), EMPTY)
    return pc.if_else(pc.is_valid(array), literals, pa.scalar(None, TEXT))


def _chunk(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any], Written]], ...] = (
    (_is_string, _cast),
    (pa.types.is_integer, _cast),
    (pa.types.is_floating, _cast),
    (pa.types.is_boolean, _cast),
    (pa.types.is_null, _cast),
    (lambda kind: pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind), _cast),
    (pa.types.is_decimal, _small_decimal),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, _date),
    (pa.types.is_time, _time),
    (pa.types.is_duration, _duration),
    (is_binary, _hex),
    (lambda kind: getattr(kind, "extension_name", None) == "arrow.uuid", _uuid),
    (is_object, _in_json),
    (is_list, _array),
)


def column_of(name: str, values: Sequence[Any], one_by_one: Texts, base: int | None) -> Written:
    """The values as COPY's text, NULL for None; ``one_by_one`` writes those that only psycopg can write.

    ``base`` is the column's base type, None if it is not known. Raises Unwritable for a value that has no text.
    """
    kinds = set(map(type, values))
    kinds.discard(NoneType)
    if not kinds:
        return pa.nulls(len(values), TEXT)
    make = _maker(kinds.pop(), base) if len(kinds) == 1 else None
    if make is not None:
        try:
            array = make(values)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
            array = None  # a number beyond 64 bits, a lone surrogate: psycopg writes it, or raises the right error
        if array is not None:
            return array if pa.types.is_large_string(array.type) else column(name, array)
    return escaped(pa.array([one_by_one.of((value,))[0] for value in values], TEXT))


def _maker(kind: type, base: int | None) -> Callable[[Sequence[Any]], Written] | None:
    """Arrow's writer for one type of values; None unless the column reads its text as it reads psycopg's text."""
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
    """Decimals with their own digits: Arrow would give all of them the same scale."""
    texts = [None if value is None else str(value) for value in values]
    array = pa.array(texts, TEXT)
    return None if pc.any(pc.match_substring(array, "sNaN")).as_py() else array


def _instants(values: Sequence[Any]) -> Written:
    """Times in UTC or without a zone; None for others: a column without a zone would store their local time."""
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
# Arrow writes 1.0 as "1", and times with six fraction digits: a text or numeric column would store that differently.
_ONLY_INTO: Mapping[type, frozenset[int]] = MappingProxyType(
    {float: frozenset({700, 701}), datetime: frozenset({1114, 1184}), time: frozenset({1083, 1266})}
)
