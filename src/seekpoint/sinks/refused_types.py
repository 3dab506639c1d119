"""The Python types that a column refuses whatever the value: for values, and for fields before the first record.

The server would read the driver's text as another value: a text column takes ``true`` and ``(1,2)``, a range ``(1,2)``,
and to money ``(5)`` is below zero. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from seekpoint.sinks.column_type import BOOL, BYTEA, DATE, MONEY, TIME, TIMETZ, ColumnType
from seekpoint.sinks.conversions import Conversions

_NO_MONEY = (
    "the server's lc_monetary decides how it is read and which digits are kept: make the column numeric, or give the "
    "sink round=True"
)
_RULES: Sequence[tuple[tuple[type, ...], Callable[[ColumnType, Conversions], bool], str]] = (
    (
        (bool,),
        lambda column, _: column.item != BOOL,
        "make the column boolean, or convert the value to a text in row=",
    ),
    (
        (bytes, bytearray, memoryview),
        lambda column, _: column.item != BYTEA,
        "make the column bytea, or decode them: key=Text() for a record's key, .decode() in row=",
    ),
    (
        (int, float, Decimal, date, time, timedelta, UUID, dict),
        lambda column, _: column.item == BYTEA,
        "make the column a type for such values, or encode the value in row=",
    ),
    (
        (list,),
        lambda *_: True,
        "make the column an array or jsonb, or convert the value to a text in row=",
    ),
    (
        (tuple,),
        lambda column, _: not column.takes_tuples,
        "make the column an array, jsonb or a composite type, or convert the value to a text in row=",
    ),
    (
        (datetime,),
        lambda column, _: column.item == DATE,
        "the column would drop the time of day: declare date, or give its date() in row=",
    ),
    (
        (datetime,),
        lambda column, _: column.item in {TIME, TIMETZ},
        "the column would drop the date: declare time, or give its time() or timetz() in row=",
    ),
    (
        (float, Decimal, str),
        lambda column, allowed: column.item == MONEY and not allowed.round,
        _NO_MONEY,
    ),
)


def remedy(kind: type, column: ColumnType, allowed: Conversions) -> str | None:
    """The remedy if the column, or an array's items, refuse each value of this type; otherwise None."""
    for kinds, is_refused, instead in _RULES:
        if issubclass(kind, kinds) and is_refused(column, allowed):
            return instead
    return None
