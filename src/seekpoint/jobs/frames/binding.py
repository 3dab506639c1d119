"""Checks, before anything is read, that the plans of a pipeline's frames merge and the columns match the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, IntegerType, LongType, StructType

from seekpoint.codecs import Bytes
from seekpoint.errors import ConfigError, FrameFailed
from seekpoint.jobs.frames.plan import require_merging
from seekpoint.jobs.frames.plan_of_sums import require_adding
from seekpoint.jobs.tables.targets import aimed_pipeline
from seekpoint.pipeline.frames import Frame, SparkPipeline
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import one_line
from seekpoint.sinks.accumulate.accumulate import Accumulate
from seekpoint.sinks.base import ORIGINS, TableSink


@dataclass(frozen=True, slots=True)
class BoundRows:
    """A DataFrame's rows for a sink, with checked columns. ``written`` maps the DataFrame's columns to the table's.

    ``types`` are the Spark types of the DataFrame's columns. ``has_places``: each row has its record's partition and
    offset; ``has_topics``: also its topic, because there are several. ``aggregates``: rows aggregate records. ``name``
    begins messages.
    """

    name: str
    sink: TableSink
    written: tuple[tuple[str, str], ...]
    types: Mapping[str, DataType]
    has_places: bool
    has_topics: bool
    aggregates: bool


@dataclass(frozen=True, slots=True)
class BoundFrame(BoundRows):
    """A checked frame."""

    frame: Frame

    def rows(self, records: DataFrame, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """The function's result for these records. Raises FrameFailed if it raises, or its columns or types change."""
        rows = rows_of(self.name, self.frame, records, inputs)
        columns = [column for column, _ in self.written]
        if missing := [column for column in columns if column not in rows.columns]:
            raise FrameFailed(f"{self.name} has no column {missing[0]!r} this time: return the same columns each time")
        for column in columns:
            kind, first = rows.schema[column].dataType.simpleString(), self.types[column].simpleString()
            if kind != first:
                raise FrameFailed(
                    f"{self.name}: its column {column!r} is {kind} this time, and was {first} at the start: return "
                    "the same types each time"
                )
        return rows

    def require_merging(self, rows: DataFrame) -> None:
        """Raise FrameFailed if the plan does not merge, or does not aggregate as it did at the start."""
        try:
            aggregates = _require_merging(self.name, rows, self.sink)
        except ConfigError as error:
            raise FrameFailed(
                f"{error.text} (the plan has changed since the start: return the same plan each time)"
            ) from error
        if aggregates is not self.aggregates:
            raise FrameFailed(f"{self.name} aggregates only sometimes: return the same plan each time")


def bind(
    pipeline: SparkPipeline, records: DataFrame, inputs: Mapping[str, DataFrame]
) -> tuple[list[BoundFrame], Pipeline]:
    """Check a pipeline's frames on empty DataFrames; returns the frames, and a Pipeline with their sinks.

    Raises ConfigError if a plan does not merge or columns do not match, and FrameFailed if a function raises.
    """
    frames = [_bound(pipeline, name, records, inputs) for name in pipeline.frames]
    declared = aimed_pipeline(pipeline.pipeline, [frame.sink for frame in frames])
    # The tables have the frames' columns, not the values' fields.
    declared.codecs = dict.fromkeys(declared.codecs, Bytes())
    return frames, declared


def rows_of(name: str, frame: Frame, records: DataFrame, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The result of the frame's function for these records. Raises FrameFailed if it raises."""
    try:
        rows = frame.function(records, **{argument: inputs[argument] for argument in frame.inputs})
    except Exception as error:
        raise FrameFailed(f"{name} raised {one_line(error)}") from error
    if not isinstance(rows, DataFrame):
        raise FrameFailed(f"{name} returned a {type(rows).__name__}: return a DataFrame")
    return rows


def _bound(pipeline: SparkPipeline, key: str, records: DataFrame, inputs: Mapping[str, DataFrame]) -> BoundFrame:
    frame = pipeline.frames[key]
    name = f"frame {key!r} ({frame.name.removeprefix('the frame ')})"
    rows = rows_of(name, frame, records, inputs)
    aggregates = _require_merging(name, rows, frame.sink)
    bound = bound_rows(name, frame.sink, rows.schema, pipeline.pipeline.topics, aggregates=aggregates)
    own = {field.name: getattr(bound, field.name) for field in fields(bound)}
    return BoundFrame(**own, frame=frame)


def bound_rows(
    name: str, declared: TableSink, schema: StructType, topics: Sequence[str], *, aggregates: bool = False
) -> BoundRows:
    """Bind rows with these columns to their sink. Raises ConfigError if the columns do not match the sink."""
    has = schema.names
    if len(set(has)) < len(has):
        raise ConfigError(f"{name} has a column twice: {', '.join(has)}; rename or drop one of them")
    sink: TableSink = declared.without_tombstones()
    columns = tuple(column for column in has if column not in ORIGINS) if sink.columns is None else sink.columns
    _require_columns(name, sink, has)
    if not columns:
        raise ConfigError(f"{name} has no column to write: {', '.join(has)} only say which record made a row")
    sink.columns = columns
    sink.require_columns(columns)
    written = [(column, column) for column in columns] + [*sink.provenance.items()]
    types = {field.name: field.dataType for field in schema.fields}
    has_places = bool(sink.keeps_records) and _has_places(name, sink, types, topics)
    # With a single topic, the frame may use this column name for other values.
    has_topics = has_places and len(topics) > 1
    return BoundRows(name, sink, tuple(written), types, has_places, has_topics, aggregates)


def _require_merging(name: str, rows: DataFrame, sink: TableSink) -> bool:
    """Whether the plan aggregates. Raises ConfigError if it does not merge."""
    if isinstance(sink, Accumulate):
        _require_columns(name, sink, rows.columns)
        return require_adding(name, rows, sink)
    require_merging(name, rows)
    return False


def _require_columns(name: str, sink: TableSink, has: Sequence[str]) -> None:
    """Raise ConfigError for a column that the sink names and the frame does not have."""
    if missing := [column for column in (*(sink.columns or ()), *sink.provenance) if column not in has]:
        raise ConfigError(f"{name} has no column {missing[0]!r}, which {sink!r} writes; it has {', '.join(has)}")


def _has_places(name: str, sink: TableSink, types: Mapping[str, DataType], topics: Sequence[str]) -> bool:
    """Whether each row has its record's partition and offset. Raises ConfigError if that is required and missing."""
    needed = ORIGINS if len(topics) > 1 else ORIGINS[1:]
    missing = [column for column in needed if column not in types]
    if not missing:
        for column in ("partition", "offset"):
            if not isinstance(types[column], IntegerType | LongType):
                raise ConfigError(
                    f"{name}: its column {column!r} is {types[column].simpleString()}, and the record's is an integer: "
                    f"keep the record's {column}, and give other values another column name"
                )
        return True
    if getattr(sink, "order_by", None) is None:
        raise ConfigError(
            f"{name} has no column {missing[0]!r}: keep the record's {', '.join(needed)} in the result, to say which "
            f"record made a row ({sink!r} does not write them); or name the column that orders the rows of a key, "
            "Upsert(order_by=...)"
        )
    return False
