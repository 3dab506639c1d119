"""The tables that a run rebuilds, with the sinks that write them and the key by which rows are compared."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from seekpoint import remedies
from seekpoint.errors import ConfigError
from seekpoint.jobs.tables.indexes import indexes
from seekpoint.pipeline.frames import require_no_frames
from seekpoint.pipeline.handler import shown_handler
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.sinks.accumulate.accumulate import Accumulate
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.catalog import quoted, require_index
from seekpoint.sinks.upsert.upsert import Upsert
from seekpoint.worker.import_by_name import load_pipeline

Path = tuple[str, str]  # schema and table
COMPARED = ("merge", "verify")  # strategies that compare rows


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """A pipeline and its import name (``module:name``), which is empty if it was given as an object."""

    name: str
    pipeline: Pipeline

    @property
    def group(self) -> str:
        """The group of the pipeline."""
        return self.pipeline.group


@dataclass(frozen=True, slots=True)
class Feed:
    """One sink of one source; ``number`` is its index among the pipeline's sinks."""

    source: int
    number: int
    sink: TableSink


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the live table; ``is_exact``: values that are equal (``=``) have the same bytes.

    ``is_numbered``: its default draws from a sequence. ``is_double``: its type is double precision.
    """

    name: str
    is_exact: bool
    is_generated: bool
    is_numbered: bool
    is_double: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A table to rebuild: its live path, the sinks that write it, and the key of its rows (empty if it has none).

    ``staged`` is the rebuilt table's name, which the names of the run's other tables contain.
    """

    path: Path
    staged: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    feeds: tuple[Feed, ...]

    @property
    def name(self) -> str:
        """The qualified name in messages."""
        return ".".join(self.path)

    @property
    def all_columns(self) -> tuple[str, ...]:
        """Every column that can be written."""
        return tuple(column.name for column in self.columns if not column.is_generated)

    @property
    def inexact_key(self) -> tuple[str, ...]:
        """The key's columns whose equal values may differ in their bytes (citext, numeric); a merge also sets these."""
        if self.sums is not None:  # sums keep a key as any of its records spelled it
            return ()
        able = {column.name for column in self.columns if not (column.is_exact or column.is_generated)}
        return tuple(column for column in self.key if column in able)

    @property
    def order_by(self) -> str | None:
        """The sinks' ``order_by=``: the column whose highest value marks a key's newest row."""
        return next(
            (feed.sink.order_by for feed in self.feeds if isinstance(feed.sink, Upsert) and feed.sink.order_by), None
        )

    @property
    def keeps_first(self) -> bool:
        """Whether the first row of a key is kept, instead of the newest."""
        return any(feed.sink.keeps_first for feed in self.feeds)

    @property
    def is_compacted(self) -> bool:
        """Whether compaction may have removed all records of a key except the newest."""
        return any(isinstance(feed.sink, Upsert) and feed.sink.compacted for feed in self.feeds)

    @property
    def changes(self) -> bool:
        """Whether the rows come from changes, some of which lack values or delete all rows."""
        return any(isinstance(feed.sink, Upsert) and feed.sink.changes for feed in self.feeds)

    @property
    def sums(self) -> Accumulate | None:
        """The Accumulate that writes the table, or None. If several do, they add to the same columns."""
        sink = self.feeds[0].sink
        return sink if isinstance(sink, Accumulate) else None

    @property
    def dedupes(self) -> bool:
        """Whether rows are deduped by key."""
        return any(isinstance(feed.sink, Upsert) for feed in self.feeds)


def sources(pipelines: Sequence[Pipeline | str]) -> tuple[PipelineSource, ...]:
    """Load the pipelines, ordered by group. Raises ConfigError for a pipeline that no task can rebuild."""
    if isinstance(pipelines, str | Pipeline):
        raise ConfigError(f"a reload takes a list of pipelines, or of their names: Reload([{pipelines!r}], ...)")
    require_no_frames(pipelines)
    for pipeline in pipelines:
        require_no_frames(pipeline)
    loaded = [
        PipelineSource(pipeline, load_pipeline(pipeline))
        if isinstance(pipeline, str)
        else PipelineSource("", pipeline.taken().require_names("a reload or batch"))
        for pipeline in pipelines
    ]
    if not loaded:
        raise ConfigError("a reload needs at least one pipeline")
    if len({source.group for source in loaded}) < len(loaded):
        raise ConfigError("two of the pipelines have the same group: name each group's pipeline once")
    for source in loaded:
        require_no_handler(source.pipeline)
        # AppendArrow may write whole Arrow tables, but staging stores an offset with each row.
        if strange := [
            sink for sink in source.pipeline.sinks if isinstance(sink, AppendArrow) or not isinstance(sink, TableSink)
        ]:
            raise ConfigError(
                f"{source.pipeline!r}: {strange[0]!r} cannot be redirected to another table; Append, Upsert "
                "and Accumulate can"
            )
    return tuple(sorted(loaded, key=lambda source: source.group))


def require_no_handler(pipeline: Pipeline) -> None:
    """Raise ConfigError for a pipeline with a handler: its statements name live tables."""
    if pipeline.handle is not None:
        raise ConfigError(
            f"{pipeline!r} has {shown_handler(pipeline.handle)}, whose statements name the live tables: run its "
            "new version as a second group that writes to another schema, then `seekpoint groups replace "
            f"{pipeline.group} --by GROUP` (docs/guides/reload.md#replace-a-handler)"
        )


_TABLE = text(
    """
    SELECT n.nspname AS schema, c.relname AS name, CAST(c.relkind AS text) AS kind
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(:name)
    """
)
_COLUMNS = text(
    """
    SELECT a.attname AS name,
           t.typtype IN ('b', 'e') AND (t.typtype = 'e' OR t.typnamespace = CAST('pg_catalog' AS regnamespace))
           AND (t.typtype = 'e' OR t.typname IN ('bool', 'int2', 'int4', 'int8', 'oid', 'uuid', 'date', 'time',
                'timestamp', 'timestamptz', 'bytea', 'text', 'varchar'))
           AND coalesce(c.collisdeterministic, true) AS is_exact, a.attgenerated <> '' AS is_generated,
           a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%', false) AS is_numbered,
           t.oid = 701 AS is_double
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_collation c ON c.oid = a.attcollation
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''
    WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
    """
)


def resolve(connection: Connection, name: str) -> Path | None:
    """The schema and name of a table that a sink or a group names; None if there is no such table."""
    row = connection.execute(_TABLE, {"name": quoted(*name.split(".", 1))}).one_or_none()
    return None if row is None else (row.schema, row.name)


def targets(connection: Connection, pipelines: Sequence[PipelineSource]) -> tuple[Target, ...]:
    """The tables that these pipelines write, as defined now. Raises ConfigError for a table that cannot be rebuilt."""
    feeds: dict[Path, list[Feed]] = {}
    for n, source in enumerate(pipelines):
        for number, sink in enumerate(source.pipeline.sinks):
            assert isinstance(sink, TableSink)
            feeds.setdefault(_path(connection, sink), []).append(Feed(n, number, sink))
    return tuple(_target(connection, f"t{n}", path, feeds[path]) for n, path in enumerate(sorted(feeds)))


def _path(connection: Connection, sink: TableSink) -> Path:
    """The sink's table. Raises ConfigError if it does not exist, and for a view."""
    row = connection.execute(_TABLE, {"name": quoted(*sink.path)}).one_or_none()
    if row is None or row.kind not in {"r", "p"}:
        if row is None:
            raise ConfigError(f"{sink!r}: the table does not exist: {remedies.create_table()}")
        raise ConfigError(
            f"{sink!r}: the table is neither a plain nor a partitioned table: only tables can be reloaded"
        )
    return row.schema, row.name


def _target(connection: Connection, staged: str, path: Path, feeds: Sequence[Feed]) -> Target:
    columns = [Column(*row) for row in connection.execute(_COLUMNS, {"name": quoted(*path)})]
    options = ("key", "order_by", "keeps_first", "add", "least", "most")
    kinds = {(type(feed.sink), *(getattr(feed.sink, option, None) for option in options)) for feed in feeds}
    if len(kinds) > 1:
        raise ConfigError(
            f"{'.'.join(path)} is written by sinks of different kinds, keys, orders or sums: it cannot be reloaded"
        )
    if len(feeds) > 1 and any(feed.sink.empties for feed in feeds):
        raise ConfigError(
            f"{'.'.join(path)} is written by several sinks, and one of them has truncate=, which deletes the rows of "
            "all: it cannot be reloaded"
        )
    sink = feeds[0].sink
    if isinstance(sink, Upsert | Accumulate):
        require_index(connection, repr(sink), path, sink.key)
        return Target(path, staged, tuple(columns), sink.key, tuple(feeds))
    # The primary key if the sink writes its columns, otherwise the oldest unique index of written columns.
    written = set(sink.written or (column.name for column in columns if not column.is_numbered))
    ordered = sorted(indexes(connection, path), key=lambda index: (index.constraint != "PRIMARY KEY", index.oid))
    keys = (index.columns for index in ordered if index.is_enforced and index.is_plain and index.is_not_null)
    key = next((tuple(columns) for columns in keys if set(columns) <= written), ())
    return Target(path, staged, tuple(columns), key, tuple(feeds))


def aimed(sink: TableSink, path: Path) -> TableSink:
    """A copy of a sink that writes to another table."""
    other = copy.copy(sink)
    other.path = path
    return other


def aimed_pipeline(pipeline: Pipeline, sinks: Sequence[Any]) -> Pipeline:
    """A copy of a pipeline with other sinks, one for each original sink."""
    other = copy.copy(pipeline)
    other.sinks = tuple(sinks)
    return other
