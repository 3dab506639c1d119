"""One row per key, the newest, before anything reaches the server. No I/O.

Two keys are the same if the server says so, and Python's ``==`` is not always of its opinion: ``'A'`` and ``'a'``
are one key in a citext column, 1 and 1.0 are two in a text column. Keys are folded here only where both agree for
certain; else all rows are handed on, and the server folds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from seekpoint.errors import ConfigError
from seekpoint.pipeline import Row


class Deleted(tuple[Any, ...]):
    """A tombstone among rows: the values of :attr:`Target.gone`."""

    __slots__ = ()


class Column(NamedTuple):
    """A column as the server knows it: ``type`` as SQL without its modifier, ``kind`` as the rules below name it."""

    type: str
    kind: str
    typmod: int


@dataclass(frozen=True, slots=True)
class Target:
    """What is written where. ``columns`` is None where only tombstones came yet.

    ``offset`` is the column of the guard, ``origin`` are the columns that tell its partition, where there are any.
    """

    name: str
    path: tuple[str, ...]
    columns: tuple[str, ...] | None
    key: tuple[str, ...]
    order_by: str | None = None
    offset: str | None = None
    origin: tuple[str, ...] = ()

    @property
    def gone(self) -> tuple[str, ...]:
        """The columns that a tombstone has: the key, and what tells whether it is newer."""
        return (*self.key, *(one for one in (self.order_by, self.offset) if one), *self.origin)

    def index(self, *names: str) -> tuple[int, ...]:
        """Where these columns are in a row."""
        assert self.columns is not None
        return tuple(map(self.columns.index, names))


@dataclass(frozen=True, slots=True)
class Folded:
    """What to write: rows and tombstones, each with its line, the place (from 1) at which it came.

    ``is_folded``: no key twice, rows sorted by key, and no key among both. Otherwise ``rows`` has everything in order.
    """

    is_folded: bool
    rows: Sequence[Row]
    lines: Sequence[int]
    deletes: Sequence[Row] = ()
    delete_lines: Sequence[int] = ()


def fold(target: Target, rows: Sequence[Row], known: Mapping[str, Column]) -> Folded:
    """The newest row of each key: the last, or by ``order_by`` the highest (of equals the last)."""
    if set(map(type, rows)) == {Deleted}:  # that a key is deleted twice does no harm
        return Folded(True, (), (), rows, range(1, len(rows) + 1))
    keys = _keys(target, rows)
    if len(rows) > 1 and not _agree(target, rows, keys, known):
        return Folded(False, rows, range(1, len(rows) + 1))
    newest = dict(zip(keys, range(len(rows)), strict=True)) if len(rows) > 1 else {0: 0}
    if len(newest) < len(rows) and (target.order_by or target.offset):
        newest = _by_order(target, rows, keys) if target.order_by else _by_offset(target, rows, keys)
    places = [newest[key] for key in sorted(newest)]
    kept = [place for place in places if type(rows[place]) is not Deleted]
    gone = [] if len(kept) == len(places) else [place for place in places if type(rows[place]) is Deleted]
    return Folded(
        True,
        [rows[place] for place in kept],
        [place + 1 for place in kept],
        [rows[place] for place in gone],
        [place + 1 for place in gone],
    )


def _keys(target: Target, rows: Sequence[Row]) -> list[Any]:
    get = itemgetter(*target.index(*target.key))
    if Deleted not in set(map(type, rows)):
        return list(map(get, rows))
    if len(target.key) == 1:
        return [row[0] if type(row) is Deleted else get(row) for row in rows]
    width = len(target.key)
    return [tuple(row[:width]) if type(row) is Deleted else get(row) for row in rows]


def _values(target: Target, rows: Sequence[Row], column: str) -> list[Any]:
    """One column of rows and tombstones alike."""
    (at,), gone = target.index(column), target.gone.index(column)
    return [row[gone if type(row) is Deleted else at] for row in rows]


class Offsets:
    """Looks on, chunk by chunk, whether the offsets of each key rise; what is no key for Python is not looked at."""

    def __init__(self, target: Target) -> None:
        assert target.offset is not None
        self._target, self._offset = target, target.offset
        self._last: dict[Any, int] = {}
        self._kind: type | None = None

    def look(self, rows: Sequence[Row]) -> None:
        """Raises ConfigError where a key comes again with a lower offset: it lives in several partitions."""
        keys = _keys(self._target, rows)
        kinds = set(map(type, keys))
        self._kind = self._kind or next(iter(kinds), None)
        if kinds != {self._kind} or self._kind not in _ALIKE:
            return
        offsets = _values(self._target, rows, self._offset)
        found = dict(zip(keys, offsets, strict=True))
        if len(found) < len(keys) or not self._last.keys().isdisjoint(found):
            for key, offset in zip(keys, offsets, strict=True):
                if self._last.get(key, offset) > offset:
                    raise _elsewhere(self._target, key, offset, self._last[key])
                self._last[key] = offset
        self._last.update(found)


def _by_order(target: Target, rows: Sequence[Row], keys: Sequence[Any]) -> dict[Any, int]:
    assert target.order_by is not None
    order, newest = _values(target, rows, target.order_by), dict[Any, int]()
    for place, key in enumerate(keys):
        before = newest.get(key)
        if before is None or order[place] >= order[before]:
            newest[key] = place
    return newest


def _by_offset(target: Target, rows: Sequence[Row], keys: Sequence[Any]) -> dict[Any, int]:
    assert target.offset is not None
    offsets, newest = _values(target, rows, target.offset), dict[Any, int]()
    for place, key in enumerate(keys):
        before = newest.get(key)
        if before is not None and offsets[before] > offsets[place]:
            raise _elsewhere(target, key, offsets[place], offsets[before])
        newest[key] = place
    return newest


def _elsewhere(target: Target, key: Any, offset: int, before: int) -> ConfigError:
    return ConfigError(
        f"{target.name}: key {key!r} comes at offset {offset} after offset {before}, so it lives in several "
        "partitions, whose offsets say nothing about each other; give order_by= a column"
    )


# -- where Python and the server agree ----------------------------------------------------------------------


def _always(_values: Collection[Any], _typmod: int) -> bool:
    return True


def _unrounded(_values: Collection[Any], typmod: int) -> bool:
    return typmod == -1


def _fits(values: Collection[str], typmod: int) -> bool:
    return typmod == -1 or max(map(len, values)) <= typmod - 4  # varchar(3) takes 'abc  ' for 'abc'


def _canonical(values: Collection[str], _typmod: int) -> bool:
    return all(len(v) == 36 and v[8] == v[13] == v[18] == v[23] == "-" and v == v.lower() for v in values)


def _aware(values: Collection[datetime], typmod: int) -> bool:
    return typmod == -1 and not any(v.tzinfo is None for v in values)


def _finite(values: Collection[Decimal], typmod: int) -> bool:
    return typmod == -1 and all(v.is_finite() for v in values)


_EXACT: dict[tuple[str, type], Callable[[Collection[Any], int], bool]] = {
    ("bool", bool): _always,
    ("bytea", bytes): _always,
    ("date", date): _always,
    ("enum", str): _always,
    ("int", int): _always,
    ("numeric", int): _unrounded,
    ("numeric", Decimal): _finite,
    ("text", str): _fits,
    ("timestamptz", datetime): _aware,
    ("uuid", UUID): _always,
    ("uuid", str): _canonical,
}
_ALIKE = frozenset({tuple, *(kind for _, kind in _EXACT)})  # of one of these, what is equal here is equal there
_ORDERED = frozenset({"date", "int", "numeric", "timestamptz"})  # text is ordered by the server's collation


def _agree(target: Target, rows: Sequence[Row], keys: Sequence[Any], known: Mapping[str, Column]) -> bool:
    parts: Iterable[Collection[Any]] = [keys] if len(target.key) == 1 else zip(*keys, strict=True)
    if not all(_exact(known[name], values) for name, values in zip(target.key, parts, strict=True)):
        return False
    if target.order_by is None:
        return True
    column = known[target.order_by]
    return column.kind in _ORDERED and _exact(column, _values(target, rows, target.order_by))


def _exact(column: Column, values: Collection[Any]) -> bool:
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return False
    rule = _EXACT.get((column.kind, kinds.pop()))
    return rule is not None and rule(values, column.typmod)
