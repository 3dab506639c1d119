"""The inputs of frames: tables of the ledger's database, which tasks read in one snapshot that the driver holds.

So all tasks of a micro-batch, and all their attempts, see the same rows. A snapshot does not protect against statements
that rewrite a table's files (TRUNCATE, ALTER TABLE, CLUSTER, REFRESH MATERIALIZED VIEW), so each task also compares the
files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql as ident
from psycopg.rows import tuple_row
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from sqlalchemy import Connection, Engine, text

from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.columns import ROWS
from seekpoint.jobs.spark.data_sources import Plan, TaskSource
from seekpoint.jobs.spark.session import slots_of
from seekpoint.jobs.spark.task import InputChanged, task
from seekpoint.jobs.tables.sql_templates import name
from seekpoint.ledger.schema_connection import SchemaConnection
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.postgres.sqlstates import UNDEFINED_COLUMN, UNDEFINED_TABLE, sqlstate
from seekpoint.records import one_line
from seekpoint.runs.run import REPEATABLE_READ, transaction
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.copy import driver_of

MIN_PAGES = 2_048  # minimum per task: 16 MB
LOCK_WAIT = "30s"  # ends a deadlock of a task and a TRUNCATE that have each locked one of two inputs

_TABLE = text(
    """
    SELECT n.nspname AS schema, c.relname AS name, CAST(c.relkind AS text) AS kind,
           pg_relation_size(c.oid) / CAST(current_setting('block_size') AS bigint) AS pages
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(:name)
    """
)
_COLUMNS = text(
    """
    SELECT a.attname AS name, a.atttypmod AS typmod, t.typtype = 'e' AS is_enum,
           CASE WHEN t.typnamespace = CAST('pg_catalog' AS regnamespace) THEN t.typname END AS type,
           format_type(a.atttypid, a.atttypmod) AS shown
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
    """
)
# The tables that the transaction has locked, including those of views, without indexes. In a snapshot a task sees old
# rows of pg_class, but pg_relation_filenode and pg_get_indexdef read current ones. These functions fail for dropped
# relations, so the materialized CTE restricts them to relations that the transaction has locked.
_FILES = text(
    """
    WITH own AS MATERIALIZED (
        SELECT relation FROM pg_locks
        WHERE pid = pg_backend_pid() AND locktype = 'relation' AND CAST(relation AS bigint) >= 16384
    )
    SELECT CAST(relation AS bigint) AS relation, CAST(pg_relation_filenode(relation) AS bigint) AS file
    FROM own
    WHERE pg_get_indexdef(relation) IS NULL AND pg_relation_filenode(relation) IS NOT NULL
    ORDER BY relation
    """
)
_EXPORT = text("SELECT pg_export_snapshot()")

_TYPES: Mapping[str, tuple[DataType, Any]] = {
    "bool": (BooleanType(), pa.bool_()),
    "int2": (ShortType(), pa.int16()),
    "int4": (IntegerType(), pa.int32()),
    "int8": (LongType(), pa.int64()),
    "float4": (FloatType(), pa.float32()),
    "float8": (DoubleType(), pa.float64()),
    "date": (DateType(), pa.date32()),
    "timestamp": (TimestampNTZType(), pa.timestamp("us")),
    "timestamptz": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "bytea": (BinaryType(), pa.binary()),
}
# Types that are read as the server's text.
_TEXTS = frozenset({"text", "varchar", "bpchar", "name", "uuid", "json", "jsonb"})
_TIMES = (DateType, TimestampType, TimestampNTZType)  # types with values that Python cannot represent
_MAX_DIGITS = 38  # maximum digits of Spark's decimals
_ARROW = dict(_TYPES.values())

Files = list[list[int]]
"""The oid and the file number of each relation that a query of an input reads."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an input, with its Spark type."""

    name: str
    spark: DataType

    @property
    def is_text(self) -> bool:
        """Whether the column is read as text."""
        return isinstance(self.spark, StringType)

    @property
    def arrow(self) -> Any:
        """The Arrow type."""
        if isinstance(self.spark, DecimalType):
            return pa.decimal128(self.spark.precision, self.spark.scale)
        return pa.string() if self.is_text else _ARROW[self.spark]


@dataclass(frozen=True, slots=True)
class Input:
    """A table that frames join. ``name`` is the parameter of their functions, ``path`` the schema and the table."""

    name: str
    path: tuple[str, str]
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    def frame(self, spark: SparkSession, plan: Mapping[str, Any], tasks: Sequence[Any]) -> DataFrame:
        """A DataFrame of the table's rows in the plan's snapshot, read by these tasks; empty without tasks."""
        columns = StructType()
        for column in self.columns:
            columns.add(column.name, column.spark)
        return InputSource.frame(
            spark, {**plan, "input": [self.name, *self.path], "columns": columns.jsonValue(), "tasks": tasks}
        )


class InputSource(TaskSource):
    """The data source ``seekpoint-input``, created by :class:`Input`. Tasks read ranges of pages, or all."""

    format = "seekpoint-input"

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.options["plan"])["columns"])

    @classmethod
    def run(cls, plan: Plan, task_: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        if not task_:
            return
        argument, *path = plan["input"]
        fields = StructType.fromJson(plan["columns"]).fields
        input_ = Input(argument, (path[0], path[1]), tuple(Column(field.name, field.dataType) for field in fields))
        with task(plan) as engine, _in_snapshot(engine, plan["schema"], plan["snapshot"]) as connection:
            yield from _read(connection, input_, plan["files"][argument], *task_)


@contextmanager
def exported(engine: Engine, schema: str, inputs: Sequence[Input]) -> Iterator[tuple[Mapping[str, Any], Connection]]:
    """Export a snapshot that tasks can use during the block; yields a part of their plan, and a connection in the
    snapshot.

    That part has the snapshot's name, and each input's files as of before the snapshot. No input is locked during the
    block: otherwise a TRUNCATE would wait for the block, and a task for the TRUNCATE, forever. Raises ConfigError for a
    column that no longer exists or has another type, and if the role may not read an input.
    """
    files = {input_.name: _files_now(engine, schema, input_) for input_ in inputs}
    with transaction(engine, schema, isolation=REPEATABLE_READ) as tx:
        yield {"snapshot": tx.connection.execute(_EXPORT).scalar_one(), "files": files}, tx.connection


def _files_now(engine: Engine, schema: str, input_: Input) -> Files:
    with transaction(engine, schema) as tx:
        current = {
            column.name: column
            for column in described(tx.connection, input_.name, *input_.path, only=input_.names).columns
        }
        for column in input_.columns:
            if current.get(column.name) != column:
                difference = (
                    f"has the type {current[column.name].spark.simpleString()}"
                    if column.name in current
                    else "is missing"
                )
                raise ConfigError(
                    f"inputs: {input_.name!r}: its column {column.name!r} {difference} now, and was "
                    f"{column.spark.simpleString()} at the start: run the pipeline again, which uses the table as it is"
                )
        try:
            driver_of(tx.connection).execute(_query(input_) + ident.SQL(" LIMIT 0"))
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(
                f"inputs: {input_.name!r}: {one_line(error)}: GRANT SELECT ON {quoted(*input_.path)} to the "
                "pipeline's role"
            ) from error
        return _files(tx.connection)


def _files(connection: Connection) -> Files:
    """The files of the tables that the transaction has queried, and so locked against a rewrite."""
    return [[row.relation, row.file] for row in connection.execute(_FILES)]


def described(connection: Connection, argument: str, *path: str, only: Collection[str] | None = None) -> Input:
    """The table as defined now, with all columns or those in ``only``.

    Raises ConfigError for a missing table, and for a column type that Spark does not hold exactly.
    """
    named = quoted(*path)
    table = connection.execute(_TABLE, {"name": named}).one_or_none()
    if table is None:
        raise ConfigError(f"inputs: {argument!r}: there is no table {'.'.join(path)}: create it, or correct its name")
    rows = [row for row in connection.execute(_COLUMNS, {"name": named}) if only is None or row.name in only]
    return Input(argument, (table.schema, table.name), tuple(_column(argument, row) for row in rows))


def tasks_of(connection: Connection, input_: Input, spark: SparkSession) -> list[list[int | None]]:
    """Ranges of pages, about one per slot; a single task for a relation without pages, such as a view."""
    table = connection.execute(_TABLE, {"name": quoted(*input_.path)}).one()
    if table.kind != "r":
        return [[0, None]]
    width = max(-(-table.pages // slots_of(spark)), MIN_PAGES)
    starts = list(range(0, max(table.pages, 1), width))
    return [[start, end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _column(argument: str, row: Any) -> Column:
    if row.is_enum or row.type in _TEXTS:
        return Column(row.name, StringType())
    if row.type == "numeric":
        digits, scale = ((row.typmod - 4) >> 16 & 0xFFFF, (row.typmod - 4) & 0x7FF) if row.typmod > 0 else (38, 18)
        if digits <= _MAX_DIGITS and scale <= digits:
            return Column(row.name, DecimalType(digits, scale))
    if row.type in _TYPES:
        return Column(row.name, _TYPES[row.type][0])
    raise ConfigError(
        f"inputs: {argument!r}: its column {row.name!r} is {row.shown}, for which Spark has no type: make a view that "
        "casts it, or leaves it out, and name the view here"
    )


@contextmanager
def _in_snapshot(engine: Engine, schema: str, snapshot: str) -> Iterator[Connection]:
    with engine.connect().execution_options(isolation_level=REPEATABLE_READ) as connection:
        set_snapshot = ident.SQL("SET TRANSACTION SNAPSHOT {}").format(ident.Literal(snapshot))
        driver_of(connection).execute(set_snapshot)  # must precede any query of the transaction
        SchemaConnection(connection, schema).execute(RELOAD_RUN["unhurried"])
        driver_of(connection).execute(ident.SQL("SET LOCAL lock_timeout = {}").format(ident.Literal(LOCK_WAIT)))
        yield connection


def _query(input_: Input) -> ident.Composed:
    selected = ident.SQL(", ").join(
        ident.SQL("{}::text").format(name(column.name)) if column.is_text else name(column.name)
        for column in input_.columns
    )
    return ident.SQL("SELECT {} FROM {}").format(selected, name(*input_.path))


def _read(connection: Connection, input_: Input, files: Files, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
    """The rows of these pages. Raises InputChanged if the files were replaced since before the snapshot."""
    query = _query(input_)
    if (start, end) != (0, None):
        query += ident.SQL(" WHERE ctid >= {}::tid").format(ident.Literal(f"({start},0)"))
        if end is not None:
            query += ident.SQL(" AND ctid < {}::tid").format(ident.Literal(f"({end},0)"))
    with driver_of(connection).cursor("seekpoint_input", row_factory=tuple_row) as cursor:
        changed = f"the input {input_.name!r} was rewritten while the micro-batch read it"
        try:
            cursor.execute(query)  # locks the tables, so that the files compared below are those that are read
        except psycopg.ProgrammingError as error:
            if sqlstate(error) in {UNDEFINED_TABLE, UNDEFINED_COLUMN}:
                raise InputChanged(changed) from error
            raise
        if _files(connection) != files:
            raise InputChanged(changed)
        while rows := _fetched(input_, cursor):
            by_column = zip(*rows, strict=True)
            arrays = [_array(input_, column, values) for column, values in zip(input_.columns, by_column, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=input_.names)


def _fetched(input_: Input, cursor: psycopg.ServerCursor[Any]) -> list[tuple[Any, ...]]:
    try:
        return cursor.fetchmany(ROWS)
    except psycopg.DataError as error:
        times = [repr(column.name) for column in input_.columns if isinstance(column.spark, _TIMES)]
        where = f"; columns of times: {', '.join(times)}" if times and sqlstate(error) is None else ""
        raise ConfigError(
            f"inputs: {input_.name!r}: its rows cannot be read ({one_line(error)}{where}): make a view that casts the "
            "value, or leaves it out, and name the view here"
        ) from error


def _array(input_: Input, column: Column, values: Sequence[Any]) -> Any:
    try:
        return pa.array(values, column.arrow)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ConfigError(
            f"inputs: {input_.name!r}: a value of its column {column.name!r} does not fit Spark's "
            f"{column.spark.simpleString()} ({error}): make a view that casts it, and name the view"
        ) from error
