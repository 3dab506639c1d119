"""Values of change events (``Upsert(changes=True)``) that a column might read as other values.

Depending on the connector's settings, Debezium sends numbers for times, and texts for bytes and decimals. If the
event's schema names the type, the codec has converted the value; a plain number or text is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from seekpoint.sinks.column_type import BYTEA, DATE, JSON, NUMERIC, TIME, TIMESTAMP, TIMESTAMPTZ, TIMETZ, ColumnType
from seekpoint.sinks.conversions import Conversions
from seekpoint.sinks.times import in_microseconds

Convert = Callable[[Any], Any]
EventRules = Callable[[type, ColumnType, Conversions], Convert | None]

BIT, VARBIT, INTERVAL = 1560, 1562, 1186
INTEGERS = {20, 21, 23}
_TIMES = {DATE, TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ, INTERVAL}
_DECLARE = "declare its type with Debezium(types=...)"
_LOST = (
    "a float may have lost digits of the source's number: set decimal.handling.mode=precise or string in the "
    "connector, or give the sink round=True"
)
_RULES: Sequence[tuple[type | tuple[type, ...], Callable[[ColumnType, Conversions], bool], str]] = (
    (
        (int, float, Decimal),
        lambda column, _: column.item in _TIMES,
        f"a number does not say which unit or type of time it is; {_DECLARE}",
    ),
    (str, lambda column, _: column.item == BYTEA, "a text for bytes: set binary.handling.mode=bytes in the connector"),
    (str, lambda column, _: column.item == VARBIT, "the event does not say how many bits there are"),
    (str, lambda column, _: column.item in JSON, f"a text may be JSON or a string; {_DECLARE}"),
    (
        float,
        lambda column, allowed: column.item == NUMERIC and not allowed.round,
        _LOST,
    ),
    (
        float,
        lambda column, _: column.item in INTEGERS,
        "a float for a whole number: set decimal.handling.mode=precise or string in the connector",
    ),
)


def of_event(kind: type, column: ColumnType, allowed: Conversions) -> Convert | None:
    """The conversion for values of this type; None if the rules of all sinks apply."""
    if issubclass(kind, bool):
        return _bit if column.item == BIT else None
    for kinds, applies, why in _RULES:
        if issubclass(kind, kinds) and applies(column, allowed):
            return _refuses(why)
    if issubclass(kind, str) and column.item == INTERVAL:
        return lambda value: in_microseconds(value, allowed)
    if issubclass(kind, datetime) and column.item == TIMESTAMPTZ:
        return _aware
    if issubclass(kind, msgspec.Raw | dict) and column.item not in JSON:
        return _hstore if column.named.removesuffix('"').endswith("hstore") else _text
    return None


def _refuses(why: str) -> Callable[[Any], Any]:
    def refuse(value: Any) -> Any:
        raise ValueError(f"got {str(value)[:80]!r}: {why}")

    return refuse


def _bit(value: bool) -> str:
    return "1" if value else "0"


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone, and the column needs one: make the column timestamp")
    return value


def _text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else msgspec.json.encode(value).decode()


def _hstore(value: Any) -> str:
    pairs = msgspec.json.decode(value, type=dict[str, str | None]) if isinstance(value, msgspec.Raw) else value
    return ", ".join(f"{_quoted(key)}=>{'NULL' if text is None else _quoted(text)}" for key, text in pairs.items())


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
