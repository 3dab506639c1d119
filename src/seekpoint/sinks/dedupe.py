"""One row per key, the newest, before anything reaches the server. No I/O.

Two keys are the same if the server says so, and Python's ``==`` is not always of its opinion: ``'A'`` and ``'a'``
are one key in a citext column, 1 and 1.0 are two in a text column. Rows are deduplicated here only where both agree for
certain; else all rows are passed, and the server deduplicates them. Equal values of some types have several spellings
(numeric 1 and 1.0): such a key column is written by every update, so that the newest row's spelling is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from seekpoint.errors import ConfigError
from seekpoint.pipeline.sink import Row
from seekpoint.sinks.conversions import EXACT, Conversions


class Deleted(tuple[Any, ...]):
    """A tombstone among rows: the values of :attr:`Target.deletes`."""

    __slots__ = ()


def has_deletes(rows: Sequence[Row]) -> bool:
    """Whether there is a tombstone among them."""
    return Deleted in set(map(type, rows))


class Column(NamedTuple):
    """A column as the server knows it, of a domain its base type: ``type`` as SQL without its modifier.

    ``kind`` is as the rules below name it. ``equal`` and ``not_less`` are the operators that its index goes by: by name
    alone, citext in a schema that is not searched would be compared as text.
    """

    type: str
    kind: str
    typmod: int
    equal: str = "OPERATOR(pg_catalog.=)"
    not_less: str = "OPERATOR(pg_catalog.>=)"

    @property
    def has_spellings(self) -> bool:
        """Whether equal values may be stored differently."""
        return self.kind not in _ONE_SPELLING


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
    conversions: Conversions = EXACT

    @property
    def deletes(self) -> tuple[str, ...]:
        """The columns that a tombstone has: the key, and what says whether it is newer."""
        return (*self.key, *(one for one in (self.order_by, self.offset) if one), *self.origin)

    def index(self, *names: str) -> tuple[int, ...]:
        """Where these columns are in a row."""
        assert self.columns is not None
        return tuple(map(self.columns.index, names))


@dataclass(frozen=True, slots=True)
class Deduped:
    """What to write: rows and tombstones, each with its line, the place (from 1) at which it came.

    ``is_deduped``: no key twice, rows sorted by key, and no key among both. Otherwise ``rows`` has everything in order.
    """

    is_deduped: bool
    rows: Sequence[Row]
    lines: Sequence[int]
    deletes: Sequence[Row] = ()
    delete_lines: Sequence[int] = ()


def dedupe(target: Target, rows: Sequence[Row], known: Mapping[str, Column]) -> Deduped:
    """The newest row of each key: the last, or by ``order_by`` the highest (of equals the last)."""
    if not _readable(target, rows, known):
        return Deduped(False, rows, range(1, len(rows) + 1))
    if set(map(type, rows)) == {Deleted}:  # that a key is deleted twice does no harm
        return Deduped(True, (), (), rows, range(1, len(rows) + 1))
    keys = _keys(target, rows)
    if len(rows) > 1 and not _agree(target, rows, keys, known):
        return Deduped(False, rows, range(1, len(rows) + 1))
    newest = dict(zip(keys, range(len(rows)), strict=True)) if len(rows) > 1 else {0: 0}
    if len(newest) < len(rows) and (column := target.order_by or target.offset):
        newest = _newest(target, rows, keys, column)
    places = [newest[key] for key in sorted(newest)]
    kept = [place for place in places if type(rows[place]) is not Deleted]
    gone = [] if len(kept) == len(places) else [place for place in places if type(rows[place]) is Deleted]
    return Deduped(
        True,
        [rows[place] for place in kept],
        [place + 1 for place in kept],
        [rows[place] for place in gone],
        [place + 1 for place in gone],
    )


def _readable(target: Target, rows: Sequence[Row], known: Mapping[str, Column]) -> bool:
    """Whether a tombstone's values are the same with and without their columns' modifiers.

    Rows get them by assignment; what a tombstone is compared with was rounded, or lost blanks, when it was stored.
    """
    gone = [row for row in rows if type(row) is Deleted]
    limits = {at: known[name] for at, name in enumerate(target.deletes) if known[name].typmod != -1}
    return not gone or all(
        column.kind == "text" and all(type(row[at]) is str and len(row[at]) <= column.typmod - 4 for row in gone)
        for at, column in limits.items()
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
    (at,), gone = target.index(column), target.deletes.index(column)
    return [row[gone if type(row) is Deleted else at] for row in rows]


class Offsets:
    """Looks on, chunk by chunk, whether the offsets of each key rise; keys that only the server can compare are not."""

    def __init__(self, target: Target, known: Mapping[str, Column]) -> None:
        assert target.offset is not None
        self._target, self._offset, self._known = target, target.offset, known
        self._last: dict[Any, int] = {}

    def look(self, rows: Sequence[Row]) -> None:
        """Raises ConfigError where a key comes again with a lower offset: it lives in several partitions."""
        if not rows or self._target.columns is None:  # as yet, tombstones alone
            return
        keys = _keys(self._target, rows)
        if not _exact_keys(self._target, keys, self._known):
            return
        offsets = _values(self._target, rows, self._offset)
        found = dict(zip(keys, offsets, strict=True))
        if len(found) < len(keys) or not self._last.keys().isdisjoint(found):
            for key, offset in zip(keys, offsets, strict=True):
                if self._last.get(key, offset) > offset:
                    raise _elsewhere(self._target, key, offset, self._last[key])
                self._last[key] = offset
        self._last.update(found)


def _newest(target: Target, rows: Sequence[Row], keys: Sequence[Any], column: str) -> dict[Any, int]:
    """The place of each key's row with the highest value in the column. Raises ConfigError where an offset falls."""
    values, newest = _values(target, rows, column), dict[Any, int]()
    for place, key in enumerate(keys):
        before = newest.get(key)
        if before is None or values[place] >= values[before]:
            newest[key] = place
        elif target.order_by is None:
            raise _elsewhere(target, key, values[place], values[before])
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


def _unpadded(values: Collection[str], typmod: int) -> bool:
    return typmod == -1 or not any(v.endswith(" ") for v in values)  # varchar(3) takes 'abc  ' for 'abc'


def _canonical(values: Collection[str], _typmod: int) -> bool:
    return all(len(v) == 36 and v[8] == v[13] == v[18] == v[23] == "-" and v == v.lower() for v in values)


def _fixed(values: Collection[datetime], typmod: int) -> bool:
    """Of one zone with summer time Python compares what its clocks show: the hour that comes twice would be one."""
    return typmod == -1 and {type(v.tzinfo) for v in values} == {timezone}


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
    ("text", str): _unpadded,
    ("timestamptz", datetime): _fixed,
    ("uuid", UUID): _always,
    ("uuid", str): _canonical,
}
_ONE_SPELLING = {"time", "timestamp"} | {kind for kind, _ in _EXACT} - {"numeric"}
_ORDERED = frozenset({"date", "int", "numeric", "timestamptz"})  # text is ordered by the server's collation


def _agree(target: Target, rows: Sequence[Row], keys: Sequence[Any], known: Mapping[str, Column]) -> bool:
    if not _exact_keys(target, keys, known):
        return False
    if target.order_by is None:
        return True
    column = known[target.order_by]
    return column.kind in _ORDERED and _exact(column, _values(target, rows, target.order_by))


def _exact_keys(target: Target, keys: Sequence[Any], known: Mapping[str, Column]) -> bool:
    parts: Iterable[Collection[Any]] = [keys] if len(target.key) == 1 else zip(*keys, strict=True)
    return all(_exact(known[name], values) for name, values in zip(target.key, parts, strict=True))


def _exact(column: Column, values: Collection[Any]) -> bool:
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return False
    rule = _EXACT.get((column.kind, kinds.pop()))
    return rule is not None and rule(values, column.typmod)
