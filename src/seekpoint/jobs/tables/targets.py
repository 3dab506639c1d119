"""The tables that a run rebuilds: which sinks of which pipelines write them, and by which key rows are compared."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from seekpoint.errors import ConfigError
from seekpoint.jobs.tables.indexes import indexes
from seekpoint.pipeline.pipeline import Pipeline, shown_handler
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.catalog import quoted, require_index
from seekpoint.sinks.upsert.upsert import Upsert
from seekpoint.worker.import_by_name import load_pipeline

Path = tuple[str, str]  # schema and table
COMPARED = ("merge", "verify")  # strategies that look for differences, row by row


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """A pipeline and the name it is imported by; ``name`` is empty where it was given as an object."""

    name: str
    pipeline: Pipeline

    @property
    def group(self) -> str:
        """The group of the pipeline."""
        return self.pipeline.group


@dataclass(frozen=True, slots=True)
class Feed:
    """One sink of one source; ``number`` is its place among the pipeline's sinks."""

    source: int
    number: int
    sink: TableSink


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the live table; ``is_exact``: two of its values that are equal (``=``) are the same bytes.

    ``is_numbered``: its default draws from a sequence.
    """

    name: str
    is_exact: bool
    is_generated: bool
    is_numbered: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A table that is rebuilt: where it lives, what feeds it, and the key of its rows (empty: it has none).

    ``staged`` is the rebuilt table's name, and what it is called in the names of the run's other tables.
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
        """The key's columns in which equal values may be different bytes (citext, numeric), and a merge sets them."""
        able = {column.name for column in self.columns if not (column.is_exact or column.is_generated)}
        return tuple(column for column in self.key if column in able)

    @property
    def order_by(self) -> str | None:
        """``order_by=`` of the sinks: the column by which the newer row of a key is found."""
        return next((f.sink.order_by for f in self.feeds if isinstance(f.sink, Upsert) and f.sink.order_by), None)

    @property
    def is_compacted(self) -> bool:
        """Whether its topics may have lost all records of a key but the newest."""
        return any(isinstance(feed.sink, Upsert) and feed.sink.compacted for feed in self.feeds)

    @property
    def dedupes(self) -> bool:
        """Whether rows are deduped by key."""
        return any(isinstance(feed.sink, Upsert) for feed in self.feeds)


def sources(given: Sequence[Pipeline | str]) -> tuple[PipelineSource, ...]:
    """Pipelines, or their names, in the order of their groups. Raises ConfigError for what no task can rebuild."""
    if isinstance(given, str | Pipeline):
        raise ConfigError(f"a reload takes a list of pipelines, or of their names: Reload([{given!r}], ...)")
    made = [
        PipelineSource(each, load_pipeline(each)) if isinstance(each, str) else PipelineSource("", each)
        for each in given
    ]
    if not made:
        raise ConfigError("a reload needs at least one pipeline")
    if len({each.group for each in made}) < len(made):
        raise ConfigError("two of the pipelines have the same group: name each group's pipeline once")
    for each in made:
        require_no_handler(each.pipeline)
        # AppendArrow may write whole tables, and a stage keeps a place for each row.
        if strange := [s for s in each.pipeline.sinks if isinstance(s, AppendArrow) or not isinstance(s, TableSink)]:
            raise ConfigError(
                f"{each.pipeline!r}: {strange[0]!r} cannot be aimed at another table; Append and Upsert can"
            )
    return tuple(sorted(made, key=lambda each: each.group))


def require_no_handler(pipeline: Pipeline) -> None:
    """Raise ConfigError for a pipeline whose handler would have to be run again: its statements name live tables."""
    if pipeline.handle is not None:
        raise ConfigError(
            f"{pipeline!r} has {shown_handler(pipeline.handle)}, whose statements name the live tables: run "
            "its new version as a second group into a schema beside them, then `seekpoint groups replace "
            f"{pipeline.group} --by GROUP` (docs/guides/replace-a-handler.md)"
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
           a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%', false) AS is_numbered
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_collation c ON c.oid = a.attcollation
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''
    WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
    """
)


def resolve(connection: Connection, name: str) -> Path | None:
    """Where the table lives that a sink or a group names so; None where there is none."""
    row = connection.execute(_TABLE, {"name": quoted(*name.split(".", 1))}).one_or_none()
    return None if row is None else (row.schema, row.name)


def targets(connection: Connection, given: Sequence[PipelineSource]) -> tuple[Target, ...]:
    """The tables that these pipelines write, as they are now. Raises ConfigError for one that cannot be rebuilt."""
    feeds: dict[Path, list[Feed]] = {}
    for n, source in enumerate(given):
        for number, sink in enumerate(source.pipeline.sinks):
            assert isinstance(sink, TableSink)
            feeds.setdefault(_path(connection, sink), []).append(Feed(n, number, sink))
    return tuple(_target(connection, f"t{n}", path, feeds[path]) for n, path in enumerate(sorted(feeds)))


def _path(connection: Connection, sink: TableSink) -> Path:
    """Where the sink's table is. Raises ConfigError where there is none, and for a view."""
    row = connection.execute(_TABLE, {"name": quoted(*sink.path)}).one_or_none()
    if row is None or row.kind not in {"r", "p"}:
        what = "is not there" if row is None else "is neither a plain nor a partitioned table"
        raise ConfigError(f"{sink!r}: the table {what}: only tables can be reloaded")
    return row.schema, row.name


def _target(connection: Connection, staged: str, path: Path, feeds: Sequence[Feed]) -> Target:
    columns = [Column(*row) for row in connection.execute(_COLUMNS, {"name": quoted(*path)})]
    kinds = {(type(f.sink), getattr(f.sink, "key", None), getattr(f.sink, "order_by", None)) for f in feeds}
    if len(kinds) > 1:
        raise ConfigError(
            f"{'.'.join(path)} is written by sinks of different kinds, keys or orders: it cannot be reloaded"
        )
    sink = feeds[0].sink
    if isinstance(sink, Upsert):
        require_index(connection, repr(sink), path, sink.key)
        return Target(path, staged, tuple(columns), sink.key, tuple(feeds))
    # The first key that the sink's rows have: the primary one, else the oldest, whatever it is called.
    written = set(sink.written or (column.name for column in columns if not column.is_numbered))
    ordered = sorted(indexes(connection, path), key=lambda index: (index.constraint != "PRIMARY KEY", index.oid))
    keys = (index.columns for index in ordered if index.is_enforced and index.is_plain and index.is_not_null)
    key = next((tuple(columns) for columns in keys if set(columns) <= written), ())
    return Target(path, staged, tuple(columns), key, tuple(feeds))


def aimed(sink: TableSink, path: Path) -> TableSink:
    """A copy of a sink for another table."""
    other = copy.copy(sink)
    other.path = path
    return other


def aimed_pipeline(pipeline: Pipeline, sinks: Sequence[Any]) -> Pipeline:
    """A copy of a pipeline with other sinks, one for each of its own."""
    other = copy.copy(pipeline)
    other.sinks = tuple(sinks)
    return other
