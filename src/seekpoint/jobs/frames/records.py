"""The records' DataFrame of one run: each task reads and decodes ranges, and dead-letters undecodable records.

A task that has read a range to its end commits the range's dead letters as an attempt of the run. Spark may read a
range any number of times, because a plan may contain it several times, and tasks may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.types import StructType
from sqlalchemy import Engine

from seekpoint.errors import ConfigError, Poison
from seekpoint.jobs.export.files import columns_of, in_batches
from seekpoint.jobs.frames.columns import ARROW, SCHEMA, kinds_of, spark_column
from seekpoint.jobs.frames.declarations import load_spark_pipeline
from seekpoint.jobs.frames.plan import RECORDS
from seekpoint.jobs.spark.columns import ROWS
from seekpoint.jobs.spark.data_sources import Plan, TaskSource
from seekpoint.jobs.spark.pipeline_import import import_pipeline
from seekpoint.jobs.spark.settings import range_of, resolved
from seekpoint.jobs.spark.task import task
from seekpoint.jobs.staging.savepoints import dead_letter_of
from seekpoint.jobs.staging.stage import (
    FRAMES_STAGING,
    Staged,
    edited,
    edits_within,
    keep_dead_letters,
    left_out_of,
    new_attempt,
    staging_run,
    store_attempt,
)
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.jobs.tables.targets import aimed_pipeline
from seekpoint.kafka.ranges import Range, read_range
from seekpoint.pipeline.arrow.table import arrays_of
from seekpoint.pipeline.arrow.types import Kind
from seekpoint.pipeline.frames import RECORD, SparkPipeline
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import OnPoison
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import AnyRecord, Cause, NewDeadLetter, RawRecord
from seekpoint.runs.run import transaction
from seekpoint.worker.decode import decode_record
from seekpoint.worker.failed import Failed

_PLACE = pa.schema([ARROW.field(name) for name in RECORD])


class RecordsSource(TaskSource):
    """The data source ``seekpoint-records``, created by ``FrameStager``. A task reads ranges one after another."""

    format = RECORDS

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.options["plan"])["columns"])

    @classmethod
    def run(cls, plan: Plan, task_: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        if not task_:
            raise ConfigError(
                "a frame's function reads rows of the records (count, collect, isEmpty, checkpoint), but may only "
                "build a plan: a decision from these rows would depend on where micro-batches begin and end"
            )
        with task(plan) as engine:
            name = plan["pipeline"]
            decoder = RawDecoder() if name is None else Decoder(import_pipeline(name, load_spark_pipeline))
            for carried in task_:
                yield from _read(engine, plan, range_of(carried), decoder)


def columns(pipeline: SparkPipeline) -> StructType:
    """The columns of the records' DataFrame. Raises ConfigError for a field without a single Spark type."""
    if pipeline.is_raw:
        return SCHEMA
    schema = StructType([field for field in SCHEMA.fields if field.name in RECORD])
    for name, kind in kinds_of(pipeline.value.type).items():  # type: ignore[union-attr]  # checked by the declaration
        schema.add(name, spark_column(kind), kind.nullable)
    return schema


def _read(engine: Engine, plan: Plan, range_: Range, decoder: RawDecoder) -> Iterator[pa.RecordBatch]:
    """The range's records in batches. The attempt is stored only after Spark has taken the last batch."""
    run, group = UUID(plan["run"]), plan["group"]
    with transaction(engine, plan["schema"]) as tx:
        staging = Staging(staging_run(tx, run, FRAMES_STAGING).staging_schema)
        left_out = left_out_of(tx.connection, staging, group, range_)
        edits = edits_within(tx, group, {range_.partition: (range_.topic_id, range_.start, range_.end)})
        failed: list[NewDeadLetter] = []
        count = 0
        for records, unreadable in in_batches(read_range(resolved(plan["kafka"]), range_), ROWS):
            applicable = [record for record in edited(records, edits) if not left_out(record)]
            batch, failures = decoder.batch(applicable, unreadable)
            failed += failures
            count += batch.num_rows
            if batch.num_rows:
                yield batch
        decoder.keep(tx, staging, failed, range_)
        store_attempt(
            tx,
            run,
            Staged(new_attempt(range_), group, range_.partition, range_.start, range_.end, count, (), len(failed)),
            FRAMES_STAGING,
        )


def decoded(pipeline: SparkPipeline, records: Sequence[RawRecord]) -> pa.Table:
    """Decode these records to a table with the DataFrame's columns; skips undecodable records."""
    decoder = RawDecoder() if pipeline.is_raw else Decoder(pipeline, OnPoison.SKIP)
    batch, _ = decoder.batch(records, {})
    return pa.Table.from_batches([batch])


class RawDecoder:
    """Makes batches of undecoded records with Kafka's columns, for which no record can fail."""

    def batch(
        self, records: Sequence[RawRecord], unreadable: Mapping[int, Exception]
    ) -> tuple[pa.RecordBatch, list[NewDeadLetter]]:
        """The records as a batch, and dead letters of those that cannot be decoded."""
        return columns_of(records, unreadable, ARROW), []

    def keep(self, tx: Any, staging: Staging, failed: Sequence[NewDeadLetter], range_: Range) -> None:
        """Store undecodable records as dead letters of the run."""


class Decoder(RawDecoder):
    """Decodes values into the columns of their fields. Raises errors of the codec that no record caused."""

    def __init__(self, declared: SparkPipeline, on_poison: OnPoison | None = None) -> None:
        self._pipeline: Pipeline[Any, Any] = aimed_pipeline(declared.pipeline, [])
        self._pipeline.on_poison = on_poison or self._pipeline.on_poison
        self._writers = PipelineWriters(self._pipeline)
        self._kinds: dict[str, Kind] = kinds_of(declared.value.type)  # type: ignore[union-attr]  # as above
        fields = [pa.field(name, kind.type, kind.nullable) for name, kind in self._kinds.items()]
        self._schema = pa.schema([*_PLACE, *fields])

    def batch(
        self, records: Sequence[RawRecord], unreadable: Mapping[int, Exception]
    ) -> tuple[pa.RecordBatch, list[NewDeadLetter]]:
        failed: list[NewDeadLetter] = []
        good: list[tuple[RawRecord, AnyRecord]] = []
        for raw in records:
            try:
                good.append((raw, decode_record(self._writers, raw, unreadable.get(raw.offset)).record))
            except Failed as failure:
                failed.append(dead_letter_of(self._pipeline, raw, failure))
        while True:
            try:
                values = arrays_of([record for _, record in good], self._kinds)
                break
            except Poison as error:  # values that a column cannot hold, such as numbers of more than 64 bits
                bad = {record.offset for record in error.records}
                if not bad:
                    raise
                unfit = Failed(error, Cause.DECODE)
                failed += [dead_letter_of(self._pipeline, raw, unfit) for raw, _ in good if raw.offset in bad]
                good = [(raw, record) for raw, record in good if raw.offset not in bad]
        place = columns_of([raw for raw, _ in good], (), _PLACE)
        failed.sort(key=lambda dead_letter: dead_letter.record.offset)
        return pa.RecordBatch.from_arrays([*place.columns, *values], schema=self._schema), failed

    def keep(self, tx: Any, staging: Staging, failed: Sequence[NewDeadLetter], range_: Range) -> None:
        keep_dead_letters(tx, staging, self._pipeline, failed, {range_.partition.topic: range_.topic_id})
