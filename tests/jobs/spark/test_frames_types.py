"""The guide's table of Spark's types and Postgres' types: a column holds a type exactly, or refuses it by its type."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's own pages have it
from sqlalchemy import Connection

from jobs.spark.frames import apply
from seekpoint import Upsert
from seekpoint.errors import ConfigError, FrameFailed
from seekpoint.jobs.frames.spark_types import exact, misfit
from seekpoint.pipeline.sink import RowRefused
from seekpoint.postgres.engine import postgres_engine
from seekpoint.sinks.arrow.copy import open_copies
from seekpoint.sinks.column_type import ColumnTypes
from seekpoint.sinks.column_types import read_types
from seekpoint.sinks.conversions import EXACT, Conversions
from seekpoint.sinks.copy import driver_of
from seekpoint.spark import Frame, SparkPipeline
from support.reload_orders import OrdersGroup, of

GUIDE = Path(__file__).parents[3] / "docs/guides/dataframes.md"
SCHEMA = "frames_types"
COLUMNS = {  # as the guide names them, and a type of each
    **{
        column: column
        for column in (
            "boolean", "smallint", "integer", "bigint", "real", "double precision", "numeric", "money", "oid", "text",
            "name", "bytea", "date", "time", "timetz", "timestamp", "timestamptz", "interval", "uuid", "inet",
            "tstzrange", "json", "jsonb", "integer[]", "text[]", "jsonb[]",
        )
    },
    "numeric(p, s)": "numeric(12, 2)",
    "varchar(n)": "varchar(40)",
    "char(n)": "char(40)",
    "enums": f"{SCHEMA}.mood",
    "time(p)": "time(2)",
    "timestamp(p)": "timestamp(3)",
    "timestamptz(p)": "timestamptz(3)",
    "interval(p)": "interval(3)",
}  # fmt: skip
_UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
_RANGE = '["2026-01-01 00:00:00+00","2026-01-02 00:00:00+00")'
#: Of each Spark type of the guide: expressions, and what Postgres prints of them; a mapping: by the column.
SAMPLES: Mapping[str, Mapping[str, str | Mapping[str, str]]] = {
    "boolean": {"true": "true"},
    "tinyint": {"-128Y": "-128"},
    "smallint": {"-32768S": "-32768"},
    "int": {"16777217": "16777217", "7": "7"},
    "bigint": {"9007199254740993L": "9007199254740993", "7L": "7"},
    "decimal(p, 0)": {"12345678901234567890BD": "12345678901234567890", "CAST(7 AS DECIMAL(20, 0))": "7"},
    "decimal(p, s)": {
        "CAST('12345678901234567890.123456789012345678' AS DECIMAL(38, 18))": "12345678901234567890.123456789012345678",
        "1.25BD": "1.25",
    },
    "float": {"CAST(0.1 AS FLOAT)": {"real": "0.1", "": "0.10000000149011612"}},
    "double": {"0.1D": "0.1", "1e16D": {"double precision": "1e+16", "json": "1e16", "jsonb": "10000000000000000"}},
    "string": {
        "'a\\\\tb'": "a\\tb",
        "'happy'": "happy",
        f"'{_UUID}'": _UUID,
        "'192.168.0.1'": {"inet": "192.168.0.1/32", "": "192.168.0.1"},
        "'12:34:56.123456'": "12:34:56.123456",
        "'2 mons 3 days'": "2 mons 3 days",
        f"'{_RANGE}'": _RANGE,
        "'{\"a\": [1, \"x\"]}'": '{"a": [1, "x"]}',
    },
    "binary": {"X'00FF5C'": "\\x00ff5c"},
    "date": {"DATE '1500-02-28'": {"date": "1500-02-28", "": '"1500-02-28"'}},
    "timestamp": {
        "timestamp_micros(1793514600123456)": {
            "timestamptz": "2026-11-01 06:30:00.123456+00",
            "": '"2026-11-01T06:30:00.123456Z"',
        }
    },
    "timestamp_ntz": {
        "TIMESTAMP_NTZ '2026-03-08 02:30:00.000001'": {
            "timestamp": "2026-03-08 02:30:00.000001",
            "": '"2026-03-08T02:30:00.000001"',
        }
    },
    "time": {"TIME '12:34:56.123456'": {"time": "12:34:56.123456", "": '"12:34:56.123456"'}},
    "interval day to second": {"INTERVAL '1 02:03:04.000005' DAY TO SECOND": "26:03:04.000005"},
    "array<int>": {"array(1, NULL, 3)": {"integer[]": "{1,NULL,3}", "json": "[1,null,3]", "jsonb": "[1, null, 3]"}},
    "array<string>": {
        "array('NULL', 'a\"b', NULL)": {
            "text[]": '{"NULL","a\\"b",NULL}',
            "json": '["NULL","a\\"b",null]',
            "jsonb": '["NULL", "a\\"b", null]',
        }
    },
    "array<array<int>>": {"array(array(1), CAST(array() AS ARRAY<INT>))": {"json": "[[1],[]]", "jsonb": "[[1], []]"}},
    "map<string,…>": {"map('a', 1.50BD)": {"json": '{"a":1.50}', "jsonb": '{"a": 1.50}'}},
    "struct<…>": {
        "named_struct('a', 9007199254740993L)": {"json": '{"a":9007199254740993}', "jsonb": '{"a": 9007199254740993}'}
    },
    "variant": {"parse_json('{\"a\": 1}')": ""},
    "map<int,…>": {"map(1, 'x')": ""},
    "struct<…binary>": {"named_struct('a', X'00')": ""},
    "interval year to month": {"INTERVAL '1-2' YEAR TO MONTH": ""},
}  # fmt: skip


def documented() -> Iterator[tuple[str, frozenset[str], frozenset[str]]]:
    """Of each Spark type: the columns that hold it, and those that do with an option."""
    section = GUIDE.read_text(encoding="utf-8").partition("## Types")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            kinds, columns, options = line.strip("|").split("|")
            held = {*re.findall(r"`([^`]+)`", columns)} | ({"enums"} if "enums" in columns else set())
            able = {name for name in re.findall(r"`([^`]+)`", options) if "=" not in name}
            for kind in re.findall(r"`([^`]+)`", kinds):
                yield kind, frozenset(held - {"to_json"}), frozenset(able)


DOCUMENTED = {kind: (held, able) for kind, held, able in documented()}


@pytest.fixture(scope="module")
def sample_frame(spark: SparkSession) -> tuple[DataFrame, Mapping[str, pa.Table]]:
    """All samples in one DataFrame, and the values of those that some column holds."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        all_ = {expression: F.expr(expression) for samples in SAMPLES.values() for expression in samples}
        frame = spark.range(1, numPartitions=1).select(*[column.alias(name) for name, column in all_.items()])
        held = [expression for kind, (columns, _) in DOCUMENTED.items() if columns for expression in SAMPLES[kind]]
        table = frame.select(*[f"`{name}`" for name in held]).toArrow()
        return frame, {name: table.column(name).combine_chunks() for name in held}
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
        spark.conf.unset("spark.sql.timeType.enabled")


@pytest.fixture(scope="module")
def database(seekpoint_dsn: str) -> Iterator[tuple[Connection, ColumnTypes]]:
    """A table with a column of each type, which is never committed."""
    columns = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
    with postgres_engine(seekpoint_dsn).connect() as connection:
        for statement in (
            f"CREATE SCHEMA {SCHEMA}",
            f"CREATE TYPE {SCHEMA}.mood AS ENUM ('happy')",
            f"CREATE TABLE {SCHEMA}.types ({columns})",
            "SET LOCAL TimeZone = 'UTC'",
        ):
            connection.exec_driver_sql(statement)
        yield connection, read_types(driver_of(connection), (SCHEMA, "types")).columns


def stored(connection: Connection, column: str, values: pa.Array, types: ColumnTypes) -> str | None:
    """What Postgres prints of the value, None where it refuses it."""
    savepoint = connection.begin_nested()
    try:
        with open_copies(connection, (SCHEMA, "types"), lambda: None, allowed=EXACT) as copies:
            copies.send(pa.table({column: exact(values, types[column])}))
        printed = connection.exec_driver_sql(f'SELECT rtrim(CAST("{column}" AS text)) FROM {SCHEMA}.types')
        return str(printed.scalar_one())
    except (RowRefused, ValueError):
        return None
    finally:
        savepoint.rollback()


@pytest.mark.repeats("kind")
@pytest.mark.parametrize("kind", SAMPLES)
def test_a_row_of_the_guides_table(sample_frame: Any, database: tuple[Connection, ColumnTypes], kind: str) -> None:
    """Each column holds the type as the table says: what it stores is the value, or it stores nothing."""
    (frame, values), (connection, types), (held, able) = sample_frame, database, DOCUMENTED[kind]
    for column in COLUMNS:
        results = []
        for expression, printed in SAMPLES[kind].items():
            type_ = frame.schema[expression].dataType
            why = misfit("a", type_, types[column], EXACT)
            assert (why is None) is (column in held), f"{type_} into {column}: {why}"
            if why is not None:
                assert (misfit("a", type_, types[column], Conversions(True, UTC)) is None) is (column in able), column
                continue
            results.append(stored(connection, column, values[expression], types))
            expected = printed if isinstance(printed, str) else printed.get(column, printed.get(""))
            if column == "numeric(p, s)" and expected is not None and "." not in expected:
                expected += ".00"
            assert results[-1] in {expected, None}, (column, expression)
        assert column not in held or any(results), f"a value of the type is stored in {column}"


def test_each_cast_that_a_refusal_names_is_held(sample_frame: Any, database: tuple[Connection, ColumnTypes]) -> None:
    """Spark takes the cast, and the column what it makes."""
    (frame, _), (_, types) = sample_frame, database
    casts = []
    for samples in SAMPLES.values():
        expression = next(iter(samples))
        for column in COLUMNS:
            why = misfit("a", frame.schema[expression].dataType, types[column], EXACT)
            if why is not None and (cast := re.search(r"write (F\..*?) in the frame(, and)?", why)):
                it = F.col(f"`{expression}`")
                named = re.search(r'\.cast\("([^"]+)"\)', cast.group(1))
                value = it.cast(named.group(1)) if named else F.to_json(it)
                casts.append((column, value, Conversions(round=cast.group(2) is not None)))
    assert len(casts) > 50
    schema = frame.select(*[value.alias(f"c{number}") for number, (_, value, _) in enumerate(casts)]).schema
    for number, (column, value, allowed) in enumerate(casts):
        assert misfit("a", schema[number].dataType, types[column], allowed) is None, (column, value)


def test_types_are_compared_at_the_start_and_values_are_stored_as_they_are(
    orders_group: OrdersGroup, spark: SparkSession
) -> None:
    """Of the frame and not of the codec; an input's JSON is in the table as it was (I1)."""
    orders_group.execute(
        "CREATE TABLE {schema}.facts (id bigint, fact jsonb); "
        'INSERT INTO {schema}.facts VALUES (1, \'{{"a": ["1", 1.50], "b": null}}\'), (2, \'"text"\'); '
        "CREATE TABLE {schema}.known (id bigint PRIMARY KEY, fact jsonb, code varchar(3), part int)"
    )
    orders_group.produce(orders_group.topic, [of(1, 1), of(2, 2)], partition=0)
    code = F.lit("abc")

    def known(records: DataFrame, facts: DataFrame) -> DataFrame:
        id_ = F.from_json(F.col("value").cast("string"), "id bigint")["id"].alias("id")
        joined = records.select("partition", "offset", F.col("partition").alias("part"), id_).join(facts, "id")
        return joined.withColumn("code", code)

    def cast(column: str, kind: str) -> Any:
        return lambda records, facts: known(records, facts).withColumn(column, F.col(column).cast(kind))

    def pipeline(function: Any = known) -> SparkPipeline:
        sink = Upsert((orders_group.schema, "known"), key=["id"])
        frames = {"known": Frame(function, sink)}
        return SparkPipeline(
            orders_group.group,
            topics=orders_group.topic,
            frames=frames,
            inputs={"facts": (orders_group.schema, "facts")},
        )

    for column, instead, message in (
        ("id", "string", r"'id' is string, which .* 'id' \(bigint\) .*: write F.col\(\"id\"\).cast\(\"bigint\"\) in"),
        ("part", "double", r"'part' is double, .*cast\(\"int\"\) in the frame, or make the column double precision"),
        ("fact", "binary", r"'fact' is binary, .* \(jsonb\) does not hold exactly: make the column bytea"),
    ):
        with pytest.raises(ConfigError, match=f"frame 'known'.*: its column {message}"):
            apply(orders_group, spark, pipeline(cast(column, instead)))
    code = F.lit("abc  ")
    too_long = r"column 'code': a text has 5 characters, too many for the column's type character varying\(3\)"
    with pytest.raises(FrameFailed, match=too_long):
        apply(orders_group, spark, pipeline())
    assert orders_group.execute("SELECT * FROM {schema}.known") == []
    code = F.lit("ab ")
    apply(orders_group, spark, pipeline())
    columns = "id, k.fact::text, k.fact = f.fact, code"
    stored_ = orders_group.execute(
        f"SELECT {columns} FROM {{schema}}.known k JOIN {{schema}}.facts f USING (id) ORDER BY 1"
    )
    assert stored_ == [(1, '{"a": ["1", 1.50], "b": null}', True, "ab "), (2, '"text"', True, "ab ")]
