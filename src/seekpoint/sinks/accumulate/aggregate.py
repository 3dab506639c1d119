"""Aggregates rows by key before they reach the server, if Python computes exactly what the server would. No I/O.

The rows of one key become one: ``add`` columns are summed, ``least`` and ``most`` keep the lowest and the highest
value, and NULL adds nothing. Each value must fit its column even if the sum does, because alone its record would fail.
If that is not certain, or only the server can compare keys or values, all rows are sent, and the server aggregates
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, Rounded, localcontext
from math import isfinite
from operator import itemgetter
from typing import Any

from seekpoint.pipeline.sink import Row
from seekpoint.sinks.column_type import declared_scale
from seekpoint.sinks.dedupe import ORDERED, Column, Target, exact, exact_keys

_INTEGERS = {"smallint": 1 << 15, "integer": 1 << 31, "bigint": 1 << 63}  # -bound <= value < bound
_MOST_SCALE = 16_383  # most fraction digits of a numeric without a declared scale; the server drops further ones
# More digits than a numeric has. Rounding raises, and then the server aggregates the rows.
_WIDE = Context(prec=150_000, traps=[Inexact, Rounded, Overflow, InvalidOperation])


@dataclass(frozen=True, slots=True)
class SumTarget(Target):
    """The table of an ``Accumulate``. ``columns`` are the columns of the key, then ``add``, ``least`` and ``most``."""

    add: tuple[str, ...] = ()
    least: tuple[str, ...] = ()
    most: tuple[str, ...] = ()


def aggregate(target: SumTarget, rows: Sequence[Row], table_columns: Mapping[str, Column]) -> Sequence[Row] | None:
    """One row for each key, in the order in which the keys came; None if the server must aggregate the rows."""
    assert target.columns is not None
    if {*map(len, rows)} != {len(target.columns)}:
        return None
    keys = list(map(itemgetter(*target.index(*target.key)), rows))
    if not exact_keys(target, keys, table_columns):
        return None
    values = dict(zip(target.columns, zip(*rows, strict=True), strict=True))
    if not _exact_values(target, values, table_columns):
        return None
    if len({*keys}) < len(rows):
        return _aggregated(target, keys, values, table_columns)
    return rows if all(_fits_total(table_columns[name], values[name]) for name in target.add) else None


def _aggregated(
    target: SumTarget, keys: Sequence[Any], values: Mapping[str, Sequence[Any]], table_columns: Mapping[str, Column]
) -> Sequence[Row] | None:
    columns: list[dict[Any, Any]] = []
    try:
        with localcontext(_WIDE):
            columns += [_sums(keys, values[name]) for name in target.add]
    except (Inexact, Rounded, Overflow, InvalidOperation):
        return None
    if not all(_fits_total(table_columns[name], sums.values()) for name, sums in zip(target.add, columns, strict=True)):
        return None
    columns += [_extremes(keys, values[name], lambda new, old: new < old) for name in target.least]
    columns += [_extremes(keys, values[name], lambda new, old: new > old) for name in target.most]
    distinct = dict.fromkeys(keys)
    key_columns = [distinct] if len(target.key) == 1 else zip(*distinct, strict=True)
    return list(zip(*key_columns, *([column.get(key) for key in distinct] for column in columns), strict=True))


def _sums(keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    sums: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        if value is not None:
            sums[key] = sums[key] + value if key in sums else value
    return sums


def _extremes(keys: Sequence[Any], values: Sequence[Any], replaces: Callable[[Any, Any], bool]) -> dict[Any, Any]:
    extremes: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        if value is not None and (key not in extremes or replaces(value, extremes[key])):
            extremes[key] = value
    return extremes


# -- where Python and the server agree ------------------------------------------------------------------------


def _exact_values(target: SumTarget, values: Mapping[str, Sequence[Any]], table_columns: Mapping[str, Column]) -> bool:
    for name in (*target.add, *target.least, *target.most):
        column, present = table_columns[name], [value for value in values[name] if value is not None]
        is_ordered = name not in target.add and column.kind in ORDERED
        if present and not (_is_number(column, present) or (is_ordered and exact(column, present))):
            return False
    return True


def _is_number(column: Column, values: Collection[Any]) -> bool:
    """Whether each value is stored unchanged, and Python and the server compute the same sum."""
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return False
    kind = kinds.pop()
    if column.kind == "int":
        bound = _INTEGERS[column.type]
        return kind is int and -bound <= min(values) and max(values) < bound
    if column.kind == "numeric":
        if kind is Decimal:
            return all(map(Decimal.is_finite, values)) and _is_in_scale(column, values)
        return kind is int and _is_in_scale(column, values)
    return column.type == "double precision" and kind is float and all(map(isfinite, values))


def _is_in_scale(column: Column, values: Collection[Any]) -> bool:
    """Whether the numeric column takes all values without rounding."""
    if column.typmod < 0:
        return True
    scale = declared_scale(column.typmod)
    bound = Decimal(1).scaleb((column.typmod - 4 >> 16) - scale)
    quantum = Decimal(1).scaleb(-scale)
    has_scale = all(type(value) is int or quantum.same_quantum(value) for value in values)
    return scale >= 0 and has_scale and -bound < min(values) and max(values) < bound


def _fits_total(column: Column, sums: Collection[Any]) -> bool:
    """Whether the server gets equal sums: no float has overflowed, no numeric has too many fraction digits."""
    if column.type == "double precision":
        return all(map(isfinite, filter(None, sums)))
    if column.kind == "numeric" and column.typmod < 0:
        return all(type(value) is not Decimal or _scale(value) <= _MOST_SCALE for value in sums)
    return True


def _scale(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0
