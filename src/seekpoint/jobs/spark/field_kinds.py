"""Column types of a codec's fields; also fixed for Decimal and UUID, whose types Arrow would derive from the values."""

from __future__ import annotations

import pyarrow as pa
from msgspec import inspect

from seekpoint.pipeline.arrow.types import Kind, kind_of

DECIMAL = pa.decimal128(38, 18)  # Spark's maximum precision: 20 digits before the decimal point, 18 after it


def field_kind(info: inspect.Type) -> Kind:
    """The field's kind: a fixed type for Decimal, text for UUID. Its type is None if values may have several types.

    The caller decides whether the column is nullable.
    """
    bare = _bare(info)
    if isinstance(bare, inspect.DecimalType):
        return Kind(DECIMAL)
    if isinstance(bare, inspect.UUIDType):
        return Kind(pa.string(), convert=str)
    return kind_of(info)


def _bare(info: inspect.Type) -> inspect.Type:
    """The type without its annotations and without ``| None``."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(info, inspect.UnionType):
        types = [type_ for type_ in info.types if not isinstance(type_, inspect.NoneType)]
        return _bare(types[0]) if len(types) == 1 else info
    return info
