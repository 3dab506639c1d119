"""The check of frames by random cuts finds what no plan shows, and names the seed that repeats it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from seekpoint import Append, Json
from seekpoint.errors import ConfigError
from seekpoint.spark import Frame, SparkPipeline
from seekpoint.testing import assert_frames_merge, raw


class Order(msgspec.Struct):
    id: int
    amount: int


RECORDS = [raw(b'{"id": %d, "amount": %d}' % (n, n * 7), partition=n % 2, offset=n // 2) for n in range(40)] + [
    raw(b"no json", offset=99)
]


def pipeline(function: Any, **options: Any) -> SparkPipeline:
    return SparkPipeline("orders", topics="topic", frames={"orders": Frame(function, Append("orders"))}, **options)


def counted(orders: DataFrame) -> DataFrame:
    """Each row has how many came before it in its task: no plan shows that."""

    def number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in batches:
            yield batch.set_column(4, "amount", pa.array(range(before, before + batch.num_rows), pa.int64()))
            before += batch.num_rows

    rows = orders.select("topic", "partition", "offset", "id", "amount").coalesce(1)
    return rows.mapInArrow(number, rows.schema)


def test_frames_that_work_row_by_row_pass(spark: SparkSession) -> None:
    assert_frames_merge(spark, pipeline(lambda r: r.where("amount > 20"), value=Json(Order)), RECORDS, cuts=2)
    assert_frames_merge(spark, pipeline(lambda r: r.selectExpr("partition", "offset", "value")), RECORDS, cuts=1)


def test_a_frame_that_counts_rows_is_found_and_the_seed_repeats_it(spark: SparkSession) -> None:
    with pytest.raises(AssertionError, match=r"makes different rows from .* records than from all of them") as caught:
        assert_frames_merge(spark, pipeline(counted, value=Json(Order)), RECORDS)
    message = str(caught.value)
    seed = re.search(r"seed=(\d+)", message)
    assert seed is not None
    with pytest.raises(AssertionError) as again:
        assert_frames_merge(spark, pipeline(counted, value=Json(Order)), RECORDS, seed=int(seed[1]))
    assert str(again.value) == message


def test_what_cannot_be_checked_is_refused(spark: SparkSession) -> None:
    sums = pipeline(lambda r: r.groupBy("id").count(), value=Json(Order))
    for declared, records, message in (
        (sums, RECORDS, "it aggregates rows"),
        (pipeline(lambda r: r), RECORDS[:1], "at least two records"),
        (pipeline(lambda r: r), RECORDS[:1] * 2, "two records are at topic/0 offset 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            assert_frames_merge(spark, declared, records)
