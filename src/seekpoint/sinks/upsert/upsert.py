"""Upsert: one row per key, the newest, in the offset's transaction; a tombstone deletes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from sqlalchemy import Connection

from seekpoint.codecs import Codec
from seekpoint.errors import ConfigError, Poison
from seekpoint.events import WriteStrategyChanged
from seekpoint.pipeline.provenance import provenance_columns
from seekpoint.pipeline.sink import K_contra, Row, SinkWriter, V_contra, Writer
from seekpoint.pipeline.table_path import TableName, shown_table
from seekpoint.records import AnyRecord, Record
from seekpoint.sinks.base import ORIGINS, TableSink
from seekpoint.sinks.dedupe import Deleted, Target
from seekpoint.sinks.names import require_whole_names
from seekpoint.sinks.table_writer import TableWriter
from seekpoint.sinks.upsert.strategy import WriteStrategies, WriteStrategy

if TYPE_CHECKING:
    from seekpoint.sinks.upsert.open_upsert import CachedLayout


class Upsert(TableSink[V_contra, K_contra]):
    """Keep the newest row of each key in ``table``; a record without a value deletes its key's.

    ``key`` names the columns of a unique index. ``table``, ``columns``, ``row``, ``rows``, ``topics`` and
    ``provenance`` are as for :class:`Append`. Newest is what comes last in its partition; of a key that lives in
    several partitions or topics, name with ``order_by`` a column whose highest value is the newest, also against
    the row that is stored. ``offset_column`` stores the record's offset, and no older record of the same
    partition overwrites the row then: after a rewind, or when a dead letter is replayed. (With ``provenance`` that has
    the partition, offsets of different partitions are not compared.) A row without a value in the guarding column is
    older than any.

    ``tombstone="delete"``: a record whose value is None deletes its key's row, and ``row=`` is not asked. Its key
    are the record key's fields of the names in ``key``, or the record's key itself where that is one
    column, or what ``tombstone_key=`` makes of the record; with ``order_by`` that must have this column, too.
    A deletion is not remembered: an older record that comes after it makes the row again.
    ``tombstone=None``: such records go to ``row=`` like any other.

    ``compacted=True`` says that a reload may rebuild the table from a compacted topic, which keeps the newest record of
    each key: the record's key and the row's key name each other, one to one, and every record has a row. It takes
    ``row=`` and no ``order_by``. A worker does nothing else by it; a reload checks it.

    A column that is named is written: a field that is None becomes NULL. What is not named keeps what the database has,
    or gets its default. Of several rows of a key in one transaction the newest is stored.
    """

    def __init__(
        self,
        table: TableName,
        *,
        key: Sequence[str],
        columns: Sequence[str] | None = None,
        row: Callable[[Record[V_contra, K_contra]], Any] | None = None,
        rows: Callable[[Record[V_contra, K_contra]], Iterable[Any]] | None = None,
        topics: Collection[str] | None = None,
        tombstone: Literal["delete"] | None = "delete",
        tombstone_key: Callable[[Record[Any, K_contra]], Any] | None = None,
        order_by: str | None = None,
        offset_column: str | None = None,
        provenance: Mapping[str, str] | Sequence[str] | None = None,
        compacted: bool = False,
        round: bool = False,  # noqa: A002
        timezone: str | tzinfo | None = None,
    ) -> None:
        me = f"Upsert({shown_table(table)})"
        if isinstance(key, str) or not key or len({*key}) < len(key):
            raise ConfigError(f"{me}: key= takes the names of the key's columns, each once: key=['id']; got {key!r}")
        if tombstone not in {"delete", None}:
            raise ConfigError(f"{me}: tombstone= is 'delete' or None, got {tombstone!r}")
        if order_by is not None and offset_column is not None:
            raise ConfigError(f"{me}: one column says which row is newer: give order_by= or offset_column=, not both")
        if tombstone is None and tombstone_key is not None:
            raise ConfigError(f"{me}: tombstone_key= is for tombstone='delete'")
        if compacted and (row is None or order_by is not None):
            raise ConfigError(
                f"{me}: compacted=True says that each record's key is one row's key: it takes row=, one row for each "
                "record, and no order_by=, by which an older record may be the newest"
            )
        self.key, self.order_by, self.offset_column = tuple(key), order_by, offset_column
        self.compacted = compacted
        self.tombstone_key = tombstone_key
        self._tombstone = tombstone
        super().__init__(
            table,
            columns=columns,
            row=row,
            rows=rows,
            topics=topics,
            provenance=_with_offset(me, provenance_columns(f"{me}: ", provenance, ORIGINS), offset_column),
            round=round,
            timezone=timezone,
        )

    @property
    def guarded(self) -> bool:
        """Whether an older record never overwrites a newer one's row, in whatever order they come."""
        return self.order_by is not None or self.offset_column is not None

    @property
    def deletes(self) -> bool:
        """Whether a record without a value deletes its key's row, which is not remembered."""
        return self._tombstone is not None

    @property
    def target(self) -> Target:
        """What is written where, as far as the columns are known."""
        told = [self.provenance[name] for name in ("partition", "topic") if name in self.provenance]
        return Target(
            repr(self),
            self.path,
            self.written,
            self.key,
            self.order_by,
            self.offset_column,
            tuple(told) if self.offset_column and "partition" in self.provenance else (),
            self.conversions,
        )

    def writer(self) -> SinkWriter[V_contra | None, K_contra]:
        """What a worker writes its rows with."""
        return UpsertWriter(self)

    def check(self, tx: Connection, codecs: Collection[Codec] = ()) -> Any:
        """The table's layout. Raises ConfigError where it, a column, the key's index or a right is missing.

        And where a column cannot hold a field as it is.
        """
        from seekpoint.sinks.upsert.check import check_upsert  # noqa: PLC0415 -- a declaration needs no driver

        target = dataclasses.replace(self.target, columns=self.expected(codecs))
        require_whole_names(repr(self), target.columns or target.deletes)
        layout = check_upsert(tx, target, deletes=self._tombstone is not None)
        self.check_fields(codecs, layout.written)
        return layout

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns without whose values no row is found."""
        return (*self.key, *([self.order_by] if self.order_by else []))

    def require_columns(self, columns: tuple[str, ...]) -> None:
        """Raise ConfigError where these columns of the rows contradict the rest of the declaration."""
        super().require_columns(columns)
        written = (*columns, *self.provenance.values())
        if missing := [name for name in self.needed if name not in written]:
            raise ConfigError(
                f"{self!r}: the rows have no {', '.join(missing)}; their columns are {', '.join(written)}"
            )


class UpsertWriter(TableWriter[Upsert[Any, Any]]):
    """Writes each key's newest row; ``strategies`` is what it has learned of the stream."""

    def __init__(self, sink: Upsert[Any, Any]) -> None:
        self.strategies = WriteStrategies()
        self._announced: WriteStrategy | None = None
        self._known: CachedLayout | None = None
        super().__init__(sink)
        self._needed = () if self.columns is None else self._places()

    @property
    def target(self) -> Target:
        """What is written where, as far as the columns are known."""
        return dataclasses.replace(self._sink.target, columns=self.written)

    def know(self, columns: tuple[str, ...]) -> None:
        """The rows' own columns are known now. Raises ConfigError where they contradict the declaration."""
        super().know(columns)
        self._needed = self._places()

    def _places(self) -> tuple[tuple[str, int], ...]:
        written = self.written or ()
        return tuple((name, written.index(name)) for name in self._sink.needed)

    def rows(self, record: Record[Any, Any]) -> Iterable[Row]:
        """Rows of one record, or what its tombstone deletes; raises Poison where a key or order is null."""
        if record.value is None and self._sink.deletes:
            return (self._gone(record),)
        made = list(super().rows(record))
        for row in made:
            for name, at in self._needed:
                if row[at] is None:
                    raise Poison(f"{self!r}: column {name!r} is null, and without it no row is found")
        return made

    def value_rows(self, values: Sequence[Any]) -> list[Row] | None:
        """The rows of many records at once; None where one must be looked at with its record."""
        made = super().value_rows(values)
        if made is None or any(None in map(itemgetter(at), made) for _, at in self._needed):
            return None
        return made

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Take the rows as they come; they are in the table when the block is left."""
        from seekpoint.sinks.target_table import rerun_if_changed  # noqa: PLC0415 -- rows are made without a driver
        from seekpoint.sinks.upsert.open_upsert import CachedLayout, OpenUpsert  # noqa: PLC0415

        self._known = self._known or CachedLayout()
        with (
            rerun_if_changed(tx, self._sink.path),
            OpenUpsert(tx, lambda: self.target, self._known, self.strategies) as writer,
        ):
            yield writer

    def strategy_changed(self) -> WriteStrategyChanged | None:
        """After COMMIT: whether large transactions are written in another way than when this was asked last."""
        current, last, conflicts = self.strategies.current, self.strategies.last, self.strategies.conflicts
        if current is self._announced or current is None or last is None:
            return None
        self._announced = current
        return WriteStrategyChanged(sink=repr(self), strategy=current.value, rows=last.rows, conflicts=conflicts)

    # -- tombstones ---------------------------------------------------------------------------------------

    def _gone(self, record: AnyRecord) -> Deleted:
        given = record.key if self._sink.tombstone_key is None else self._sink.tombstone_key(record)
        names = self._sink.needed
        values = self._named(names, given)
        for name, value in zip(names, values, strict=True):
            if value is None:
                raise Poison(f"{self!r}: the tombstone's {name!r} is null, and without it no row is found")
        if self._sink.offset_column is None:
            return Deleted(values)
        told = [getattr(record, name) for name in ("partition", "topic") if name in self._sink.provenance]
        return Deleted((*values, record.offset, *(told if "partition" in self._sink.provenance else ())))

    def _named(self, names: tuple[str, ...], given: Any) -> tuple[Any, ...]:
        """The values of these columns, from whatever names them."""
        if given is None:
            raise Poison(f"{self!r}: a tombstone without a key; nothing says which row it deletes")
        kind = type(given)
        if issubclass(kind, Mapping):
            found = dict(given)
        elif issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind):
            found = {name: getattr(given, name) for name in names if hasattr(given, name)}
        elif isinstance(given, tuple | list):
            if len(given) != len(names):
                raise Poison(f"{self!r}: the tombstone's key has {len(given)} values for {', '.join(names)}")
            found = dict(zip(names, given, strict=True))
        elif isinstance(given, bytes) and self._sink.tombstone_key is None:
            raise ConfigError(
                f"{self!r}: a tombstone's key is bytes, and no codec decodes them; give the pipeline a codec "
                "(key=Text(), key=Json(...)), or the sink tombstone_key=, a function of the record"
            )
        elif len(names) == 1:
            found = {names[0]: given}
        else:
            raise Poison(
                f"{self!r}: the tombstone's key does not name {', '.join(names)}; say with tombstone_key= what they are"
            )
        if missing := [name for name in names if name not in found]:
            raise Poison(
                f"{self!r}: the tombstone's key has no {', '.join(missing)}; say with tombstone_key= what they are"
            )
        return tuple(found[name] for name in names)


def _with_offset(me: str, provenance: dict[str, str], offset_column: str | None) -> dict[str, str] | None:
    """The guard's column is one of the provenance."""
    if offset_column is not None and provenance.setdefault("offset", offset_column) != offset_column:
        raise ConfigError(
            f"{me}: provenance= puts the offset into {provenance['offset']!r}, offset_column= into {offset_column!r}"
        )
    return provenance or None
