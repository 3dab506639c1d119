"""The tables of one attempt at a range: all rows of its sinks, with their offsets if the order of rows matters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.codecs import UNAVAILABLE
from seekpoint.errors import ReloadRefused
from seekpoint.jobs.tables.constraints import may_be_refused
from seekpoint.jobs.tables.create_like import make_like
from seekpoint.jobs.tables.sql_templates import name, names, run
from seekpoint.jobs.tables.staging_schema import (
    KEY,
    LINE,
    MISSING,
    OFFSET,
    ROWS,
    Staging,
    remember_columns,
    remembered_columns,
    unlogged,
)
from seekpoint.jobs.tables.sums import sums
from seekpoint.jobs.tables.targets import Path, Target, aimed
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import Row, RowRefused, Sink, SinkWriter, Writer
from seekpoint.records import AnyRecord, RawRecord, offsets_of
from seekpoint.sinks.copy import open_copy
from seekpoint.sinks.dedupe import Deleted, Partial, Truncated
from seekpoint.sinks.upsert.upsert import Upsert


class AttemptSink(Sink, SinkWriter):
    """Stages every row of an attempt, as both sink and writer; the original sink might write one row per key.

    With ``places`` each row also gets its offset and line; an Upsert's tombstones and its rows with missing values go
    to two separate tables. Without ``places``, the rows of an Accumulate are aggregated by key. With ``keys`` each row
    gets a digest of its record's key. ``is_direct``: the first table is the rebuilt one.
    """

    def __init__(
        self,
        sink: Any,
        tables: Sequence[Path],
        target: Target,
        *,
        places: bool = False,
        keys: bool = False,
        is_direct: bool = False,
    ) -> None:
        self._target, self._is_direct = target, is_direct
        self._sink, self._writer = sink, sink.writer()
        self._raw, self._tombstones, self._partials = tables
        self._dedupes, self._places, self._keys = isinstance(sink, Upsert), places, keys

    @property
    def tables(self) -> tuple[str, ...]:
        return (".".join(self._raw),)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The written columns; None before the first row."""
        written: tuple[str, ...] | None = self._writer.written
        return written

    def takes(self, topic: str) -> bool:
        return bool(self._sink.takes(topic))

    def writer(self) -> AttemptSink:
        """Return the object itself, which is made for one attempt."""
        return self

    def rows(self, record: AnyRecord) -> Iterable[Row]:
        rows = self._writer.rows(record)
        if not self._places:
            return list(rows)
        return [_like(row, (*self._without_missing(row), record.offset, line)) for line, row in enumerate(rows)]

    def _without_missing(self, row: Row) -> Row:
        """The row; for values that it lacks it has None, and at its end the names of their columns."""
        if type(row) is not Partial:
            return row
        assert self.columns is not None
        missing = [column for column, value in zip(self.columns, row, strict=True) if value is UNAVAILABLE]
        return (*(None if value is UNAVAILABLE else value for value in row), missing)

    def keyed(self, rows: Sequence[Row], raw: RawRecord) -> Sequence[Row]:
        """Add a digest of the record's key to its rows, if the sink was made with ``keys``.

        With ``keys``, raises ReloadRefused for a record without a key, without a row, or with only some of its row's
        values, because compaction may have removed the older records of its key.
        """
        if not self._keys:
            return rows
        is_partial = Partial in set(map(type, rows))
        if raw.key is None or not rows or is_partial:
            problem = "has no key" if raw.key is None else "lacks values" if is_partial else "makes no row"
            why = (
                f"{raw.topic}/{raw.partition} offset {raw.offset} {problem}, and {self._sink!r} is declared with "
                "compacted=True: each record's key must be one row's key; remove compacted=True, and rebuild the "
                "table from a topic that has every record"
            )
            raise ReloadRefused([why])
        digest = blake2b(raw.key, digest_size=16).hexdigest()
        return [_like(row, (*row, digest)) for row in rows]

    def chunk_rows(
        self, values: Sequence[Any], keys: Sequence[Any] | None, raw: Sequence[RawRecord]
    ) -> list[Row] | None:
        """The rows of the original sink, with their offsets if ``places`` is set; None with ``keys``."""
        if self._keys:  # each row gets a digest of its record's key
            return None
        rows: list[Row] | None = self._writer.chunk_rows(values, keys, raw)
        if rows is None or not self._places:
            return rows
        pairs = zip(rows, offsets_of(raw), strict=True)
        return [_like(row, (*self._without_missing(row), offset, 0)) for row, offset in pairs]

    def finish(self, connection: Connection) -> None:
        """Aggregate the sums, and store the written columns; the driver has stored those of a rebuilt table.

        Raises ReloadRefused if the stored columns differ, because the code has changed.
        """
        if self._target.sums is not None and not self._places:
            self._aggregate(connection)
        if not self._is_direct:
            remember_columns(connection, self._raw, self.columns)
        elif self.columns is not None:
            remembered = remembered_columns(connection, self._raw) or ()
            if set(remembered) != set(self.columns):
                raise different_columns(self._target, [remembered, self.columns])

    def _aggregate(self, connection: Connection) -> None:
        """Aggregate the written rows by key; tasks do this because they run in parallel."""
        aggregated = (self._raw[0], f"{self._raw[1]}_sums")
        run(
            connection,
            "CREATE {unlogged} TABLE {aggregated} AS SELECT {values}, sum({rows}) AS {rows} FROM {raw} GROUP BY {key}",
            unlogged=unlogged(self._raw[0]),
            aggregated=aggregated,
            values=sums(self._target),
            rows=name(ROWS),
            raw=self._raw,
            key=names(self._target.key),
        )
        run(connection, "DROP TABLE {raw}", raw=self._raw)
        run(connection, "ALTER TABLE {aggregated} RENAME TO {raw}", aggregated=aggregated, raw=name(self._raw[1]))

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Stream rows into the open COPY; after its end, write tombstones and rows with missing values."""
        split = _Split()
        rules = {"allowed": self._sink.conversions, "event_rules": self._sink.event_rules}
        try:
            with open_copy(tx, self._raw, self._columns, **rules) as split.copy:
                yield split if self._dedupes else split.copy
        except RowRefused as refused:
            raise RowRefused(split.line(refused.line), refused.cause) from refused
        others = ((self._tombstones, self._tombstone_columns, (Deleted, Truncated)),
                  (self._partials, self._partial_columns, (Partial,)))  # fmt: skip
        for table, columns, kinds in others:
            lines = [line for line, row in split.others if type(row) in kinds]
            try:
                with open_copy(tx, table, columns, **rules) as copy:
                    copy.write([row for _, row in split.others if type(row) in kinds])
            except RowRefused as refused:
                raise RowRefused(refused.line and lines[refused.line - 1], refused.cause) from refused

    def _columns(self) -> tuple[str, ...]:
        written = self.columns
        assert written is not None
        return (*written, OFFSET, LINE, *self._key_column) if self._places else written

    def _tombstone_columns(self) -> tuple[str, ...]:
        return (*self._sink.target.deletes, OFFSET, LINE, *self._key_column)

    def _partial_columns(self) -> tuple[str, ...]:
        written = self.columns
        assert written is not None
        return (*written, MISSING, OFFSET, LINE)

    @property
    def _key_column(self) -> tuple[str, ...]:
        return (KEY,) if self._keys else ()


def different_columns(target: Target, variants: Iterable[Sequence[str]]) -> ReloadRefused:
    """The error for a run whose tasks wrote different columns of one table."""
    which = " and ".join(", ".join(columns) for columns in variants)
    return ReloadRefused(
        [f"{target.name}: tasks or sinks wrote different columns, {which}: name them with columns=[...]"]
    )


def _like(row: Row, wider: Row) -> Row:
    """The wider row as the class of ``row``: one of _OTHERS, or a tuple."""
    kind = type(row)
    return kind(wider) if kind in _OTHERS else wider


_OTHERS: set[type[Row]] = {Deleted, Truncated, Partial}


class _Split:
    """Writes rows to ``copy``; keeps the ``others`` with their line numbers (from 1) among all rows."""

    copy: Writer

    def __init__(self) -> None:
        self.others: list[tuple[int, Row]] = []
        self._passed = 0

    def write(self, rows: Sequence[Row]) -> None:
        if _OTHERS.isdisjoint(map(type, rows)):
            self.copy.write(rows)
        else:
            self.others += [(line, row) for line, row in enumerate(rows, self._passed + 1) if type(row) in _OTHERS]
            self.copy.write([row for row in rows if type(row) not in _OTHERS])
        self._passed += len(rows)

    def line(self, number: int | None) -> int | None:
        """The line number of the n-th row that was written to ``copy``."""
        if number is not None:
            for line, _ in self.others:
                number += line <= number
        return number


def attempt_sinks(
    connection: Connection,
    staging: Staging,
    attempt: str,
    pipeline: Pipeline,
    targets: Sequence[Target],
    *,
    rebuilds: bool,
    direct: Mapping[str, Path],
) -> list[AttemptSink]:
    """Create the tables of this attempt, and redirect the pipeline's sinks to them; ``targets`` are the live tables.

    ``rebuilds``: the run rebuilds whole tables, so sinks with ``compacted=True`` need the records' keys. ``direct`` are
    rebuilt tables, by the live one's name, that sinks write instead.
    """
    live = {feed.number: target for target in targets for feed in target.feeds}
    sinks = []
    is_refusing = may_be_refused(connection, pipeline, targets)
    for number, sink in enumerate(pipeline.sinks):
        if (rebuilt := direct.get(live[number].name)) is not None:
            aimed_sink: Any = aimed(sink, rebuilt)  # type: ignore[arg-type]
            sinks.append(AttemptSink(aimed_sink, (rebuilt,) * 3, live[number], is_direct=True))
            continue
        raw, tombstones = staging.attempt_rows(attempt, number), staging.attempt_deletes(attempt, number)
        partials = staging.attempt_partials(attempt, number)
        places = is_refusing or pipeline.keep_key_order or isinstance(sink, Upsert)
        keys = rebuilds and isinstance(sink, Upsert) and sink.compacted
        if live[number].sums is None:
            _make_raw(connection, live[number], raw, places=places, keys=keys)
        else:
            _make_added(connection, live[number], raw, places=places)
        if isinstance(sink, Upsert):
            _make_tombstones(connection, live[number], sink, tombstones, keys=keys)
            if sink.changes:
                _make_partials(connection, live[number], sink, partials)
        aimed_sink = aimed(sink, raw)  # type: ignore[arg-type]
        tables = raw, tombstones, partials
        sinks.append(AttemptSink(aimed_sink, tables, live[number], places=places, keys=keys))
    return sinks


def _make_raw(connection: Connection, target: Target, raw: Path, *, places: bool, keys: bool) -> None:
    """Create a table without indexes, with columns for offset and line (``places``) and for ``keys``."""
    also = ident.SQL("{} bigint, {} integer").format(name(OFFSET), name(LINE)) if places else None
    if also is not None and keys:
        also += ident.SQL(", {} text").format(name(KEY))
    make_like(connection, raw, target.path, prefix=raw[1], also=also)


def _make_added(connection: Connection, target: Target, raw: Path, *, places: bool) -> None:
    """Create a table for amounts, with the live columns' types but without constraints, which hold only for sums."""
    run(
        connection,
        "CREATE {unlogged} TABLE {raw} AS SELECT {columns}{places}, 1 AS {rows} FROM {live} WITH NO DATA",
        unlogged=unlogged(raw[0]),
        raw=raw,
        columns=names(target.sums.columns if target.sums is not None and target.sums.columns else ()),
        places=ident.SQL(", 0::bigint AS {}, 0 AS {}").format(name(OFFSET), name(LINE)) if places else ident.SQL(""),
        rows=name(ROWS),
        live=target.path,
    )
    run(connection, "ALTER TABLE {raw} ALTER {rows} SET DEFAULT 1", raw=raw, rows=name(ROWS))


def _make_tombstones(connection: Connection, target: Target, sink: Upsert, path: Path, *, keys: bool) -> None:
    """Create the table of an Upsert's tombstones, with their columns but without NOT NULL."""
    run(
        connection,
        "CREATE {unlogged} TABLE {path} AS SELECT {columns}, 0::bigint AS {offset}, 0 AS {line}{key} FROM {live} "
        "WITH NO DATA",
        key=ident.SQL(", ''::text AS {}").format(name(KEY)) if keys else ident.SQL(""),
        unlogged=unlogged(path[0]),
        path=path,
        columns=names([column for column in sink.target.deletes if column in target.all_columns]),
        offset=name(OFFSET),
        line=name(LINE),
        live=target.path,
    )


def _make_partials(connection: Connection, target: Target, sink: Upsert, path: Path) -> None:
    """Create the table of an Upsert's rows with missing values, without NOT NULL: only complete rows are checked."""
    run(
        connection,
        "CREATE {unlogged} TABLE {path} AS SELECT {columns}, NULL::text[] AS {missing}, 0::bigint AS {offset}, "
        "0 AS {line} FROM {live} WITH NO DATA",
        unlogged=unlogged(path[0]),
        path=path,
        columns=names(sink.written or ()),
        missing=name(MISSING),
        offset=name(OFFSET),
        line=name(LINE),
        live=target.path,
    )
