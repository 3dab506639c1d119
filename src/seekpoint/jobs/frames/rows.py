"""Writes the rows of one frame: each Spark task copies its rows to a new table, an attempt.

An attempt counts if a task's answer names it. The run's sweep drops the tables of repeated, speculative and late tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql as ident
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType

from seekpoint.errors import FrameFailed
from seekpoint.jobs.frames.spark_types import exact, misfits
from seekpoint.jobs.spark.task import task
from seekpoint.jobs.staging.stage import FRAMES_STAGING, require_staging, staging_run
from seekpoint.jobs.staging.task_errors import ENDS_STAGING, error_as_text, error_of
from seekpoint.jobs.tables.create_like import make_like
from seekpoint.jobs.tables.sql_templates import name
from seekpoint.jobs.tables.staging_schema import LINE, OFFSET, PLACE, Staging
from seekpoint.jobs.tables.sums import make_added
from seekpoint.pipeline.sink import RowRefused
from seekpoint.records import one_line
from seekpoint.runs.run import Tx, transaction
from seekpoint.sinks.arrow.copy import ArrowCopies, open_copies
from seekpoint.sinks.base import ORIGINS
from seekpoint.sinks.column_type import ColumnType, ColumnTypes
from seekpoint.sinks.column_types import read_types
from seekpoint.sinks.conversions import Conversions
from seekpoint.sinks.copy import driver_of

_MESSAGE = "attempt string, rows bigint, ending string"
_ANSWER = pa.schema([("attempt", pa.string()), ("rows", pa.int64()), ("ending", pa.string())])


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """A task's plan for writing one frame's rows.

    ``table`` is the live table. ``columns`` maps columns of the frame to columns of the table; those in ``needed`` must
    not be null. ``types`` are the Spark types of the frame's columns. ``ranges`` are the ranges of the micro-batch, as
    (topic, partition, start, end); a range's index is the *place* of its rows. None: rows have no partition and offset.
    ``has_topics``: rows also have the topic. ``is_placed``: the attempt's table stores place and offset. ``sums`` are
    the columns to add up; ``is_aggregated``: the frame has already aggregated them.
    """

    frame: str
    table: tuple[str, str]
    columns: Sequence[tuple[str, str]]
    types: Mapping[str, DataType]
    needed: Sequence[str]
    ranges: Sequence[tuple[str, int, int, int]] | None
    has_topics: bool
    is_placed: bool
    conversions: Conversions
    sums: Sequence[str] | None = None
    is_aggregated: bool = False


@dataclass(frozen=True, slots=True)
class FrameAttempt:
    """Rows of a frame that one task has committed; ``name`` is their table in the run's schema."""

    name: str
    rows: int


def written(rows: DataFrame, run: Mapping[str, Any], plan: RowsPlan) -> DataFrame:
    """A DataFrame whose tasks write these rows; it consists of the tasks' answers, for :func:`attempts`."""
    return rows.mapInArrow(partial(_write, run, plan), _MESSAGE)


def consumed(rows: DataFrame) -> DataFrame:
    """An empty DataFrame whose tasks read these rows to the end and write nothing."""
    return rows.mapInArrow(_consume, _MESSAGE)


def _consume(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


def attempts(answers: Iterable[Any]) -> list[FrameAttempt]:
    """The attempts named in the tasks' answers. Raises an answer's error."""
    rows = list(answers)
    if ending := next((row.ending for row in rows if row.ending), None):
        raise error_of(ending)
    return [FrameAttempt(row.attempt, row.rows) for row in rows]


def _write(run: Mapping[str, Any], plan: RowsPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run one task of a frame; yields its answer, even for an error: Spark would repeat a task that raises."""
    attempt, ending = write(run, plan, batches)
    if attempt is None and ending is None:
        return
    answer = (None, None, ending) if attempt is None else (attempt.name, attempt.rows, None)
    yield pa.RecordBatch.from_pylist([dict(zip(_ANSWER.names, answer, strict=True))], schema=_ANSWER)


def write(
    run: Mapping[str, Any],
    plan: RowsPlan,
    batches: Iterator[pa.RecordBatch],
    chosen: Callable[[Tx], Callable[[pa.RecordBatch], pa.RecordBatch]] = lambda _: lambda batch: batch,
) -> tuple[FrameAttempt | None, str | None]:
    """Write one task's rows; returns the attempt, or the error that ends the run, or neither if there are no rows.

    ``chosen`` is called in the attempt's transaction, and returns a function that filters the rows of each batch.
    """
    nonempty = (batch for batch in batches if batch.num_rows)
    first = next(nonempty, None)
    if first is None:
        return None, None
    try:
        with task(run) as engine, transaction(engine, run["schema"]) as tx:
            rows = (batch for batch in map(chosen(tx), chain([first], nonempty)) if batch.num_rows)
            return _attempt(tx, UUID(run["run"]), plan, rows), None
    except ENDS_STAGING as error:
        return None, error_as_text(error)


def _attempt(tx: Tx, run: UUID, plan: RowsPlan, batches: Iterable[pa.RecordBatch]) -> FrameAttempt:
    staging = Staging(staging_run(tx, run, FRAMES_STAGING).staging_schema)
    path = (staging.schema, f"f_{uuid4().hex[:20]}")
    if plan.sums is None:
        places = ident.SQL("{} bigint, {} bigint, {} bigint").format(name(PLACE), name(OFFSET), name(LINE))
        also = places if plan.is_placed else None
        make_like(tx.connection, path, plan.table, prefix=path[1], also=also, before_triggers=True)
    else:
        make_added(tx.connection, path, plan.table, [into for _, into in plan.columns], plan.sums)
    types = read_types(driver_of(tx.connection), plan.table).columns  # the table may have been altered since the start
    if messages := misfits(plan.columns, plan.types, types, plan.conversions):
        raise FrameFailed(f"{plan.frame}: {messages[0]}")
    rows = 0
    with _refusing(plan), open_copies(tx.connection, path, _unknown, allowed=plan.conversions) as copies:
        for batch in batches:
            _send(copies, plan, batch, rows, types)
            rows += batch.num_rows
    require_staging(tx, run, FRAMES_STAGING)
    return FrameAttempt(path[1], rows)


def _unknown() -> None:
    """No columns for Python rows, because all rows here are in Arrow's format."""


@contextmanager
def _refusing(plan: RowsPlan) -> Iterator[None]:
    """Raise FrameFailed for a row that the table refuses."""
    try:
        yield
    except RowRefused as refused:
        raise FrameFailed(
            f"{plan.frame}: {'.'.join(plan.table)} refuses a row: {one_line(refused.cause)}. Correct such rows in the "
            "frame, or filter them out"
        ) from refused


def _send(copies: ArrowCopies, plan: RowsPlan, batch: pa.RecordBatch, line: int, types: ColumnTypes) -> None:
    if plan.is_aggregated:
        _require_finite(plan, batch)
    columns = {into: _exact(plan, column, batch.column(column), types[into]) for column, into in plan.columns}
    for into in plan.needed:
        if columns[into].null_count:
            named = "key= and order_by=" if plan.sums is None else "key="
            raise FrameFailed(
                f"{plan.frame}: the column {into!r} is null in a row: the columns of {named} need a value; filter such "
                "rows out"
            )
    if plan.ranges is not None:
        place = places(plan, plan.ranges, batch)
        if plan.is_placed:
            columns |= {PLACE: place, OFFSET: batch.column("offset")}
    elif plan.is_placed:
        columns |= dict.fromkeys((PLACE, OFFSET), pa.nulls(batch.num_rows, pa.int64()))
    if plan.is_placed:
        columns[LINE] = pa.array(range(line, line + batch.num_rows), pa.int64())
    copies.send(pa.table(columns))


def _exact(plan: RowsPlan, column: str, values: pa.Array, type_: ColumnType) -> pa.Array:
    try:
        return exact(values, type_)
    except ValueError as error:
        raise FrameFailed(f"{plan.frame}: column {column!r}: {error}") from error


def _require_finite(plan: RowsPlan, batch: pa.RecordBatch) -> None:
    """Raise FrameFailed for a sum of doubles that is infinite or NaN: Spark raises no error for an overflow."""
    for column in plan.sums or ():
        values = batch.column(column)
        if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
            raise FrameFailed(
                f"{plan.frame}: a sum of {column!r} is infinite or NaN: it exceeds a double's range, or one of its "
                "values is infinite or NaN; filter these out, or sum decimals"
            )


def places(plan: RowsPlan, ranges: Sequence[tuple[str, int, int, int]], batch: pa.RecordBatch) -> Any:
    """The index in ``ranges`` of each row's record. Raises FrameFailed for a record outside the micro-batch."""
    partition, offset = batch.column("partition").cast(pa.int64()), batch.column("offset")
    topic = batch.column("topic") if plan.has_topics else None
    place: Any = pa.nulls(batch.num_rows, pa.int64())
    for its_topic, spans in _by_topic(ranges).items():
        is_known = pc.and_(pc.greater_equal(partition, 0), pc.less(partition, len(spans)))
        if topic is not None:
            is_known = pc.and_(is_known, pc.equal(topic, its_topic))
        index = pc.if_else(is_known, partition, None)
        its_place, start, end = (pc.take(pa.array(column, pa.int64()), index) for column in zip(*spans, strict=True))
        is_within = pc.and_(pc.greater_equal(offset, start), pc.less(offset, end))
        place = pc.if_else(pc.fill_null(is_within, False), its_place, place)
    if place.null_count:
        stray = batch.filter(pc.is_null(place))
        columns = ORIGINS if plan.has_topics else ORIGINS[1:]
        where = ", ".join(f"{column} {stray.column(column)[0]}" for column in columns)
        raise FrameFailed(
            f"{plan.frame}: a row has {where}, and the micro-batch has no such record: keep the columns partition and "
            "offset (with several topics also topic) of the record that made the row"
        )
    return place


def _by_topic(
    ranges: Sequence[tuple[str, int, int, int]],
) -> dict[str, list[tuple[int | None, int | None, int | None]]]:
    """The place, start and end of each range, by topic and partition number; Nones for a partition without a range."""
    topics: dict[str, list[tuple[int | None, int | None, int | None]]] = {}
    for place, (topic, partition, start, end) in enumerate(ranges):
        spans = topics.setdefault(topic, [])
        spans += [(None, None, None)] * (partition + 1 - len(spans))
        spans[partition] = (place, start, end)
    return topics
