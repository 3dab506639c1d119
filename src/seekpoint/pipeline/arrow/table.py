"""A batch's records as one Arrow table: a column for each field of their values, a row for each record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import NoneType
from typing import Any

import pyarrow as pa

from seekpoint.codecs.arrow import as_table, is_table
from seekpoint.codecs.value_types import field_names
from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.arrow.types import BY_VALUES, Kind, fields_in, fields_of, part
from seekpoint.pipeline.provenance import provenance_columns
from seekpoint.records import AnyRecord

VALUE = "value"  # the only column, if values have no fields
ORIGINS = ("topic", "partition", "offset", "timestamp", "key")

Records = Sequence[AnyRecord]


def build(records: Records, schema: Any, provenance: Mapping[str, str] | Sequence[str] | None) -> Any:
    """Build the table. Raises Poison, which names records, or ConfigError for arguments that contradict the values."""
    places = provenance_columns("", None if provenance == {} else provenance, ORIGINS)
    kinds = {type(record.value) for record in records if record.value is not None}
    if kinds and all(map(is_table, kinds)):
        return _together(records, _own(schema), places)
    values, fields = _values(records, kinds, schema)
    if twice := sorted({*fields} & {*places.values()}):
        raise ConfigError(f"provenance= names columns that the values already have: {', '.join(twice)}")
    lenient = any(value is None for value in values)  # tombstones
    arrow_schema = schema if isinstance(schema, pa.Schema) else None
    arrays, described = [], []
    for name, kind in fields.items():
        array = _column(name, kind, _cells(name, kind, values, records), records)
        field = (
            pa.field(name, array.type, kind.nullable or lenient) if arrow_schema is None else arrow_schema.field(name)
        )
        if not field.nullable:
            _check_no_nulls(name, array, records)
        arrays.append(array)
        described.append(field)
    table = pa.table(arrays, schema=pa.schema(described)) if fields else None
    return _with_origins(table, records, places)


def arrays_of(records: Records, kinds: Mapping[str, Kind]) -> list[Any]:
    """One array of the records' values for each field in ``kinds``. Raises Poison, which names records."""
    values = [record.value for record in records]
    arrays = []
    for name, kind in kinds.items():
        array = _column(name, kind, _cells(name, kind, values, records), records)
        if not kind.nullable:
            _check_no_nulls(name, array, records)
        arrays.append(array)
    return arrays


def _own(schema: Any) -> Any:
    if schema is not None and not isinstance(schema, pa.Schema):
        raise ConfigError(f"schema= of a batch of Arrow tables must be a pyarrow.Schema, got {schema!r}")
    return schema


# -- which columns ------------------------------------------------------------------------------------------------


def _values(records: Records, kinds: set[type], schema: Any) -> tuple[list[Any], dict[str, Kind]]:
    """The values, in dicts if they have no fields, and the table's columns."""
    values = [record.value for record in records]
    if any(hasattr(kind, "DESCRIPTOR") for kind in kinds):
        from seekpoint.codecs.protobuf_values import plain  # noqa: PLC0415 -- it needs another extra

        values = [None if value is None else plain(value) for value in values]
        kinds = {dict}
    fields_by_kind = {kind: fields_of(kind) for kind in kinds}
    if any(fields is None and not issubclass(kind, Mapping) for kind, fields in fields_by_kind.items()):
        values, fields_by_kind = [None if value is None else {VALUE: value} for value in values], {dict: None}
    if isinstance(schema, pa.Schema):
        return values, fields_in(schema)
    if schema is not None:
        named = fields_of(schema)
        if named is None:
            raise ConfigError(f"schema= must be a pyarrow.Schema, Struct, dataclass or TypedDict, got {schema!r}")
        return values, named
    if len(fields_by_kind) > 1 and any(fields is not None for fields in fields_by_kind.values()):
        names = ", ".join(sorted(kind.__name__ for kind in fields_by_kind))
        raise ConfigError(f"the batch has values of several types ({names}): name their columns with schema=")
    for fields in fields_by_kind.values():
        if fields is not None:
            return values, fields
    return values, {name: BY_VALUES for value in values if value is not None for name in value}


def _cells(name: str, kind: Kind, values: Sequence[Any], records: Records) -> list[Any]:
    """One field of each value; None for a value that is None."""
    if not any(issubclass(value_type, Mapping | NoneType) for value_type in set(map(type, values))):
        return list(map(attrgetter(name), values))
    cells = []
    for value, record in zip(values, records, strict=True):
        try:
            cells.append(None if value is None else part(value, name, kind.nullable))
        except ValueError as error:
            raise Poison(str(error), record) from error
    return cells


# -- one column ---------------------------------------------------------------------------------------------------

CANNOT = (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError)  # if a column cannot hold a value


def _column(name: str, kind: Kind, cells: Sequence[Any], records: Records) -> Any:
    """The column; raises Poison, which names the records whose values it cannot hold."""
    try:
        return _array(kind, cells)
    except CANNOT as error:
        misfits = [
            (record, problem) for cell, record in zip(cells, records, strict=True) if (problem := _misfit(kind, [cell]))
        ]
        if not misfits:  # each value fits alone: name the first that does not fit the earlier ones
            fits = _most(lambda count: _misfit(kind, cells[:count]) is None, len(cells))
            misfits = [(records[fits], error)]
        raise Poison(f"column {name!r}: {misfits[0][1]}", *(record for record, _ in misfits)) from error


def _array(kind: Kind, cells: Sequence[Any]) -> Any:
    fit = kind.convert is None or kind.exact.issuperset(set(map(type, cells)) - {NoneType})
    ready = cells if fit else [kind.one(cell) for cell in cells]
    if isinstance(kind.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind.type, pa.array(ready, kind.type.storage_type))
    return pa.array(ready, kind.type)


def _misfit(kind: Kind, cells: Sequence[Any]) -> Exception | None:
    try:
        _array(kind, cells)
    except CANNOT as error:
        return error
    return None


def _most(holds: Callable[[int], bool], count: int) -> int:
    """The greatest number below ``count`` for which ``holds`` is true; all greater ones must be false."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _check_no_nulls(name: str, array: Any, records: Records) -> None:
    if array.null_count:
        empty = [record for record, is_null in zip(records, array.is_null().to_pylist(), strict=True) if is_null]
        raise Poison(f"column {name!r} takes no nulls", *empty)


# -- where the records come from ------------------------------------------------------------------------------------


def _with_origins(table: Any, records: Records, places: Mapping[str, str]) -> Any:
    columns = {column: _origin(name, column, records) for name, column in places.items()}
    if table is None:
        return pa.table(columns)
    for column, array in columns.items():
        table = table.append_column(column, array)
    return table


def _origin(name: str, column: str, records: Records) -> Any:
    if name == "topic":
        return pa.array([record.topic for record in records], pa.string()).dictionary_encode()
    if name == "partition":
        return pa.array([record.partition for record in records], pa.int32())
    if name == "offset":
        return pa.array([record.offset for record in records], pa.int64())
    if name == "timestamp":
        return pa.array([record.timestamp_ms for record in records], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    keys = [record.key for record in records]
    if all(key is None or isinstance(key, bytes) for key in keys):
        return pa.array(keys, pa.binary())
    return _column(column, Kind(None, True, _builtin), keys, records)


def _builtin(key: Any) -> Any:
    names = field_names(type(key))
    return key if names is None else {name: getattr(key, name) for name in names}


# -- records that are tables ----------------------------------------------------------------------------------------


def _together(records: Records, schema: Any, places: Mapping[str, str]) -> Any:
    """All rows of the records' tables, concatenated; a column that a table lacks is null in its rows."""
    sources = [record for record in records if record.value is not None]
    parts = [_part(record, schema, places) for record in sources]
    try:
        return pa.concat_tables(parts, promote_options="default")
    except pa.ArrowException as error:

        def fits(count: int) -> bool:
            try:
                pa.concat_tables(parts[:count], promote_options="default")
            except pa.ArrowException:
                return False
            return True

        raise Poison(f"its table does not fit the earlier ones: {error}", sources[_most(fits, len(parts))]) from error


def _part(record: AnyRecord, schema: Any, places: Mapping[str, str]) -> Any:
    table = as_table(record.value)
    if twice := sorted({*table.column_names} & {*places.values()}):
        raise Poison(f"its table already has columns that provenance= names: {', '.join(twice)}", record)
    if schema is not None:
        try:
            table = table.select(schema.names).cast(schema)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise Poison(f"its table does not fit the schema: {error}", record) from error
    for name, column in places.items():
        origin = _origin(name, column, [record])
        array = origin.dictionary_decode() if name == "topic" else origin
        repeated = pa.repeat(array[0], table.num_rows)
        table = table.append_column(column, repeated.dictionary_encode() if name == "topic" else repeated)
    return table
