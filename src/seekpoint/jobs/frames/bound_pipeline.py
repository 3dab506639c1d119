"""Binds a SparkPipeline to a Spark session, a database and brokers: checks its frames and inputs, and plans tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from seekpoint.jobs.frames.binding import BoundFrame, bind
from seekpoint.jobs.frames.declarations import load_spark_pipeline, name_of
from seekpoint.jobs.frames.inputs import Input, described, exported
from seekpoint.jobs.frames.records import RecordsSource, columns
from seekpoint.jobs.frames.table_checks import checked_tables
from seekpoint.jobs.spark.session import require_this_python
from seekpoint.jobs.spark.settings import Env, portable, require_no_secret, resolved
from seekpoint.jobs.spark.task import task_plan
from seekpoint.jobs.staging.consolidate import require_width
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.kafka.ranges import MOST_OFFSETS
from seekpoint.ledger.schema_revision import check
from seekpoint.pipeline.frames import SparkPipeline
from seekpoint.postgres.engine import postgres_engine
from seekpoint.runs.run import transaction


class BoundPipeline:
    """A pipeline of DataFrames on one session. The constructor does no I/O; call :meth:`bind` before any other use.

    ``kafka`` is the workers' configuration, with :class:`Env` for passwords; ``database`` names the environment
    variable with the ledger's URL. A task reads at most ``range_records`` offsets. ``plan`` describes servers and
    pipeline to tasks; ``source`` declares the tables.
    """

    frames: Sequence[BoundFrame]
    inputs: Sequence[Input]
    source: PipelineSource

    def __init__(
        self,
        spark: SparkSession,
        pipeline: SparkPipeline | str,
        kafka: Mapping[str, Any],
        *,
        database: Env | str,
        schema: str,
        range_records: int = MOST_OFFSETS,
    ) -> None:
        require_width(range_records)
        self.range_records = range_records
        self.declared = load_spark_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
        self.spark, self._schema = spark, schema
        carried = portable(kafka)
        require_no_secret(spark, database, carried)
        self.kafka = resolved(carried)
        self.engine = postgres_engine(database.value() if isinstance(database, Env) else database)
        name = pipeline if isinstance(pipeline, str) else None
        if not self.declared.is_raw and not isinstance(pipeline, str):  # executors import it to decode
            name = name_of(pipeline)
        self._name = name or ""
        self.plan: dict[str, Any] = {
            **task_plan(database, schema),
            "kafka": carried,
            "group": self.declared.group,
            "pipeline": None if self.declared.is_raw else name,
        }

    def bind(self) -> None:
        """Check frames, inputs and tables; nothing is claimed or read.

        Raises ConfigError if frames, inputs and tables do not fit together, FrameFailed if a frame raises,
        SchemaMismatch for a ledger of another revision, and database errors unchanged.
        """
        require_this_python(self.spark)
        self.plan["columns"] = columns(self.declared).jsonValue()
        with transaction(self.engine, self._schema) as tx:
            check(tx.connection, self._schema)
            self.inputs = [described(tx.connection, name, *path) for name, path in self.declared.inputs.items()]
        records = RecordsSource.frame(self.spark, {**self.plan, "tasks": []})
        inputs = {table.name: table.frame(self.spark, self.plan, []) for table in self.inputs}
        self.frames, declared = bind(self.declared, records, inputs)
        self.source = PipelineSource(self._name, declared)
        with transaction(self.engine, self._schema) as tx:
            checked_tables(tx.connection, self.source, self.frames)
        with exported(self.engine, self._schema, self.inputs):
            pass  # raises ConfigError if the role may not read an input
