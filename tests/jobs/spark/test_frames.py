"""DataFrames in the place of a handler: Spark computes up to the snapshot offsets, the handler the rest; both agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobs.export.test_reload import export, trim
from jobs.spark.orders import DATABASE
from seekpoint import Retry
from seekpoint.errors import ConfigError, ReloadRefused
from seekpoint.jobs.export import Archive
from seekpoint.jobs.reload import Reload
from seekpoint.jobs.spark.frames import Part
from seekpoint.spark import SparkStager
from seekpoint.testing import assert_reload_agrees, raw
from support.handler_reload import Books, booked, by_core
from support.reload_orders import of

RECORDS = [of(n % 7, n) for n in range(60)]
LATER = [of(n % 9, n) for n in range(30)]


def orders(frame: DataFrame) -> DataFrame:
    found = F.from_json(F.col("value").cast("string"), "id bigint, amount bigint, at bigint")
    return frame.select("offset", found.alias("made")).select("offset", "made.*")


def bookings(by: int = 2) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: orders(frame).select(
        F.col("offset").alias("source_offset"), F.col("id").alias("account"), (F.col("amount") * by).alias("amount")
    )


def totals(by: int = 2) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: (
        orders(frame)
        .groupBy(F.col("id").alias("account"))
        .agg(F.sum(F.col("amount") * by).alias("total"), F.count("*").alias("records"))
    )


class Job:
    """The books' reload with frames. ``handled`` are the offsets that the handler saw."""

    def __init__(self, books: Books, spark: SparkSession, **options: Any) -> None:
        self.books, self.handled = books, []  # type: tuple[Books, list[int]]
        inner = by_core(books.shop.schema, 2)

        def handle(tx: Any, batch: Any) -> None:
            self.handled += [record.offset for record in batch]
            inner(tx, batch)

        kafka = {"bootstrap.servers": books.shop.brokers}
        archive = options.pop("archive", None)
        self.frames = {self.name("bookings"): bookings(), self.name("totals"): totals()} | options.pop("frames", {})
        self.reload = Reload(
            [books.pipeline(handle, **options)],
            books.engine,
            kafka,
            schema=books.shop.schema,
            stager=SparkStager(spark, kafka, database=DATABASE, schema=books.shop.schema),
            frames=self.frames,
            archive=archive,
        )

    def name(self, table: str) -> str:
        return f"{self.books.shop.schema}.{table}"


def applied(books: Books, records: list[Any] = RECORDS, **options: Any) -> None:
    books.applied(records, lambda version: by_core(books.shop.schema, version), **options)


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_frames_up_to_the_snapshot_offsets_and_the_handler_after_them(
    books: Books, spark: SparkSession, strategy: str
) -> None:
    if strategy == "swap":
        books.shop.execute("ALTER TABLE {schema}.bookings DROP CONSTRAINT bookings_pkey, DROP COLUMN number")
    applied(books)
    job = Job(books, spark)
    driver = job.reload.open(strategy=strategy)
    applied(books, LATER)
    job.reload.run(driver)
    assert books.rows() == booked(RECORDS + LATER, by=2)
    assert job.handled == [*range(60, 90)]
    assert books.shop.schemas() == []


@pytest.mark.long("another run of Spark's tasks")
def test_frames_are_computed_of_what_retention_took_too(books: Books, spark: SparkSession, tmp_path: Path) -> None:
    """The beginning comes from the archive's files, the rest of it from the log, and what follows from the handler."""
    shop = books.shop
    applied(books)
    archive = Archive(tmp_path / "archive", shop.engine, schema=shop.schema)
    export(shop, archive, range_records=25)
    trim(shop, 40)
    with pytest.raises(ReloadRefused, match="archive"):
        Job(books, spark).reload.open()
    job = Job(books, spark, archive=archive)
    driver = job.reload.open()
    applied(books, LATER)
    job.reload.run(driver)
    assert books.rows() == booked(RECORDS + LATER, by=2)
    assert job.handled == [*range(60, 90)]


@pytest.mark.long
def test_records_without_rows_are_none_of_a_frame(books: Books, spark: SparkSession) -> None:
    """Dead letters, and a range that was given up."""

    def refusing(version: int) -> Any:
        inner = by_core(books.shop.schema, version)

        def handle(tx: Any, batch: Any) -> None:
            if bad := [record for record in batch if record.offset in {4, 33}]:
                raise ValueError(f"not {bad[0].offset}")
            inner(tx, batch)

        return handle

    options = {"on_poison": "dead_letter", "retry": Retry(attempts=1)}
    books.applied(RECORDS, refusing, **options)
    at = next(at for at in books.shop.ledger().read() if at.partition.number == 0)
    ids = {"t": at.partition.topic, "id": at.topic_id, "g": books.shop.group}
    books.shop.execute("DELETE FROM {schema}.bookings WHERE source_offset BETWEEN 10 AND 19")
    books.shop.execute(
        "INSERT INTO {schema}.lost_range (consumer_group, topic, topic_id, partition, from_offset, to_offset, reason, "
        "decision, actor) VALUES (:g, :t, :id, 0, 10, 20, 'retention', 'skip', 'me')",
        **ids,
    )
    job = Job(books, spark, on_poison="dead_letter")
    job.reload.run(job.reload.open())
    assert job.handled == []
    rows, sums = books.rows()
    left = [n for n in range(60) if n not in {4, 33, *range(10, 20)}]
    assert rows == [(n, n % 7, 2 * n) for n in left]
    assert sum(total for _, total, _ in sums) == sum(2 * n for n in left)


def test_every_table_has_a_frame_or_none_has(books: Books, spark: SparkSession) -> None:
    applied(books)
    job = Job(books, spark)
    job.reload.frames.pop(job.name("totals"))
    with pytest.raises(ConfigError, match=r"writes .*\.totals, too: give frames= for all of its tables, or for none"):
        job.reload.open()
    job.reload.frames = {"nowhere": totals()}
    with pytest.raises(ConfigError, match=r"'nowhere': .*: there is no such table"):
        job.reload.open()
    job.reload.frames = {job.name("rates"): totals()}
    with pytest.raises(ConfigError, match=r"names .*\.rates, which no handler of these pipelines writes"):
        job.reload.open()
    with pytest.raises(ConfigError, match=r"frames= are computed by Spark: give stager=SparkStager\(spark, kafka\)"):
        books.reload(by_core(None, 2), frames={"x": totals()})


@pytest.mark.long("another run of Spark's tasks")
def test_a_driver_that_ends_between_two_frames_is_followed_by_one_that_computes_both(
    books: Books, spark: SparkSession
) -> None:
    applied(books)
    job = Job(books, spark)
    good = job.reload.frames[job.name("totals")]

    def broken(frame: DataFrame) -> DataFrame:
        raise RuntimeError("gone")

    job.reload.frames[job.name("totals")] = broken
    driver = job.reload.open()
    with pytest.raises(RuntimeError, match="gone"):
        job.reload.run(driver)
    assert job.reload.runs.get(driver.run.id).state == "staged"
    strays = books.shop.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'frame\\_%'")
    assert strays[0][0] > 0, "the tasks of the first had committed"
    job.reload.frames[job.name("totals")] = good
    job.reload.run(job.reload.take_over(driver.run.id))
    assert books.rows() == booked(RECORDS, by=2)
    assert job.handled == []
    assert books.shop.schemas() == []


ONE_ROW = pa.RecordBatch.from_pydict({"account": [1], "total": [1], "records": [1]})


def written(books: Books, run: UUID, staging: str, batches: Sequence[pa.RecordBatch] = (ONE_ROW,)) -> list[int]:
    """How many rows of the totals a task reports as written."""
    schema = books.shop.schema
    part = Part({"url": {"$env": DATABASE.name}}, schema, run, (staging, "t1"), (schema, "totals"))
    [reported] = part.write(batches)
    rows: list[int] = reported.to_pydict()["rows"]
    return rows


@pytest.mark.long
def test_a_worker_that_is_killed_and_a_copy_that_commits_too_do_no_harm(
    books: Books, spark: SparkSession, tmp_path: Path
) -> None:
    marker = str(tmp_path / "marker")

    def deadly(amount: int) -> int:
        import os
        import signal

        if amount == 66:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return amount

    applied(books)
    job = Job(books, spark)
    plain, sums = bookings(), totals()

    def twice(frame: DataFrame) -> DataFrame:
        run = job.reload.runs.list()[0]
        assert written(books, run.id, run.staging_schema) == [1], "committed, and no answer reports it"
        return sums(frame)

    job.reload.frames[job.name("bookings")] = lambda frame: plain(frame).withColumn(
        "amount", F.udf(deadly, "bigint", useArrow=False)("amount")
    )
    job.reload.frames[job.name("totals")] = twice
    driver = job.reload.open()
    job.reload.run(driver)
    assert Path(marker).exists(), "nobody was killed"
    assert books.rows()[1] == booked(RECORDS, by=2)[1]


def test_a_part_of_a_frame_is_refused_by_a_run_that_continued_without_it(books: Books, spark: SparkSession) -> None:
    from seekpoint.jobs.staging.task_errors import SparkTaskError

    with pytest.raises(SparkTaskError, match="continued without this part of a frame"):
        written(books, uuid4(), "nowhere")
    assert written(books, uuid4(), "nowhere", []) == [0], "nothing to write is no transaction"


@pytest.mark.long
def test_rows_that_the_table_refuses_end_the_run(books: Books, spark: SparkSession) -> None:
    applied(books)
    job = Job(books, spark)
    job.reload.frames[job.name("bookings")] = bookings(by=1_000)
    driver = job.reload.open()
    with pytest.raises(ReloadRefused, match=r"a row of the frame of .*\.bookings cannot be written: CheckViolation"):
        job.reload.run(driver)
    assert job.reload.runs.get(driver.run.id).state == "failed"
    job = Job(books, spark)
    job.reload.frames[job.name("bookings")] = lambda frame: frame.select("offset")
    with pytest.raises(ConfigError, match="has columns that the table has not: offset"):
        job.reload.run(job.reload.open())


def test_agreeing_frames_pass_and_others_are_shown_with_rows(books: Books, spark: SparkSession) -> None:
    records = [
        raw(value.encode(), topic=books.shop.topic, offset=n, key=key.encode())
        for n, (key, value) in enumerate(RECORDS)
        if value is not None
    ]
    pipeline = books.pipeline(by_core(books.shop.schema, 2))
    names = [f"{books.shop.schema}.{name}" for name in ("bookings", "totals")]
    frames = dict(zip(names, (bookings(), totals()), strict=True))
    assert_reload_agrees(pipeline, frames, records, spark=spark, engine=books.engine)
    with pytest.raises(AssertionError, match=r"totals: the pipeline and its frame do not agree: 7 rows only") as shown:
        assert_reload_agrees(
            pipeline, {**frames, names[1]: totals(by=3)}, records, spark=spark, engine=books.engine.url
        )
    assert "columns: account, total, records\n  pipeline: (0, " in str(shown.value)
    assert "and 2 more" in str(shown.value)
    assert "bookings" not in str(shown.value)
    with pytest.raises(ConfigError, match="for all of its tables"):
        assert_reload_agrees(pipeline, {names[0]: bookings()}, records, spark=spark, engine=books.engine)
    assert books.rows() == ([], [])
    assert books.shop.execute("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'seekpoint_trial%'") == []
