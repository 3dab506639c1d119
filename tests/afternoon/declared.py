"""The pipelines of the afternoon, which tasks import by name, and their tables. Each has its group and its tables."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's own pages have it

from afternoon.facts import COLUMNS
from seekpoint import Accumulate, Append, Json, Pipeline, Record, Text, Upsert
from seekpoint.spark import Frame, SparkPipeline

TOPIC = "afternoon"
GROUPS = {"worker": "newest", "frames": "newest", "stream": "", "query": ""}
"""Each group, whose tables' names begin with it, and the table that only some of them have."""

_ENTRIES = """
CREATE TABLE {group}_entries (n bigint NOT NULL, name text NOT NULL, big bigint NOT NULL, amount numeric NOT NULL,
    at timestamptz NOT NULL, day date NOT NULL, words text NOT NULL, note text, blob bytea NOT NULL,
    numbers bigint[] NOT NULL, nested jsonb NOT NULL, flag boolean, ratio double precision NOT NULL,
    cents bigint NOT NULL, part int NOT NULL, pos bigint NOT NULL)
"""
_KEYED = """
ALTER TABLE {group}_entries ADD PRIMARY KEY (n);
CREATE TABLE {group}_newest (name text PRIMARY KEY, n bigint NOT NULL, words text NOT NULL, amount numeric NOT NULL,
    pos bigint)
"""
_SUMS = """
CREATE TABLE {group}_sums (bucket text PRIMARY KEY, cents bigint NOT NULL, facts bigint NOT NULL, first_day date,
    last_at timestamptz, last_n bigint)
"""


def tables(group: str) -> str:
    """The group's tables; entries have a unique key only where rows are compared by it, by a reload."""
    return ";".join([_ENTRIES, _SUMS, *([_KEYED] if GROUPS.get(group) else [])]).format(group=group)


class Nested(msgspec.Struct):
    big: int
    words: str
    items: list[str]


class Value(msgspec.Struct):
    n: int
    name: str
    big: int
    amount: Decimal
    at: datetime
    day: date
    words: str
    note: str | None
    blob: bytes
    numbers: list[int]
    nested: Nested
    flag: bool | None
    ratio: str  # JSON has neither NaN nor infinity
    cents: int


def _entry(record: Record[Value | None, str | None]) -> dict[str, Any] | None:
    value = record.value
    return None if value is None else {**msgspec.structs.asdict(value), "ratio": float(value.ratio)}


def _sum(record: Record[Value | None, str | None]) -> dict[str, Any]:
    value = record.value
    assert value is not None
    return {
        "bucket": f"b{value.n % 7}",
        "cents": value.cents,
        "facts": 1,
        "first_day": value.day,
        "last_at": value.at,
        "last_n": value.n,
    }


def _entries(group: str, **more: Any) -> Append[Any]:
    return Append(f"{group}_entries", columns=COLUMNS, provenance={"partition": "part", "offset": "pos"}, **more)


def _newest(group: str, **more: Any) -> Upsert[Any]:
    return Upsert(f"{group}_newest", key=["name"], columns=["name", "n", "words", "amount"], **more)


def _sums(group: str, **more: Any) -> Accumulate[Any]:
    columns: dict[str, Any] = {"add": ["cents", "facts"], "least": ["first_day"], "most": ["last_at", "last_n"]}
    return Accumulate(f"{group}_sums", key=["bucket"], **columns, **more)


def every_fact(facts: DataFrame) -> DataFrame:
    """Each record as a row."""
    return facts.withColumn("ratio", F.col("ratio").cast("double")).select("partition", "offset", *COLUMNS)


def named(facts: DataFrame) -> DataFrame:
    """The columns of the newest row of each name."""
    return facts.select("partition", "offset", "name", "n", "words", "amount")


def summed(facts: DataFrame) -> DataFrame:
    """Sums by bucket."""
    bucket = F.concat(F.lit("b"), (F.col("n") % 7).cast("string")).alias("bucket")
    return facts.groupBy(bucket).agg(
        F.sum("cents").alias("cents"),
        F.count("*").alias("facts"),
        F.min("day").alias("first_day"),
        F.max("at").alias("last_at"),
        F.max("n").alias("last_n"),
    )


def _frames(group: str) -> SparkPipeline:
    frames = {"entries": Frame(every_fact, _entries(group)), "sums": Frame(summed, _sums(group))}
    if GROUPS[group]:
        frames["newest"] = Frame(named, _newest(group, offset_column="pos"))
    return SparkPipeline(group, topics=TOPIC, value=Json(Value), on_poison="dead_letter", frames=frames)


worker = Pipeline(
    "worker",
    topics=TOPIC,
    value=Json(Value, tombstones=True),
    key=Text(),
    sinks=[_entries("worker", row=_entry), _newest("worker"), _sums("worker", row=_sum, subtract=lambda _: None)],
)
frames, stream, query = map(_frames, ("frames", "stream", "query"))
