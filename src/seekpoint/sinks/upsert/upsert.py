"""Upsert: one row per key, the newest, in the offset's transaction; a tombstone deletes it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import tzinfo
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from sqlalchemy import Connection

from seekpoint.codecs import UNAVAILABLE, Change, Codec, Debezium, Unreadable
from seekpoint.codecs.debezium import is_envelope
from seekpoint.codecs.source_position import source_position
from seekpoint.codecs.value_types import field_names
from seekpoint.errors import ConfigError, Poison
from seekpoint.events import WriteStrategyChanged
from seekpoint.pipeline.provenance import provenance_columns
from seekpoint.pipeline.sink import ONE_PARTITION, K_contra, Row, SinkWriter, V_contra, Writer
from seekpoint.pipeline.table_path import TableName, TableOfTopic, shown_table
from seekpoint.records import AnyRecord, RawRecord, Record
from seekpoint.sinks.base import ORIGINS, TableSink
from seekpoint.sinks.declared_types import check_fields, is_json
from seekpoint.sinks.dedupe import Deleted, Partial, Target, Truncated
from seekpoint.sinks.event_values import of_event
from seekpoint.sinks.names import require_whole_names
from seekpoint.sinks.table_writer import TableWriter
from seekpoint.sinks.upsert.changes import OpenChanges, key_before, require_key_before, require_readable
from seekpoint.sinks.upsert.strategy import WriteStrategies, WriteStrategy

if TYPE_CHECKING:
    from seekpoint.sinks.upsert.open_merge import CachedStatements
    from seekpoint.sinks.upsert.open_upsert import OpenUpsert
    from seekpoint.sinks.upsert.upsert_sql import UpsertSql

logger = logging.getLogger("seekpoint.sinks.upsert")


class Upsert(TableSink[V_contra, K_contra]):
    """Keep the newest row of each key in ``table``; a tombstone deletes the row of its key.

    ``key`` names the columns of a unique index. ``table``, ``columns``, ``row``, ``rows``, ``topics`` and
    ``provenance`` are as for :class:`Append`. The newest row is the last in its partition. If a key comes from several
    partitions or topics, ``order_by`` names a column: the newest row, including the stored one, is the one with the
    highest value. ``offset_column`` stores the record's offset, so that no older record of the same partition
    overwrites the row, such as after a rewind or in a replay. (If ``provenance`` has the partition, offsets of
    different partitions are not compared.) A stored row with NULL in that column is older than any record.

    ``tombstone="delete"``: a record whose value is None deletes its key's row, and ``row=`` is not called. The row's
    key has the fields of the record's key, or is that key itself if it is one column, or is the result of
    ``tombstone_key=``, a function of the record. With ``order_by`` the key must also have that column. Deletions are
    not remembered: an older record that arrives later creates the row again. ``tombstone=None``: tombstones go to
    ``row=``.

    ``compacted=True`` allows a reload to rebuild the table from a compacted topic, which keeps the newest record of
    each key. You state with it that record keys and row keys correspond one to one, and that every record has a row. It
    requires ``row=`` or ``changes=``, and excludes ``order_by``. Workers ignore it; a reload checks it.

    ``on_conflict="keep"``: the first row of a key stays, and later ones change nothing. No row is deleted: tombstones
    go to ``row=``. It excludes ``order_by``, ``offset_column`` and ``compacted``.

    ``changes=True``: the values are Debezium's changes of rows (``value=Debezium()``, ``key=Debezium()``). Creates,
    reads and updates are upserts of the ``columns``; deletes and tombstones delete the row; a changed key also deletes
    the old row. Columns that the source did not send (``UNAVAILABLE``) keep their stored value. A truncate is poison;
    with ``truncate="delete"`` it deletes all rows that are not newer, which needs a topic of one partition, and
    ``offset_column``. With ``offset_column``, ``order_by`` names a column that stores the source's position of the row:
    a change with a lower position does not overwrite a row from another partition. Within a partition a lower position
    stops the worker: the source was restored, or sends changes again.

    Named columns are written: a field that is None becomes NULL. Other columns keep their stored value, or get their
    default. If one transaction has several rows of a key, the newest is stored.
    """

    keeps_records = True

    def __init__(
        self,
        table: TableName | TableOfTopic,
        *,
        key: Sequence[str],
        columns: Sequence[str] | None = None,
        row: Callable[[Record[V_contra, K_contra]], Any] | None = None,
        rows: Callable[[Record[V_contra, K_contra]], Iterable[Any]] | None = None,
        topics: Collection[str] | None = None,
        tombstone: Literal["delete"] | None = "delete",
        tombstone_key: Callable[[Record[Any, K_contra]], Any] | None = None,
        on_conflict: Literal["update", "keep"] = "update",
        changes: bool = False,
        truncate: Literal["delete"] | None = None,
        order_by: str | None = None,
        offset_column: str | None = None,
        provenance: Mapping[str, str] | Sequence[str] | None = None,
        compacted: bool = False,
        round: bool = False,  # noqa: A002
        timezone: str | tzinfo | None = None,
    ) -> None:
        me = f"Upsert({shown_table(table)})"
        if isinstance(key, str) or not key or len({*key}) < len(key) or not all(isinstance(name, str) for name in key):
            raise ConfigError(f"{me}: key= takes the names of the key's columns, each once: key=['id']; got {key!r}")
        _check_choices(me, tombstone, on_conflict)
        self.keeps_first = on_conflict == "keep"
        is_ordered = order_by is not None or offset_column is not None or compacted
        if self.keeps_first and is_ordered:
            raise ConfigError(f"{me}: {_KEEPS_FIRST}")
        if changes and (columns is None or row is not None or rows is not None):
            raise ConfigError(f"{me}: {_MAKES_ROWS}")
        is_unguarded = order_by is not None and offset_column is None
        if changes and (is_unguarded or self.keeps_first or tombstone != "delete" or tombstone_key is not None):
            raise ConfigError(f"{me}: {_IN_ORDER}")
        _check_truncate(me, truncate, can_truncate=changes and offset_column is not None and not compacted)
        if order_by is not None and offset_column is not None and not changes:
            raise ConfigError(f"{me}: one column says which row is newer: give order_by= or offset_column=, not both")
        self._tombstone = None if self.keeps_first else tombstone
        if self._tombstone is None and tombstone_key is not None:
            raise ConfigError(f"{me}: tombstone_key= is for tombstone='delete', and on_conflict='keep' deletes no row")
        if compacted and ((row is None and not changes) or order_by is not None):
            raise ConfigError(
                f"{me}: compacted=True states that each record's key is one row's key: give row= or changes=True, one "
                "row for each record, and leave out order_by=, which may keep a different record than compaction"
            )
        self.key, self.order_by, self.offset_column = tuple(key), order_by, offset_column
        self.compacted, self.changes, self.empties = compacted, changes, truncate is not None
        self.needs_order = changes
        self.tombstone_key = tombstone_key
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
        self.event_rules = of_event if changes else None

    @property
    def guarded(self) -> bool:
        """Whether older records never overwrite the row of a newer one, in any order of arrival."""
        return self.order_by is not None or self.offset_column is not None

    @property
    def compares_offsets(self) -> bool:
        """Whether offsets of different topics are compared: no column has the topic and the partition."""
        return self.offset_column is not None and not {"topic", "partition"} <= {*self.provenance}

    @property
    def deletes(self) -> bool:
        """Whether a tombstone deletes its key's row."""
        return self._tombstone is not None

    def without_tombstones(self) -> Self:
        """A copy that deletes no rows, and needs no DELETE privilege."""
        other = super().without_tombstones()
        other._tombstone = None  # noqa: SLF001 -- of the same class
        return other

    @property
    def target(self) -> Target:
        """The table and the columns to write, as far as they are known."""
        partition_columns = [self.provenance[name] for name in ("partition", "topic") if name in self.provenance]
        return Target(
            repr(self),
            self.path,
            self.written,
            self.key,
            self.order_by,
            self.offset_column,
            tuple(partition_columns) if self.offset_column and "partition" in self.provenance else (),
            self.conversions,
            self.event_rules,
            self.keeps_first,
        )

    def writer(self) -> SinkWriter[V_contra | None, K_contra]:
        """A writer for one worker."""
        return ChangesWriter(self) if self.changes else UpsertWriter(self)

    @property
    def written(self) -> tuple[str, ...] | None:
        """Every written column, in the order of the rows; None if the first row decides."""
        columns = super().written
        return columns if columns is None or not self.has_position else (*columns, self.order_by or "")

    @property
    def has_position(self) -> bool:
        """Whether ``order_by`` stores each change's position at the source."""
        return self.changes and self.order_by is not None

    def check(self, tx: Connection, codecs: Collection[Codec] = (), key: Codec | None = None) -> Any:
        """The table's layout. Raises ConfigError if the table, a column, the key's index or a privilege is missing.

        Also raises it for a column that cannot hold a field unchanged.
        """
        from seekpoint.sinks.upsert.check import check_upsert  # noqa: PLC0415 -- a declaration needs no driver

        self._check_codecs(codecs)
        target = dataclasses.replace(self.target, columns=self.expected(codecs))
        require_whole_names(repr(self), target.columns or target.deletes)
        layout = check_upsert(tx, target, deletes=self._tombstone is not None)
        self.check_fields(codecs, layout.types.columns)
        if self.deletes and self.tombstone_key is None and key is not None and is_json(key):
            check_fields(f"{self!r}: a tombstone's key", [key], self.needed, layout.types.columns, self.conversions)
        return layout

    def _check_codecs(self, codecs: Collection[Codec]) -> None:
        """Raise ConfigError if a codec decodes changes and the sink takes rows, or vice versa."""
        for codec in codecs:
            if isinstance(codec, Debezium) is not self.changes:
                raise ConfigError(f"{self!r}: {_ROWS_ARE_NO_CHANGES if self.changes else _CHANGES_ARE_NO_ROWS}")

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must not be null: the key, and ``order_by`` if it is set."""
        return (*self.key, *([self.order_by] if self.order_by and not self.changes else []))

    def require_columns(self, columns: tuple[str, ...]) -> None:
        """Raise ConfigError if these columns of the rows contradict the rest of the declaration."""
        super().require_columns(columns)
        written = (*columns, *self.provenance.values())
        if self.has_position and self.order_by in written:
            raise ConfigError(
                f"{self!r}: order_by={self.order_by!r} gets the source's position, so it cannot be one of columns=, or "
                "of provenance=: name another column"
            )
        if missing := [name for name in self.needed if name not in written]:
            raise ConfigError(
                f"{self!r}: the rows have no {', '.join(missing)}; their columns are {', '.join(written)}: key= and "
                "order_by= name columns that each row has"
            )


def _check_choices(me: str, tombstone: str | None, on_conflict: str) -> None:
    if tombstone not in ("delete", None):  # tuples: a list in place of a word has no hash
        raise ConfigError(f"{me}: tombstone= is 'delete' or None, got {tombstone!r}")
    if on_conflict not in ("update", "keep"):
        raise ConfigError(f"{me}: on_conflict= is 'update' or 'keep', got {on_conflict!r}")


def _check_truncate(me: str, truncate: str | None, *, can_truncate: bool) -> None:
    if truncate not in ("delete", None) or (truncate is not None and not can_truncate):
        raise ConfigError(f"{me}: truncate={truncate!r}: {_TRUNCATES}")


_KEEPS_FIRST = (
    "on_conflict='keep' keeps the first row of a key, and order_by=, offset_column= and compacted= are for the newest: "
    "leave them out; provenance= stores the offset"
)
_MAKES_ROWS = "changes=True makes the rows from the changes: name the table's columns=[...], and give no row= or rows="
_IN_ORDER = (
    "changes=True applies changes in the order of the log, and deletes rows: leave on_conflict=, tombstone= and "
    "tombstone_key= out; offset_column= keeps older records from newer rows, and order_by=, which needs it, compares "
    "the source's positions"
)
_TRUNCATES = (
    "it takes 'delete', and needs changes=True and offset_column=, so that no replayed truncate deletes newer rows; it "
    "excludes compacted=True, as a compacted topic has no record without a key"
)
_UPSERTS = {"c", "r", "u"}
_MARKS = {Unreadable, type(UNAVAILABLE)}  # value types that make a row incomplete
_CHANGES_ARE_NO_ROWS = (
    "the values are Debezium's changes, and an Upsert of their rows would leave deleted rows in the table: give the "
    "sink changes=True"
)
_ROWS_ARE_NO_CHANGES = "changes=True applies the changes that value=Debezium() decodes: give the pipeline this codec"


class UpsertWriter(TableWriter[Upsert[Any, Any]]):
    """Writes each key's newest row; ``strategies`` chooses and remembers how."""

    key_remedy = "give tombstone_key=, which returns the values of the columns of key="

    def __init__(self, sink: Upsert[Any, Any]) -> None:
        self.strategies = WriteStrategies()
        self._announced: WriteStrategy | None = None
        self._known: CachedStatements[UpsertSql] | None = None
        self._is_first = True
        super().__init__(sink)
        self._needed = () if self.columns is None else self._indexes()

    @property
    def target(self) -> Target:
        """The table and the columns to write, as far as they are known."""
        return dataclasses.replace(self._sink.target, columns=self.written)

    def know(self, columns: tuple[str, ...]) -> None:
        super().know(columns)
        self._needed = self._indexes()

    def _indexes(self) -> tuple[tuple[str, int], ...]:
        written = self.written or ()
        return tuple((name, written.index(name)) for name in self._sink.needed)

    def rows(self, record: Record[Any, Any]) -> Iterable[Row]:
        """Rows of one record, or its deletion if it is a tombstone. Raises Poison if a key or ``order_by`` is null."""
        if record.value is None and self._sink.deletes:
            return (self._gone(record),)
        self._warn_of_changes(record.value)
        rows = list(super().rows(record))
        for row in rows:
            for name, index in self._needed:
                if row[index] is None:
                    raise Poison(f"{self!r}: column {name!r} is null: the columns of key= and order_by= need a value")
        return rows

    def chunk_rows(
        self, values: Sequence[Any], keys: Sequence[Any] | None, raw: Sequence[RawRecord]
    ) -> list[Row] | None:
        """The row of each record, or its deletion; None if a key is null, so that the error names its record."""
        if self._sink.deletes and NoneType in set(map(type, values)):
            return self._row_of_each(values, keys, raw)
        for value in values[:1]:
            self._warn_of_changes(value)
        rows = super().chunk_rows(values, keys, raw)
        return None if rows is None or self._lacks_key(rows) else rows

    def _row_of_each(
        self, values: Sequence[Any], keys: Sequence[Any] | None, raw: Sequence[RawRecord]
    ) -> list[Row] | None:
        """The row that ``rows`` makes of each record; None if it makes several of one, or none."""
        decoded = zip(raw, [record.key for record in raw] if keys is None else keys, values, strict=True)
        rows_of_records = [
            [*self.rows(msgspec.structs.replace(record, key=key, value=value))] for record, key, value in decoded
        ]
        return [row for (row,) in rows_of_records] if {1}.issuperset(map(len, rows_of_records)) else None

    def _lacks_key(self, rows: Sequence[Row]) -> bool:
        """Whether a column that must not be null is null in one of the rows."""
        return any(None in map(itemgetter(index), rows) for _, index in self._needed)

    def _warn_of_changes(self, value: Any) -> None:
        """Warn if the first value is Debezium's envelope: ``row=`` misses deletes. Raises ConfigError for a Change."""
        if not self._is_first:
            return
        if isinstance(value, Change):  # raised again where rows are made record by record
            raise ConfigError(f"{self!r}: {_CHANGES_ARE_NO_ROWS}")
        self._is_first = False
        if is_envelope(value):
            logger.warning(
                "%r: the first record is a Debezium envelope. row= cannot delete rows: a row that the source deletes "
                "(if no tombstone follows) or gives another key stays in the table. Give the pipeline value=Debezium() "
                "and key=Debezium(), and the sink changes=True",
                self,
            )

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Take rows as they arrive; at the end of the block they are in the table."""
        from seekpoint.sinks.altered_table import rerun_if_changed  # noqa: PLC0415 -- rows are made without a driver
        from seekpoint.sinks.upsert.open_merge import CachedStatements  # noqa: PLC0415
        from seekpoint.sinks.upsert.open_upsert import OpenUpsert  # noqa: PLC0415

        cache = self._known = self._known or CachedStatements()
        with (
            rerun_if_changed(tx, self._sink.path),
            self._opened(lambda: OpenUpsert(tx, lambda: self.target, cache, self.strategies)) as writer,
        ):
            yield writer

    def _opened(self, begin: Callable[[], OpenUpsert]) -> AbstractContextManager[Writer]:
        return begin()

    def strategy_changed(self) -> WriteStrategyChanged | None:
        """The event to emit after COMMIT if large transactions use another write strategy than at the last call."""
        current, last, conflicts = self.strategies.current, self.strategies.last, self.strategies.conflicts
        if current is self._announced or current is None or last is None:
            return None
        self._announced = current
        return WriteStrategyChanged(sink=repr(self), strategy=current.value, rows=last.rows, conflicts=conflicts)

    # -- tombstones ---------------------------------------------------------------------------------------

    def _gone(self, record: AnyRecord) -> Deleted:
        key = record.key if self._sink.tombstone_key is None else self._sink.tombstone_key(record)
        names = self._sink.needed
        values = self._named(names, key)
        for name, value in zip(names, values, strict=True):
            if value is None:
                raise Poison(
                    f"{self!r}: the tombstone's {name!r} is null: the columns of key= and order_by= need a value"
                )
        return self._deleted(record, values)

    def _deleted(self, record: AnyRecord, values: tuple[Any, ...]) -> Deleted:
        """The deletion of the row with these values, with the record's offset if ``offset_column`` is set."""
        if self._sink.offset_column is None:
            return Deleted(values)
        position = (self._position(record),) if self._sink.has_position else ()
        origin = [getattr(record, name) for name in ("partition", "topic") if name in self._sink.provenance]
        return Deleted((*values, *position, record.offset, *(origin if "partition" in self._sink.provenance else ())))

    def _position(self, record: AnyRecord) -> int | None:
        """A change's position at the source; None for a tombstone."""
        if record.value is None:
            return None
        try:
            return source_position(record.value.source)
        except ValueError as error:
            raise Poison(f"{self!r}: {error}", record) from error

    def _named(self, names: tuple[str, ...], key: Any) -> tuple[Any, ...]:
        """The values of these columns from a tombstone's key: a mapping, an object, a tuple, or one value."""
        if key is None:
            raise Poison(f"{self!r}: a tombstone without a key does not say which row to delete")
        kind = type(key)
        if issubclass(kind, Mapping):
            values = dict(key)
        elif field_names(kind) is not None:
            values = {name: getattr(key, name) for name in names if hasattr(key, name)}
        elif isinstance(key, tuple | list):
            if len(key) != len(names):
                raise Poison(f"{self!r}: the tombstone's key has {len(key)} values for {', '.join(names)}")
            values = dict(zip(names, key, strict=True))
        elif isinstance(key, bytes) and self._sink.tombstone_key is None:
            raise ConfigError(
                f"{self!r}: a tombstone's key is bytes, and no codec decodes them; give the pipeline a codec "
                "(key=Text(), key=Json(...)), or the sink tombstone_key=, a function of the record"
            )
        elif len(names) == 1:
            values = {names[0]: key}
        else:
            raise Poison(f"{self!r}: the tombstone's key does not name {', '.join(names)}: {self.key_remedy}")
        if missing := [name for name in names if name not in values]:
            raise Poison(f"{self!r}: the tombstone's key has no {', '.join(missing)}: {self.key_remedy}")
        return tuple(values[name] for name in names)


class ChangesWriter(UpsertWriter):
    """Writes an ``Upsert(changes=True)``: the row after each change, or its deletion."""

    key_remedy = "let the connector write all columns of key= into the records' keys (message.key.columns)"

    def __init__(self, sink: Upsert[Any, Any]) -> None:
        super().__init__(sink)
        assert sink.columns is not None
        self._after = self._by_key(sink.columns)

    @property
    def written(self) -> tuple[str, ...] | None:
        """Every written column, in the order of the rows."""
        return self._sink.written

    def _where(self, record: AnyRecord) -> tuple[Any, ...]:
        origin = super()._where(record)
        return (*origin, self._position(record)) if self._sink.has_position else origin

    def rows(self, record: Record[Any, Any]) -> Iterable[Row]:
        """The row after the change, or its deletion. If the key has changed, the old row is deleted first."""
        change = record.value
        if change is None:
            return (self._gone(record),)
        if not isinstance(change, Change):
            raise ConfigError(f"{self!r}: {_ROWS_ARE_NO_CHANGES}")
        if change.op == "t":
            return (self._truncated(record),)
        if change.op == "d":
            return (self._deleted(record, require_key_before(self, self._sink.key, record)),)
        assert change.after is not None
        row = self._after(change.after)
        if self._sink.provenance:
            row = (*row, *self._where(record))
        is_whole = _MARKS.isdisjoint(map(type, row))
        if not is_whole:
            require_readable(self, row, record)
        key = tuple([row[index] for _, index in self._needed])
        if None in key or (not is_whole and UNAVAILABLE in key):
            raise Poison(f"{self!r}: the change has no value in a key column ({', '.join(self._sink.key)})", record)
        after = row if is_whole else Partial(row)
        if change.op == "u" and (before := require_key_before(self, self._sink.key, record)) != key:
            return (self._deleted(record, before), after)
        return (after,)

    def _truncated(self, record: AnyRecord) -> Truncated:
        if not self._sink.empties:
            raise Poison(
                f"{self!r}: the source's table was truncated: set skipped.operations=t in the connector, or give the "
                "sink truncate='delete', which deletes this table's rows, too",
                record,
            )
        if record.partition:  # the topic had one partition when the worker started
            raise ConfigError(f"{self!r}: a truncate came in {record.topic}/{record.partition}: {ONE_PARTITION}")
        return Truncated(self._deleted(record, (None,) * len(self._sink.key)))

    def chunk_rows(
        self, values: Sequence[Any], keys: Sequence[Any] | None, raw: Sequence[RawRecord]
    ) -> list[Row] | None:
        """The row of each record, or its deletion; None if a changed key makes two of one."""
        rows = None if keys is None else self._upserts(values, keys, raw)
        return self._row_of_each(values, keys, raw) if rows is None else rows

    def _upserts(self, values: Sequence[Any], keys: Sequence[Any], raw: Sequence[RawRecord]) -> list[Row] | None:
        """The rows of many changes in one call; None unless each stores a complete row and leaves its key unchanged."""
        if self._sink.has_position or not {Change}.issuperset(map(type, values)):
            return None
        if not _UPSERTS.issuperset(change.op for change in values):
            return None
        rows = self._with_origins([self._after(change.after) for change in values], raw)
        if not _MARKS.isdisjoint(map(type, chain.from_iterable(rows))) or self._lacks_key(rows):
            return None
        names, indexes = self._sink.key, [index for _, index in self._needed]
        for change, key, row in zip(values, keys, rows, strict=True):
            if change.op == "u" and key_before(names, change.before, key) != tuple([row[index] for index in indexes]):
                return None
        return rows

    def _opened(self, begin: Callable[[], OpenUpsert]) -> AbstractContextManager[Writer]:
        assert self.written is not None
        return OpenChanges(begin, self.written)


def _with_offset(me: str, provenance: dict[str, str], offset_column: str | None) -> dict[str, str] | None:
    """The provenance with ``offset_column`` added. Raises ConfigError if it stores the offset in another column."""
    if offset_column is not None and provenance.setdefault("offset", offset_column) != offset_column:
        raise ConfigError(
            f"{me}: provenance= puts the offset into {provenance['offset']!r}, offset_column= into {offset_column!r}: "
            "name one column for both"
        )
    return provenance or None
