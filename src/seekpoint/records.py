"""The values that pass through the house: partition, record, batch, span. Plain, frozen, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar, overload

import msgspec

V = TypeVar("V")
K = TypeVar("K")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Partition(NamedTuple):
    """One partition of one topic; sorts by topic, then number, which is the order of every lock we take."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class Span(NamedTuple):
    """A half-open range of offsets of one partition: ``start`` was the position, ``end`` is the next one."""

    partition: Partition
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


class Record(msgspec.Struct, Generic[V, K], frozen=True, gc=False):
    """One record of a topic, its key and value decoded (or still bytes).

    ``timestamp_ms`` is milliseconds since the epoch, or None where the log has none; ``headers`` are pairs in
    order, duplicates kept; ``leader_epoch`` is the epoch of the leader that appended it, None where the broker
    does not say.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: K
    value: V
    headers: tuple[tuple[str, bytes | None], ...] = ()
    leader_epoch: int | None = None

    @property
    def timestamp(self) -> datetime | None:
        """The record's time, aware, in UTC; None where it has none or it is beyond year 9999."""
        return utc(self.timestamp_ms)

    @property
    def id(self) -> str:
        """``topic/partition/offset``: the idempotency key for effects outside this database."""
        return f"{self.topic}/{self.partition}/{self.offset}"


def utc(milliseconds: int | None) -> datetime | None:
    """Milliseconds since the epoch as an aware UTC time; None for times that Python cannot hold."""
    if milliseconds is None:
        return None
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


RawRecord = Record[bytes | None, bytes | None]


class Unmade(Sequence[RawRecord]):
    """Records as they were read, of which values and offsets are at hand: the rest is made at the first look at one.

    Where rows stream into a table, nobody looks at a record that does not fail, and a million of them take longer to
    make than their values to decode. ``topic`` is that of all of them, None where they may be of several; ``size`` the
    bytes of their keys and values. ``make`` makes them all, and is called once.
    """

    __slots__ = ("_made", "_make", "offsets", "size", "topic", "values")

    def __init__(
        self,
        values: Sequence[bytes | None],
        offsets: Sequence[int],
        make: Callable[[], list[RawRecord]],
        *,
        topic: str | None,
        size: int,
    ) -> None:
        self.values, self.offsets, self.topic, self.size = values, offsets, topic, size
        self._make: Callable[[], list[RawRecord]] | None = make
        self._made: list[RawRecord] = []

    def _records(self) -> list[RawRecord]:
        if self._make is not None:
            self._made, self._make = self._make(), None  # and what they were made from can go
        return self._made

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[RawRecord]:
        return iter(self._records())

    def __reversed__(self) -> Iterator[RawRecord]:
        return reversed(self._records())

    @overload
    def __getitem__(self, index: int) -> RawRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[RawRecord]: ...
    def __getitem__(self, index: int | slice) -> RawRecord | list[RawRecord]:
        return self._records()[index]


def offsets_of(records: Sequence[RawRecord]) -> Sequence[int]:
    """Where each of them is in its partition's log."""
    return records.offsets if isinstance(records, Unmade) else [record.offset for record in records]


class Batch(Sequence[Record[V, K]]):
    """The records of one transaction. Partitions may interleave; within each, order is the log's."""

    __slots__ = ("_records", "spans")

    def __init__(self, records: Sequence[Record[V, K]], spans: Sequence[Span] = ()) -> None:
        self._records = tuple(records)
        self.spans: tuple[Span, ...] = tuple(spans)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record[V, K]]:
        return iter(self._records)

    @overload
    def __getitem__(self, index: int) -> Record[V, K]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Record[V, K], ...]: ...
    def __getitem__(self, index: int | slice) -> Record[V, K] | tuple[Record[V, K], ...]:
        return self._records[index]

    def __repr__(self) -> str:
        return f"Batch({len(self)} records: {', '.join(map(str, self.spans))})"

    def by_partition(self) -> Mapping[Partition, Sequence[Record[V, K]]]:
        """The same records, grouped; each group in the order of its offsets."""
        groups: dict[Partition, list[Record[V, K]]] = {}
        for record in self._records:
            groups.setdefault(Partition(record.topic, record.partition), []).append(record)
        return groups

    def arrow(self, schema: Any = None, *, provenance: Mapping[str, str] | Sequence[str] | None = None) -> Any:
        """The batch as a ``pyarrow.Table``: a row for each record, a column for each field of the values.

        ``schema`` is a ``pyarrow.Schema``, or a Struct, dataclass or TypedDict; by default the columns have the types
        of the values' own annotations, or else what their values need. Values without fields are one column, ``value``;
        values that are Arrow tables are put one below the other. ``provenance`` adds columns for the records' topic,
        partition and offset: three names, or a mapping of what is wanted, of ``timestamp`` and ``key``, too.

        Raises Poison, with the records named, for values that a column cannot hold. Needs the extra ``arrow``;
        ConfigError where it is missing, or where the arguments cannot be meant.
        """
        return import_module("seekpoint.columnar").table_of(self, schema, provenance)


AnyRecord = Record[Any, Any]
