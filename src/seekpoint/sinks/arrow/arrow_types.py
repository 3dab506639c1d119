"""Which Arrow types a column holds exactly, so that values need no check."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from seekpoint.sinks.arrow.copy_text import is_binary, is_list, is_object
from seekpoint.sinks.column_type import (
    BYTEA,
    DATE,
    JSON,
    MONEY,
    NUMERIC,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    ColumnType,
)
from seekpoint.sinks.conversions import Conversions
from seekpoint.sinks.encoders import needs_look


def holds(column: ColumnType, kind: Any, allowed: Conversions) -> bool:
    """Whether the server stores each value of the type unchanged, or refuses it."""
    if pa.types.is_null(kind) or not needs_look(column, allowed):
        return True
    if column.item in JSON:
        return False
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    if column.dimensions:
        while is_list(kind):
            kind = kind.value_type
        return holds(column._replace(dimensions=0), kind, allowed)
    types = pa.types
    exact: dict[int, bool] = {
        NUMERIC: types.is_decimal(kind) and kind.scale <= (column.scale or 0),
        TIMESTAMP: types.is_date(kind) or (types.is_timestamp(kind) and kind.tz is None),
        DATE: types.is_date(kind),
        TIME: types.is_time(kind),
        TIMETZ: types.is_time(kind),
        TIMESTAMPTZ: types.is_date(kind) or types.is_timestamp(kind),
        MONEY: allowed.round,
        BYTEA: is_binary(kind) or types.is_binary_view(kind),
    }
    if types.is_integer(kind):
        return column.item != BYTEA and (column.scale is None or column.scale >= 0)
    return bool(exact[column.item]) if column.item in exact else not _is_other(kind)


def _is_other(kind: Any) -> bool:
    """Whether values are not text, but have several text forms: uuid, boolean, bytes, lists, objects."""
    types = pa.types
    if getattr(kind, "extension_name", None) == "arrow.uuid":
        return True
    return types.is_boolean(kind) or is_binary(kind) or types.is_binary_view(kind) or is_list(kind) or is_object(kind)
