"""Checks that frames merge: their rows do not depend on how records are divided into micro-batches."""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from seekpoint.errors import ConfigError, required
from seekpoint.pipeline.frames import SparkPipeline
from seekpoint.records import Partition, RawRecord
from seekpoint.sinks.accumulate import Accumulate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from seekpoint.jobs.frames.binding import BoundFrame

_SHOWN = 5  # rows in a message


def assert_frames_merge(
    spark: SparkSession,
    pipeline: SparkPipeline,
    records: Sequence[RawRecord],
    *,
    inputs: Mapping[str, DataFrame] = MappingProxyType({}),
    cuts: int = 5,
    seed: int | None = None,
) -> None:
    """Check ``cuts`` times that frames make the same rows from all records together and from random pieces.

    ``records`` are made by :func:`raw`, each with another offset; omits those that cannot be decoded. Refuses a plan
    that a run would refuse at its start (ConfigError). The check finds faults that no plan shows: a Python function
    that depends on other rows, or on their number. ``inputs`` has a DataFrame for each input of the pipeline. Needs
    neither database nor brokers.

    Raises AssertionError, which names the frame, the pieces, the differing rows, and the ``seed`` that repeats them.
    """
    with required("Spark needs pyspark", "spark"):
        from seekpoint.jobs.frames.binding import bind  # noqa: PLC0415 -- pyspark
        from seekpoint.jobs.frames.records import RecordsSource, columns, decoded  # noqa: PLC0415
    _check(records)
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    chance = random.Random(seed)  # noqa: S311 -- a test's
    if missing := [name for name in pipeline.inputs if name not in inputs]:
        raise ConfigError(f"{pipeline!r} has the input {missing[0]!r}: give a DataFrame for it, inputs={{...}}")
    empty = RecordsSource.frame(spark, {"columns": columns(pipeline).jsonValue(), "tasks": []})
    frames, _ = bind(pipeline, empty, inputs)

    def made_of(frame: BoundFrame, some: Sequence[RawRecord]) -> list[Any]:
        return frame.rows(spark.createDataFrame(decoded(pipeline, some)), inputs).collect()

    expected = {frame.name: _merged(frame, made_of(frame, records)) for frame in frames}
    for _ in range(cuts):
        pieces = list(_cut(records, chance))
        for frame in frames:
            merged = _merged(frame, [row for piece in pieces for row in made_of(frame, piece)])
            if merged != expected[frame.name]:
                raise AssertionError(_difference(frame.name, pieces, merged, expected[frame.name]) + f"; seed={seed}")


def _check(records: Sequence[RawRecord]) -> None:
    places = Counter((record.topic, record.partition, record.offset) for record in records)
    if twice := [place for place, count in places.items() if count > 1]:
        topic, partition, offset = twice[0]
        raise ConfigError(f"two records are at {topic}/{partition} offset {offset}: give each its own offset")
    if len(records) < 2:
        raise ConfigError("give at least two records: one cannot be split")


def _cut(records: Sequence[RawRecord], chance: random.Random) -> Iterator[list[RawRecord]]:
    """Cut the records into two to five pieces, each with the next records of every partition; some may be empty."""
    count = chance.randint(2, 5)
    pieces: list[list[RawRecord]] = [[] for _ in range(count)]
    by_partition: dict[Partition, list[RawRecord]] = {}
    for record in sorted(records, key=lambda entry: entry.offset):
        by_partition.setdefault(Partition(record.topic, record.partition), []).append(record)
    for log in by_partition.values():
        places = sorted(chance.randint(0, len(log)) for _ in range(count - 1))
        for piece, start, end in zip(pieces, [0, *places], [*places, len(log)], strict=True):
            piece.extend(log[start:end])
    return iter(pieces)


def _merged(frame: BoundFrame, rows: Sequence[Any]) -> Counter[Any]:
    """Count each row, after merging sums to one row for each key. Rows may hold lists and dicts."""
    sink = frame.sink
    if not isinstance(sink, Accumulate):
        return Counter(map(repr, rows))
    merges: dict[str, Callable[[Any, Any], Any]] = {
        **dict.fromkeys(sink.add, operator.add),
        **dict.fromkeys(sink.least, min),
        **dict.fromkeys(sink.most, max),
    }
    table: dict[Any, dict[str, Any]] = {}
    for row in rows:
        sums = table.setdefault(tuple(row[column] for column in sink.key), dict.fromkeys(merges))
        for column, merge in merges.items():
            old, new = sums[column], row[column]
            sums[column] = new if old is None else old if new is None else merge(old, new)
    return Counter(repr((*key, *map(_shown, sums.values()))) for key, sums in table.items())


def _shown(value: Any) -> Any:
    """A sum of floats without its last digits, which depend on the order."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _difference(frame: str, pieces: Sequence[Sequence[RawRecord]], merged: Counter[Any], expected: Counter[Any]) -> str:
    sizes = " + ".join(str(len(piece)) for piece in pieces)
    missing, extra = [*(expected - merged)], [*(merged - expected)]
    shown = [f"only from all records: {', '.join(missing[:_SHOWN])}"] if missing else []
    shown += [f"only from the pieces: {', '.join(extra[:_SHOWN])}"] if extra else []
    return f"{frame} makes different rows from {sizes} records than from all of them together; {'; '.join(shown)}"
