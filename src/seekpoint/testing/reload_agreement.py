"""Whether a handler and the DataFrames that stand in for it say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from psycopg import sql as ident
from sqlalchemy import URL, Engine

from seekpoint.jobs.run import Tx
from seekpoint.jobs.staging.savepoints import Parts
from seekpoint.jobs.tables.create_like import Sequences, make_like
from seekpoint.jobs.tables.frame_targets import Frame, resolve_frames
from seekpoint.jobs.tables.handler_copies import Redirect, make_copy, owned_columns
from seekpoint.jobs.tables.sql_templates import name, rows, run
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.jobs.tables.targets import PipelineSource, Target, aimed, aimed_pipeline, sources, targets
from seekpoint.kafka.ranges import Piece
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import RawRecord
from seekpoint.sinks.arrow import copy_into

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLES = 5  # rows of each side that are shown


def assert_reload_agrees(
    pipeline: Pipeline,
    frames: Mapping[str, Frame],
    records: Iterable[RawRecord],
    *,
    spark: SparkSession,
    engine: Engine | URL | str,
) -> None:
    """Raise AssertionError, with rows, unless frames make of these records what the pipeline makes of them.

    The records go through the pipeline's codecs, sinks and handler, as in a reload, and as a DataFrame through
    ``frames``, as :class:`~seekpoint.jobs.reload.Reload` takes them; all in one transaction, which is rolled back. The
    tables must be there; their rows are neither read nor written. Numbers that the database draws are not compared.
    Raises ConfigError where a table has no frame, WroteLiveTable, and ReloadRefused where a record cannot be applied.
    """
    given, [source] = list(records), sources([pipeline])
    made = postgres_engine(engine)
    connection = HandlerConnection(made)
    transaction = connection.begin()
    try:
        trial = _Trial(connection, source)
        wanted = resolve_frames(connection, [source], trial.targets, frames)
        trial.handle(given)
        told = [said for _, target, frame in wanted if (said := trial.compare(target, frame, spark, given))]
    finally:
        transaction.rollback()
        connection.put_back()
        if not isinstance(engine, Engine):
            made.dispose()  # it was made here
    if told:
        raise AssertionError("\n".join(told))


class _Trial:
    """Copies of one pipeline's tables in a schema that is rolled back."""

    def __init__(self, connection: HandlerConnection, source: PipelineSource) -> None:
        self._connection, self._source = connection, source
        self._staging = Staging(f"seekpoint_trial_{uuid4().hex[:12]}")
        self.targets = targets(connection, [source])
        run(connection, "CREATE SCHEMA {schema}", schema=name(self._staging.schema))
        for target in self.targets:
            make_copy(connection, self._staging, target, Sequences.OWN)

    def handle(self, records: Sequence[RawRecord]) -> None:
        """The pipeline's part, on the copies."""
        sinks = {feed.number: aimed(feed.sink, self._staging.table(target))
                 for target in self.targets for feed in target.feeds}  # fmt: skip
        pipeline = aimed_pipeline(self._source.pipeline, [sinks[n] for n in sorted(sinks)])
        shadow = Redirect(self._source.group, self._staging.schema, self.targets)
        assert pipeline.handle is not None
        pipeline.handle = shadow.handler(pipeline.handle)
        parts = Parts(self._connection, pipeline)
        parts.take(Piece(list(records)))
        parts.flush()
        shadow.check(Tx(self._connection, DEFAULT_SCHEMA), reading=False)  # the copies were made in here

    def compare(self, target: Target, frame: Frame, spark: SparkSession, records: Sequence[RawRecord]) -> str | None:
        """What there is to say of one table; None where both agree."""
        from seekpoint.jobs.spark.data_sources import SCHEMA  # noqa: PLC0415 -- pyspark

        result = frame(spark.createDataFrame(list(map(_row, records)), SCHEMA))
        computed = (self._staging.schema, f"frame_{target.staged}")
        columns = owned_columns(self._connection, self._staging, target)
        make_like(self._connection, computed, target.path, Sequences.IGNORED, prefix=computed[1])
        copy_into(self._connection, computed, result.toArrow())
        handled = self._staging.table(target)
        mine, theirs = self._without(target, columns, handled, computed), self._without(
            target, columns, computed, handled
        )  # fmt: skip
        if not mine and not theirs:
            return None
        return (
            f"{target.name}: the pipeline and its frame do not agree: {len(mine)} rows only the pipeline makes, "
            f"{len(theirs)} only the frame.\n  columns: {', '.join(columns)}{_shown('pipeline', mine)}"
            f"{_shown('frame', theirs)}"
        )

    def _without(
        self, target: Target, columns: Sequence[str], these: tuple[str, str], those: tuple[str, str]
    ) -> list[tuple[Any, ...]]:
        """The rows that only the first table has."""
        plain = {column.name for column in target.columns if column.is_exact}
        said = ident.SQL(", ").join(
            name(one) if one in plain else ident.SQL('{}::text COLLATE "C"').format(name(one)) for one in columns
        )
        return rows(
            self._connection,
            "SELECT {said} FROM {these} EXCEPT ALL SELECT {said} FROM {those} ORDER BY {order}",
            said=said,
            these=name(*these),
            those=name(*those),
            order=ident.SQL(", ").join(ident.Literal(n) for n in range(1, len(columns) + 1)),
        )


def _shown(side: str, found: Sequence[tuple[Any, ...]]) -> str:
    more = f"\n  {side}: … and {len(found) - SAMPLES} more" if len(found) > SAMPLES else ""
    return "".join(f"\n  {side}: {row}" for row in found[:SAMPLES]) + more


def _row(record: RawRecord) -> tuple[Any, ...]:
    """As ``seekpoint.spark.read`` gives it."""
    return (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        [tuple(header) for header in record.headers],
    )
