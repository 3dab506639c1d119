"""The tables of one attempt at a range: every row of its sinks, with partition and offset where the order counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.tables.constraints import may_be_refused
from seekpoint.jobs.tables.create_like import make_like
from seekpoint.jobs.tables.sql_templates import name, names, run
from seekpoint.jobs.tables.staging_schema import KEY, LINE, OFFSET, Staging, unlogged
from seekpoint.jobs.tables.targets import Path, Target, aimed
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import Row, RowRefused, Sink, SinkWriter, Writer
from seekpoint.records import AnyRecord, RawRecord, offsets_of
from seekpoint.sinks.copy import open_copy
from seekpoint.sinks.dedupe import Deleted
from seekpoint.sinks.upsert.upsert import Upsert


class AttemptSink(Sink, SinkWriter):
    """A sink, and its writer: it writes every row of an attempt, where its original would keep one of each key.

    With ``places`` rows get their place in the log; tombstones of an Upsert go to a table beside them.
    """

    def __init__(self, sink: Any, raw: Path, gone: Path, *, places: bool) -> None:
        self._sink, self._writer, self._raw, self._gone = sink, sink.writer(), raw, gone
        self._dedupes, self._places = isinstance(sink, Upsert), places
        self._keys = isinstance(sink, Upsert) and sink.compacted

    @property
    def tables(self) -> tuple[str, ...]:
        return (".".join(self._raw),)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that were written; None before the first row."""
        written: tuple[str, ...] | None = self._writer.written
        return written

    def takes(self, topic: str) -> bool:
        return bool(self._sink.takes(topic))

    def writer(self) -> AttemptSink:
        """Itself: it is made for one attempt."""
        return self

    def rows(self, record: AnyRecord) -> Iterable[Row]:
        made = self._writer.rows(record)
        if not self._places:
            return list(made)
        return [
            Deleted((*row, record.offset, line)) if type(row) is Deleted else (*row, record.offset, line)
            for line, row in enumerate(made)
        ]

    def keyed(self, rows: Sequence[Row], raw: RawRecord) -> Sequence[Row]:
        """Add a digest of the record's key to its rows, where that key must be one row's key.

        Raises ReloadRefused for a record without a key or a row: the older ones of its key may be gone.
        """
        if not self._keys:
            return rows
        if raw.key is None or not rows:
            what = "has no key" if raw.key is None else "makes no row"
            why = (
                f"{raw.topic}/{raw.partition} offset {raw.offset} {what}, and {self._sink!r} is declared with "
                "compacted=True: each record's key must be one row's key; take compacted=True away, and rebuild the "
                "table from a topic that has every record"
            )
            raise ReloadRefused([why])
        digest = blake2b(raw.key, digest_size=16).hexdigest()
        return [Deleted((*row, digest)) if type(row) is Deleted else (*row, digest) for row in rows]

    def value_rows(self, values: Sequence[Any]) -> list[Row] | None:
        rows: list[Row] | None = self._writer.value_rows(values)
        return rows

    def placed(self, rows: Sequence[Row], raw: Sequence[RawRecord]) -> Sequence[Row]:
        """Rows of :meth:`value_rows` with their places in the log, where those count."""
        return [(*row, at, 0) for row, at in zip(rows, offsets_of(raw), strict=True)] if self._places else rows

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Rows go into the open COPY as they come; tombstones wait for its end."""
        split = _Split()
        try:
            with open_copy(tx, self._raw, self._columns) as split.copy:
                yield split if self._dedupes else split.copy
        except RowRefused as refused:
            raise RowRefused(split.line(refused.line), refused.cause) from refused
        try:
            with open_copy(tx, self._gone, self._columns_gone) as copy:
                copy.write(split.gone)
        except RowRefused as refused:
            raise RowRefused(refused.line and split.lines[refused.line - 1], refused.cause) from refused

    def _columns(self) -> tuple[str, ...]:
        written = self.columns
        assert written is not None
        return (*written, OFFSET, LINE, *self._key_column) if self._places else written

    def _columns_gone(self) -> tuple[str, ...]:
        return (*self._sink.target.deletes, OFFSET, LINE, *self._key_column)

    @property
    def _key_column(self) -> tuple[str, ...]:
        return (KEY,) if self._keys else ()


class _Split:
    """Writes rows to ``copy``, and keeps tombstones with the places (from 1) at which they came among the rows."""

    copy: Writer

    def __init__(self) -> None:
        self.gone: list[Row] = []
        self.lines: list[int] = []
        self._passed = 0

    def write(self, rows: Sequence[Row]) -> None:
        if Deleted in set(map(type, rows)):
            for line, row in enumerate(rows, self._passed + 1):
                if type(row) is Deleted:
                    self.gone.append(row)
                    self.lines.append(line)
            self.copy.write([row for row in rows if type(row) is not Deleted])
        else:
            self.copy.write(rows)
        self._passed += len(rows)

    def line(self, number: int | None) -> int | None:
        """The place of the n-th row that is no tombstone."""
        if number is not None:
            for line in self.lines:
                number += line <= number
        return number


def attempt_sinks(
    connection: Connection, staging: Staging, attempt: str, pipeline: Pipeline, found: Sequence[Target]
) -> list[AttemptSink]:
    """The pipeline's sinks, each aimed at a table of this attempt, which is made; ``found`` are its own tables."""
    live = {feed.number: target for target in found for feed in target.feeds}
    sinks = []
    is_refusing = may_be_refused(connection, pipeline, found)
    for number, sink in enumerate(pipeline.sinks):
        raw, gone = staging.attempt_rows(attempt, number), staging.attempt_deletes(attempt, number)
        places = is_refusing or pipeline.keep_key_order or isinstance(sink, Upsert)
        _make_raw(connection, live[number], raw, places=places, keys=isinstance(sink, Upsert) and sink.compacted)
        if isinstance(sink, Upsert):
            _make_gone(connection, live[number], sink, gone)
        sinks.append(AttemptSink(aimed(sink, raw), raw, gone, places=places))  # type: ignore[arg-type]
    return sinks


def _make_raw(connection: Connection, target: Target, raw: Path, *, places: bool, keys: bool) -> None:
    """A table without an index; with ``places`` of the rows in the log, and their records' ``keys``."""
    also = ident.SQL("{} bigint, {} integer").format(name(OFFSET), name(LINE)) if places else None
    if also is not None and keys:
        also += ident.SQL(", {} text").format(name(KEY))
    make_like(connection, raw, target.path, prefix=raw[1], also=also)


def _make_gone(connection: Connection, target: Target, sink: Upsert, gone: Path) -> None:
    """An Upsert's tombstones: their columns, without NOT NULL."""
    run(
        connection,
        "CREATE {unlogged} TABLE {gone} AS SELECT {columns}, 0::bigint AS {offset}, 0 AS {line}{key} FROM {live} "
        "WITH NO DATA",
        key=ident.SQL(", ''::text AS {}").format(name(KEY)) if sink.compacted else ident.SQL(""),
        unlogged=unlogged(gone[0]),
        gone=gone,
        columns=names([column for column in sink.target.deletes if column in target.all_columns]),
        offset=name(OFFSET),
        line=name(LINE),
        live=target.path,
    )
