"""The ledger, its dead letters and its runs as DataFrames, each read with one database query. Imports pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.settings import Env
from seekpoint.jobs.spark.source_options import ledger_options
from seekpoint.ledger.sql import SPARK, Query
from seekpoint.postgres.engine import postgres_engine
from seekpoint.runs.run import transaction

FETCH_ROWS = 1_000  # rows in memory

TABLES: Mapping[str, tuple[Query, str]] = {
    "ledger": (
        SPARK["ledger"],
        """consumer_group string, topic string, partition int, topic_id string, first_offset bigint,
        next_offset bigint, leader_epoch int, epoch bigint, owner string, claimed_at timestamp,
        committed_at timestamp, record_time timestamp, attempt_offset bigint, attempts int, attempt_error string,
        retry_at timestamp, stop_kind string, stop_offset bigint, stop_message string, stopped_at timestamp""",
    ),
    "dead_letters": (
        SPARK["dead_letters"],
        """id bigint, consumer_group string, topic string, topic_id string, partition int, offset bigint,
        timestamp_ms bigint, key binary, value binary, header_names array<binary>, header_values array<binary>,
        state string, cause string, error string, traceback string, sqlstate string, attempts int, version int,
        dead_lettered_at timestamp, replays int, replayed_at timestamp, replay_error string, closed_at timestamp,
        closed_by string, closed_reason string, edited_value binary, edited_at timestamp, edited_by string,
        edited_reason string""",
    ),
    "runs": (
        SPARK["runs"],
        """id string, strategy string, state string, groups array<string>, tables array<string>,
        pipelines array<string>, version_from array<int>, version_to array<int>, driver string,
        driver_epoch bigint, staging_schema string, actor string, reason string, error string, differences string,
        opened_at timestamp, changed_at timestamp""",
    ),
}
"""Each table's statement and its columns, in the statement's order."""


class LedgerTable(DataSourceReader):
    """One of :data:`TABLES`. Each Spark query reads its present rows in one task.

    The task needs the environment variable with the database's URL.
    """

    def __init__(self, table: str, database: Env, schema: str) -> None:
        self._table, self._database, self._schema = table, database, schema

    @classmethod
    def of(cls, table: str, options: Mapping[str, str]) -> LedgerTable:
        """The table that the options name. Raises ConfigError."""
        if table not in TABLES:
            raise ConfigError(f"table must be one of {', '.join(TABLES)}, got {table!r}")
        return cls(table, *ledger_options(options))

    def schema(self) -> str:
        return TABLES[self._table][1]

    def reader(self) -> DataSourceReader:
        return self

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002 -- the only one
        engine = postgres_engine(self._database.value())
        try:
            with transaction(engine, self._schema) as tx:
                yield from map(tuple, tx.stream(TABLES[self._table][0], FETCH_ROWS))
        finally:
            engine.dispose()
