"""Inputs of frames: tables that all tasks of a micro-batch read in one snapshot, with every value as it is."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's own pages have it
from pyspark.sql.types import LongType, StructType

from jobs.spark.frames import apply, driver_of, entries, produced
from seekpoint import Append
from seekpoint.errors import ConfigError
from seekpoint.jobs.frames import frame_stager, inputs
from seekpoint.jobs.frames.driver import FrameDriver
from seekpoint.jobs.spark.task import InputChanged, TaskTrouble
from seekpoint.spark import Env, Frame, SparkPipeline
from seekpoint.testing import assert_frames_merge, raw
from support.batch_process import offsets
from support.every_row import for_each
from support.reload_orders import OrdersGroup
from support.waiting import until

pytestmark = pytest.mark.usefixtures("frames_group")

FACTORS = """
CREATE TABLE {schema}.factors (id bigint PRIMARY KEY, factor bigint NOT NULL, filler text);
INSERT INTO {schema}.factors SELECT n, 1, repeat('x', 200) FROM generate_series(0, 1999) AS n
"""


def decoded(records: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "id bigint, amount bigint, at bigint").alias("order")
    return records.select("partition", "offset", order).select("*", "order.*", F.col("offset").alias("topic_offset"))


def scaled(records: DataFrame, factors: DataFrame) -> DataFrame:
    amount = (F.col("amount") * F.col("factor")).cast("bigint")
    return decoded(records).join(factors, "id").withColumn("amount", amount)


def scaling(orders_group: OrdersGroup, function: Any = scaled, table: Any = None) -> SparkPipeline:
    sink = Append((orders_group.schema, "entries"), columns=["id", "amount", "at", "topic_offset"])
    place = table or (orders_group.schema, "factors")
    frames = {"orders": Frame(function, sink)}
    return SparkPipeline(orders_group.group, topics=orders_group.topic, frames=frames, inputs={"factors": place})


def test_a_micro_batch_reads_its_inputs_in_one_snapshot(
    orders_group: OrdersGroup, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of many pages is read by several tasks, while another session changes all of its rows."""
    orders_group.execute(FACTORS)
    produced(orders_group, 50)
    monkeypatch.setattr(inputs, "MIN_PAGES", 8)
    planned: list[int] = []

    def and_then_changed(*args: Any) -> Any:
        tasks = inputs.tasks_of(*args)
        planned.append(len(tasks))
        orders_group.execute("UPDATE {schema}.factors SET factor = factor * 10")
        return tasks

    monkeypatch.setattr(frame_stager, "tasks_of", and_then_changed)
    apply(orders_group, spark, scaling(orders_group))
    assert orders_group.rows("entries") == entries(50), "as it was when the micro-batch began"
    assert planned[0] > 1
    produced(orders_group, 50, first=50)
    apply(orders_group, spark, scaling(orders_group))
    later = [(id_, amount * (10 if offset >= 50 else 1), offset) for id_, amount, offset in entries(100)]
    assert orders_group.rows("entries") == sorted(later)


LOADED_AGAIN = """
TRUNCATE {0}.factors;
INSERT INTO {0}.factors SELECT n, 1, repeat('x', 200) FROM generate_series(0, 1999) AS n
"""


def rewritten_once(monkeypatch: pytest.MonkeyPatch, rewrite: Callable[[], object]) -> list[int]:
    """Rewrite an input after the snapshot is taken, once; returns how many snapshots there were."""
    snapshots: list[int] = []

    def and_then_rewritten(*args: Any) -> Any:
        tasks = inputs.tasks_of(*args)
        if not snapshots:
            rewrite()
        snapshots.append(len(tasks))
        return tasks

    monkeypatch.setattr(frame_stager, "tasks_of", and_then_rewritten)
    return snapshots


def test_a_micro_batch_whose_input_is_loaded_again_reads_it_in_a_new_snapshot(
    orders_group: OrdersGroup, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRUNCATE does not wait for the micro-batch, and to the old snapshot the table is empty (I4)."""
    orders_group.execute(FACTORS)
    produced(orders_group, 50)
    snapshots = rewritten_once(monkeypatch, lambda: orders_group.execute(LOADED_AGAIN.format(orders_group.schema)))
    apply(orders_group, spark, scaling(orders_group))
    assert orders_group.rows("entries") == entries(50)
    assert len(snapshots) == 2


OTHERS = """
CREATE TABLE {schema}.parts (id bigint, factor bigint) PARTITION BY RANGE (id);
CREATE TABLE {schema}.low PARTITION OF {schema}.parts FOR VALUES FROM (0) TO (1000);
CREATE TABLE {schema}.high PARTITION OF {schema}.parts FOR VALUES FROM (1000) TO (2000);
INSERT INTO {schema}.parts SELECT n, 1 FROM generate_series(0, 1999) AS n;
CREATE VIEW {schema}.shown AS SELECT id, factor FROM {schema}.factors;
CREATE MATERIALIZED VIEW {schema}.kept AS SELECT id, factor FROM {schema}.factors
"""
REWRITES: dict[str, tuple[str, str]] = {
    "truncated": ("factors", LOADED_AGAIN),
    "another type": (
        "factors",
        (
            "DROP VIEW {0}.shown; DROP MATERIALIZED VIEW {0}.kept; "
            "ALTER TABLE {0}.factors ALTER factor TYPE bigint USING factor * 10"
        ),
    ),
    "clustered": ("factors", "CLUSTER {0}.factors USING factors_pkey"),
    "below a view": ("shown", LOADED_AGAIN),
    "refreshed": ("kept", "REFRESH MATERIALIZED VIEW {0}.kept"),
    "a partition": ("parts", "TRUNCATE {0}.low"),
    "detached": ("parts", "ALTER TABLE {0}.parts DETACH PARTITION {0}.low"),
    "swapped": (
        "factors",
        (
            "CREATE TABLE {0}.newer AS SELECT * FROM {0}.factors; "
            "ALTER TABLE {0}.factors RENAME TO older; ALTER TABLE {0}.newer RENAME TO factors"
        ),
    ),
    "dropped": ("factors", "DROP TABLE {0}.factors CASCADE"),
    "without a column": ("factors", "ALTER TABLE {0}.factors DROP factor CASCADE"),
}


@contextmanager
def exported(orders_group: OrdersGroup, dsn: str, table: str) -> Iterator[dict[str, Any]]:
    """The plan of tasks that read an input, in a snapshot."""
    with orders_group.engine.connect() as connection:
        its = inputs.described(connection, "factors", orders_group.schema, table, only=("id", "factor"))
    columns = StructType()
    for column in its.columns:
        columns.add(column.name, column.spark)
    with inputs.exported(orders_group.engine, orders_group.schema, [its]) as (snapshot, _):
        yield {
            "here": str(Path.cwd()), "database": {"url": dsn}, "schema": orders_group.schema,
            "columns": columns.jsonValue(), "input": ["factors", *its.path], **snapshot,
        }  # fmt: skip


def ids(plan: Mapping[str, Any]) -> list[int]:
    batches = inputs.InputSource.run(plan, [0, None])
    return sorted(id_ for batch in batches for id_ in batch.column("id").to_pylist())


@for_each(REWRITES)
def test_a_task_reads_no_table_that_was_rewritten_after_the_snapshot(
    name: str, orders_group: OrdersGroup, seekpoint_dsn: str
) -> None:
    table, statement = REWRITES[name]
    orders_group.execute("DROP TABLE IF EXISTS {schema}.factors, {schema}.older, {schema}.parts, {schema}.low CASCADE")
    orders_group.execute(FACTORS)
    orders_group.execute(OTHERS)
    with exported(orders_group, seekpoint_dsn, table) as plan:
        orders_group.execute(
            "DELETE FROM {schema}.factors; CREATE INDEX ON {schema}.factors (id); ANALYZE {schema}.factors"
        )
        assert ids(plan) == [*range(2000)]
        orders_group.execute(statement.format(orders_group.schema))
        with pytest.raises(InputChanged, match="the input 'factors' was rewritten"):
            ids(plan)


def test_a_task_does_not_wait_for_ever_for_a_truncate_that_waits_for_it(
    orders_group: OrdersGroup, seekpoint_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task may read an input twice at once; the server sees no deadlock, since a client is in its circle."""
    monkeypatch.setattr(inputs, "LOCK_WAIT", "100ms")
    orders_group.execute(FACTORS)
    with exported(orders_group, seekpoint_dsn, "factors") as plan:
        reading: Any = inputs.InputSource.run(plan, [0, 5])
        assert next(reading).num_rows > 0
        loading = threading.Thread(target=orders_group.execute, args=(LOADED_AGAIN.format(orders_group.schema),))
        loading.start()
        waits = "SELECT 1 FROM pg_locks WHERE relation = CAST('{schema}.factors' AS regclass) AND NOT granted"
        until(lambda: len(orders_group.execute(waits)) == 1, "TRUNCATE waits")
        with pytest.raises(TaskTrouble, match="lock timeout"):
            ids(plan)
        reading.close()
        loading.join(60)
        assert not loading.is_alive()


def test_columns_may_be_added_to_an_input(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """Between micro-batches, of types that Spark has not, too; a column that is taken must stay as it is."""
    orders_group.execute(FACTORS)
    produced(orders_group, 5)
    driver = driver_of(orders_group, spark, scaling(orders_group))
    try:
        driver.start()
        driver.step()
        orders_group.execute("ALTER TABLE {schema}.factors ADD spans interval, DROP filler, ADD filler text")
        produced(orders_group, 5, first=5)
        driver.step()
        assert orders_group.rows("entries") == entries(10)
        orders_group.execute("ALTER TABLE {schema}.factors ALTER factor TYPE integer")
        produced(orders_group, 5, first=10)
        with pytest.raises(ConfigError, match=r"'factor' has the type int now.*Nothing of .*\[10, 15\).* is written"):
            driver.step()
    finally:
        driver.end()
    assert offsets(orders_group) == {f"{orders_group.topic}/{number}": 10 for number in (0, 1)}


TYPES = """
CREATE TYPE {schema}.mood AS ENUM ('sad', 'glad');
CREATE TABLE {schema}.typed (id bigint, b boolean, i2 smallint, i4 integer, f4 real, f8 double precision,
    n numeric(38, 18), m numeric(12, 2), t text, v varchar(9), c char(4), u uuid, j jsonb, d date, ts timestamp,
    tz timestamptz, y bytea, e {schema}.mood);
INSERT INTO {schema}.typed VALUES
    (0, true, -32768, 2147483647, 1.5, 1e300, 12345678901234567890.123456789012345678, 0.10, E'a\\n\\\\tb', 'ü', 'ab',
     'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{{"a": [1, null]}}', '0001-01-01', '9999-12-31 23:59:59.999999',
     '2026-01-01 00:00:00.000001+02', '\\x00ff', 'glad'),
    (1, NULL, NULL, NULL, 'NaN', '-Infinity', -0.000000000000000001, -9999999999.99, '', '', '', NULL, 'null', NULL,
     NULL, NULL, '', 'sad');
CREATE TABLE {schema}.copied (LIKE {schema}.typed);
ALTER TABLE {schema}.copied ALTER j TYPE text
"""


def test_every_value_arrives_as_it_is(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """JSON arrives as its text."""
    orders_group.execute(TYPES)
    produced(orders_group, 2)

    def copied(records: DataFrame, factors: DataFrame) -> DataFrame:
        return decoded(records).where("partition = 0").select("partition", "offset", "id").join(factors, "id")

    frames = {"copies": Frame(copied, Append((orders_group.schema, "copied")))}
    typed = SparkPipeline(
        orders_group.group, topics=orders_group.topic, frames=frames, inputs={"factors": (orders_group.schema, "typed")}
    )
    apply(orders_group, spark, typed)
    assert orders_group.execute("SELECT count(*) FROM {schema}.copied") == [(2,)]
    for first, other in (("typed", "copied"), ("copied", "typed")):
        rows = "SELECT id, b, i2, i4, f4, f8, n, m, t, v, c, u, CAST(j AS text), d, ts, tz, y, e FROM {schema}"
        query = f"{rows}.{first} EXCEPT ALL {rows}.{other}"
        assert orders_group.execute(query) == []


def test_what_spark_cannot_hold_is_refused(orders_group: OrdersGroup, spark: SparkSession) -> None:
    produced(orders_group, 1)
    with pytest.raises(ConfigError, match="inputs: 'factors': there is no table"):
        apply(orders_group, spark, scaling(orders_group))
    orders_group.execute("CREATE TABLE {schema}.factors (id bigint, factor bigint, spans interval)")
    with pytest.raises(ConfigError, match="its column 'spans' is interval, for which Spark has no type: make a view"):
        apply(orders_group, spark, scaling(orders_group))
    orders_group.execute("CREATE VIEW {schema}.plain AS SELECT id, factor, spans::text FROM {schema}.factors")
    orders_group.execute("INSERT INTO {schema}.factors VALUES (0, 7, '1 day')")
    apply(orders_group, spark, scaling(orders_group, table=(orders_group.schema, "plain")))
    assert orders_group.rows("entries") == [(0, 0, 0)]
    orders_group.execute("CREATE TABLE {schema}.wide (id bigint, factor numeric)")
    orders_group.execute("INSERT INTO {schema}.wide VALUES (1, 'NaN')")
    produced(orders_group, 1, first=1)
    with pytest.raises(ConfigError, match="a value of its column 'factor' does not fit"):
        apply(orders_group, spark, scaling(orders_group, table=(orders_group.schema, "wide")))


def test_rights_are_asked_at_the_start(
    orders_group: OrdersGroup, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a role that may write the table, and no more: each message has the GRANT that is missing."""
    role, variable = f"writer_{secrets.token_hex(4)}", "WRITERS_DATABASE_URL"
    orders_group.execute(FACTORS)
    orders_group.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'writer'; GRANT USAGE ON SCHEMA {{schema}} TO {role}")
    orders_group.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {{schema}} TO {role}")
    orders_group.execute(f"REVOKE SELECT ON {{schema}}.factors, {{schema}}.entries FROM {role}")
    url = orders_group.engine.url.set(username=role, password="writer")
    monkeypatch.setenv(variable, url.render_as_string(hide_password=False))
    database = f'"{orders_group.engine.url.database}"'
    for message, grant in (
        (f"GRANT CREATE ON DATABASE .*; .* GRANT SELECT ON .*entries.* TO {role}", f"CREATE ON DATABASE {database}"),
        (f"may not read .*entries.* GRANT SELECT ON .*entries.* TO {role}", "SELECT ON {schema}.entries"),
        ("inputs: 'factors': .*: GRANT SELECT ON .*factors.* to the pipeline's role", "SELECT ON {schema}.factors"),
        (None, None),
    ):
        kafka = {"bootstrap.servers": orders_group.brokers}
        driver = FrameDriver(spark, scaling(orders_group), kafka, database=Env(variable), schema=orders_group.schema)
        with pytest.raises(ConfigError, match=message) if message else nullcontext():
            driver.start()
        driver.engine.dispose()
        if grant:
            orders_group.execute(f"GRANT {grant} TO {role}")
    orders_group.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_time_that_python_does_not_have_is_refused(orders_group: OrdersGroup, seekpoint_dsn: str) -> None:
    orders_group.execute("CREATE TABLE {schema}.factors (id bigint, factor date)")
    for value in ("infinity", "0044-03-15 BC", "12026-01-01"):
        orders_group.execute("TRUNCATE {schema}.factors; INSERT INTO {schema}.factors VALUES (1, '" + value + "')")
        with exported(orders_group, seekpoint_dsn, "factors") as plan:
            error = re.escape("inputs: 'factors': its rows cannot be read") + ".* columns of times: 'factor'"
            reading = inputs.InputSource.run(plan | {"run": str(uuid4()), "job": "none"}, [0, None])
            with pytest.raises(ConfigError, match=error):
                next(reading)


def test_rows_that_cannot_be_read_name_columns_of_times_only_if_there_are_some() -> None:
    def refuse(_: int) -> list[tuple[Any, ...]]:
        raise psycopg.DataError("can't parse it")

    input_ = inputs.Input("factors", ("public", "factors"), (inputs.Column("id", LongType()),))
    cursor: Any = SimpleNamespace(fetchmany=refuse)
    with pytest.raises(ConfigError, match=r"cannot be read \(DataError: can't parse it\): make a view"):
        inputs._fetched(input_, cursor)


def test_frames_with_inputs_are_checked_by_random_cuts(spark: SparkSession) -> None:
    frames = {"orders": Frame(scaled, Append("entries", columns=["id", "amount"]))}
    pipeline = SparkPipeline("orders", topics="topic", frames=frames, inputs={"factors": "factors"})
    records = [raw(b'{"id": %d, "amount": 2}' % n, offset=n) for n in range(20)]
    factors = spark.range(0, 30).selectExpr("id", "id AS factor")
    assert_frames_merge(spark, pipeline, records, inputs={"factors": factors}, cuts=1)
    with pytest.raises(ConfigError, match="has the input 'factors': give a DataFrame for it"):
        assert_frames_merge(spark, pipeline, records)
