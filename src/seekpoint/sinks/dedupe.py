"""Reduces rows to the newest (or the first) of each key before they reach the server. No I/O.

The server decides whether two keys are equal, and Python's ``==`` may differ: ``'A'`` and ``'a'`` are one key in a
citext column, 1 and 1.0 are two in a text column. Rows are deduplicated here only if both are sure to agree; otherwise
all rows are sent, and the server deduplicates them. In some types equal values have several spellings (numeric 1 and
1.0). Every update writes a key column of such a type, so that the newest row's spelling is stored.
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
from seekpoint.pipeline.sink import Row, RowRefused, WentBack
from seekpoint.sinks.conversions import EXACT, Conversions
from seekpoint.sinks.event_values import EventRules


class Deleted(tuple[Any, ...]):
    """A tombstone among rows: the values of :attr:`Target.deletes`."""

    __slots__ = ()


class Truncated(tuple[Any, ...]):
    """A deletion of all rows, among rows: the values of :attr:`Target.deletes`, with None for the key."""

    __slots__ = ()


class Partial(tuple[Any, ...]):
    """A row with UNAVAILABLE values, whose columns keep the stored value."""

    __slots__ = ()


def has_deletes(rows: Sequence[Row]) -> bool:
    """Whether there is a tombstone among the rows."""
    return Deleted in set(map(type, rows))


class Column(NamedTuple):
    """A column's type, or the base type of its domain. ``type`` is SQL without the modifier.

    ``kind`` is the type's name in this module's rules. ``equal`` and ``not_less`` are the index's operators with their
    schema, because a plain ``=`` compares citext as text if the schema of citext is not in search_path.
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
    """The table that rows are merged into. ``columns`` is None while only tombstones have come.

    ``offset`` is the column that guards against older records; ``origin`` has the columns of the record's partition and
    topic, if any.
    """

    name: str
    path: tuple[str, ...]
    columns: tuple[str, ...] | None
    key: tuple[str, ...]
    order_by: str | None = None
    offset: str | None = None
    origin: tuple[str, ...] = ()
    conversions: Conversions = EXACT
    event_rules: EventRules | None = None
    keeps_first: bool = False  # the first row of a key stays

    @property
    def has_position(self) -> bool:
        """Whether ``order_by`` is the source's position, which is compared only between partitions."""
        return self.order_by is not None and self.offset is not None

    @property
    def deletes(self) -> tuple[str, ...]:
        """The columns of a tombstone: the key, and those that show whether the tombstone is newer."""
        return (*self.key, *(column for column in (self.order_by, self.offset) if column), *self.origin)

    def index(self, *names: str) -> tuple[int, ...]:
        """The indexes of these columns in a row."""
        assert self.columns is not None
        return tuple(map(self.columns.index, names))


@dataclass(frozen=True, slots=True)
class Deduped:
    """Rows and tombstones to write, each with its line, counted from 1 in order of arrival.

    ``is_deduped``: rows are sorted by key, and no key has two rows, or a row and a tombstone. Otherwise ``rows`` has
    everything in order.
    """

    is_deduped: bool
    rows: Sequence[Row]
    lines: Sequence[int]
    deletes: Sequence[Row] = ()
    delete_lines: Sequence[int] = ()


def dedupe(target: Target, rows: Sequence[Row], table_columns: Mapping[str, Column]) -> Deduped:
    """Each key's newest row: the last, or the highest by ``order_by`` (the last of equals); or its first row."""
    if not _readable(target, rows, table_columns):
        return Deduped(False, rows, range(1, len(rows) + 1))
    if set(map(type, rows)) == {Deleted}:  # deleting a key twice does no harm
        return Deduped(True, (), (), rows, range(1, len(rows) + 1))
    keys = _keys(target, rows)
    if len(rows) > 1 and not _agree(target, rows, keys, table_columns):
        return Deduped(False, rows, range(1, len(rows) + 1))
    newest = dict(zip(keys, range(len(rows)), strict=True)) if len(rows) > 1 else {0: 0}
    if target.keeps_first and len(newest) < len(rows):
        newest = dict(zip(reversed(keys), reversed(range(len(rows))), strict=True))
    if len(newest) < len(rows) and (column := target.order_by or target.offset):
        newest = _furthest(target, rows, keys) if target.has_position else _newest(target, rows, keys, column)
    places = [newest[key] for key in sorted(newest)]
    row_places = [place for place in places if type(rows[place]) is not Deleted]
    deleted_places = (
        [] if len(row_places) == len(places) else [place for place in places if type(rows[place]) is Deleted]
    )
    return Deduped(
        True,
        [rows[place] for place in row_places],
        [place + 1 for place in row_places],
        [rows[place] for place in deleted_places],
        [place + 1 for place in deleted_places],
    )


def _readable(target: Target, rows: Sequence[Row], table_columns: Mapping[str, Column]) -> bool:
    """Whether tombstones' values are equal with and without their columns' modifiers.

    Assignment rounded a stored value, or removed its blanks; the tombstone's value to compare is as it came.
    """
    tombstones = [row for row in rows if type(row) is Deleted]
    limits = {
        index: table_columns[name] for index, name in enumerate(target.deletes) if table_columns[name].typmod != -1
    }
    return not tombstones or all(
        column.kind == "text"
        and all(type(row[index]) is str and len(row[index]) <= column.typmod - 4 for row in tombstones)
        for index, column in limits.items()
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
    (index,), index_in_tombstone = target.index(column), target.deletes.index(column)
    return [row[index_in_tombstone if type(row) is Deleted else index] for row in rows]


class Offsets:
    """Checks, chunk by chunk, that each key's offsets rise; skips keys that only the server can compare."""

    def __init__(self, target: Target, table_columns: Mapping[str, Column]) -> None:
        assert target.offset is not None
        self._target, self._offset, self._known = target, target.offset, table_columns
        self._last: dict[Any, int] = {}

    def look(self, rows: Sequence[Row]) -> None:
        """Raise ConfigError if a key comes again with a lower offset, which shows that it is in several partitions."""
        if not rows or self._target.columns is None:  # only tombstones so far
            return
        keys = _keys(self._target, rows)
        if not exact_keys(self._target, keys, self._known):
            return
        offsets = _values(self._target, rows, self._offset)
        last_offsets = dict(zip(keys, offsets, strict=True))
        if len(last_offsets) < len(keys) or not self._last.keys().isdisjoint(last_offsets):
            for key, offset in zip(keys, offsets, strict=True):
                if self._last.get(key, offset) > offset:
                    raise _elsewhere(self._target, key, offset, self._last[key])
                self._last[key] = offset
        self._last.update(last_offsets)


def _newest(target: Target, rows: Sequence[Row], keys: Sequence[Any], column: str) -> dict[Any, int]:
    """The index of each key's row with the highest value in ``column``. Raises ConfigError if offsets fall."""
    values, newest = _values(target, rows, column), dict[Any, int]()
    for place, key in enumerate(keys):
        before = newest.get(key)
        if before is None or values[place] >= values[before]:
            newest[key] = place
        elif target.order_by is None:
            raise _elsewhere(target, key, values[place], values[before])
    return newest


def _furthest(target: Target, rows: Sequence[Row], keys: Sequence[Any]) -> dict[Any, int]:
    """The index of each key's row with the highest source position; of a partition's rows the last one.

    A tombstone, which has no position, gets that of the row before it in its partition. Raises RowRefused for a
    position lower than an earlier one of its partition.
    """
    assert target.order_by is not None
    positions = _values(target, rows, target.order_by)
    origins = list(zip(*(_values(target, rows, name) for name in target.origin), strict=True)) or [()] * len(rows)
    so_far, newest = dict[Any, int](), dict[Any, tuple[int, int]]()
    for place, (key, origin, position) in enumerate(zip(keys, origins, positions, strict=True)):
        before = so_far.get((key, origin), -1)
        if position is not None and position < before:
            raise RowRefused(place + 1, WentBack(target.order_by, before, position))
        so_far[key, origin] = before if position is None else position
        newest[key] = max(newest.get(key, (-1, 0)), (so_far[key, origin], place))
    return {key: place for key, (_, place) in newest.items()}


def _elsewhere(target: Target, key: Any, offset: int, before: int) -> ConfigError:
    return ConfigError(
        f"{target.name}: key {key!r} comes at offset {offset} after offset {before}, so it is in several partitions, "
        "whose offsets cannot be compared: give order_by= the column that says which row is newer"
    )


# -- where Python and the server agree ----------------------------------------------------------------------


def _always(_values: Collection[Any], _typmod: int) -> bool:
    return True


def _unrounded(_values: Collection[Any], typmod: int) -> bool:
    return typmod == -1


def _unpadded(values: Collection[str], typmod: int) -> bool:
    return typmod == -1 or not any(value.endswith(" ") for value in values)  # varchar(3) takes 'abc  ' for 'abc'


def _canonical(values: Collection[str], _typmod: int) -> bool:
    return all(
        len(value) == 36 and value[8] == value[13] == value[18] == value[23] == "-" and value == value.lower()
        for value in values
    )


def _fixed(values: Collection[datetime], typmod: int) -> bool:
    """Whether all offsets are fixed: in a zone with summer time Python compares local times, and an hour repeats."""
    return typmod == -1 and {type(value.tzinfo) for value in values} == {timezone}


def _finite(values: Collection[Decimal], typmod: int) -> bool:
    return typmod == -1 and all(value.is_finite() for value in values)


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
ORDERED = frozenset({"date", "int", "numeric", "timestamptz"})  # text is ordered by the server's collation


def _agree(target: Target, rows: Sequence[Row], keys: Sequence[Any], table_columns: Mapping[str, Column]) -> bool:
    if not exact_keys(target, keys, table_columns):
        return False
    if target.order_by is None:
        return True
    column = table_columns[target.order_by]
    if target.has_position:  # a column of another type refuses the numbers
        return True
    return column.kind in ORDERED and exact(column, _values(target, rows, target.order_by))


def exact_keys(target: Target, keys: Sequence[Any], table_columns: Mapping[str, Column]) -> bool:
    """Whether Python and the server agree on which of these keys are equal: values, or tuples of several columns."""
    parts: Iterable[Collection[Any]] = [keys] if len(target.key) == 1 else zip(*keys, strict=True)
    return all(exact(table_columns[name], values) for name, values in zip(target.key, parts, strict=True))


def exact(column: Column, values: Collection[Any]) -> bool:
    """Whether Python and the server agree on which of these values are equal."""
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return False
    rule = _EXACT.get((column.kind, kinds.pop()))
    return rule is not None and rule(values, column.typmod)
