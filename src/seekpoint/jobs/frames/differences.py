"""The rows in which a SparkPipeline's tables differ from the rebuilt ones, as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from seekpoint.jobs.frames.bound_pipeline import BoundPipeline
from seekpoint.jobs.frames.inputs import described, exported, tasks_of
from seekpoint.jobs.reload.compare import DIFFERENT_KEY, Report, row_texts
from seekpoint.jobs.tables.staging_schema import StagingTables
from seekpoint.jobs.tables.targets import Path
from seekpoint.runs.run import transaction

_TEXT = "CASE WHEN num_nulls({column}) = 0 THEN concat({column}) END AS {its}"  # a cast drops a char(n)'s blanks
_JSON = {"mode": "FAILFAST", "maxStringLen": str(2**31 - 1)}  # by default, 20 million characters and more become NULL
_MAPS = ("key", "live", "rebuilt")


class DifferingRows:
    """The rows in which the tables of one run differ."""

    def __init__(self, bound: BoundPipeline) -> None:
        self._bound = bound
        self._stored: dict[str, Path] = {}

    def store(self, tables: StagingTables) -> None:
        """Store a table's rows as text, in the snapshot of its comparison: live rows may change afterwards."""
        tables.run(
            "CREATE {unlogged} TABLE {shown} AS "
            "SELECT replace(diff.{kind}, {different_key}, 'different') AS kind, "
            "{diff_key} AS key, {live_row} AS live, {built_row} AS rebuilt "
            "FROM {diff} AS diff LEFT JOIN {live} AS live USING ({key}) LEFT JOIN {built} AS built USING ({key})",
            different_key=DIFFERENT_KEY,
            diff_key=row_texts(tables.target.key, "diff", _TEXT),
            live_row=row_texts(tables.columns, "live", _TEXT),
            built_row=row_texts(tables.columns, "built", _TEXT),
        )
        self._stored[tables.target.name] = tables.shown

    def frames(self, report: Report) -> Mapping[str, DataFrame]:
        """A DataFrame for each table that differs. Its rows are kept by Spark's executors, not by the run's tables."""
        spark, plan, engine = self._bound.spark, self._bound.plan, self._bound.engine
        stored = {table.table: self._stored[table.table] for table in report.tables if not table.is_empty}
        if not stored:
            return {}
        with transaction(engine, plan["schema"]) as tx:
            inputs = [described(tx.connection, name, *path) for name, path in stored.items()]
        kept = {}
        with exported(engine, plan["schema"], inputs) as (snapshot, connection):
            for input_ in inputs:
                rows = input_.frame(spark, {**plan, **snapshot}, tasks_of(connection, input_, spark))
                maps = [F.from_json(column, "map<string,string>", _JSON).alias(column) for column in _MAPS]
                kept[input_.name] = rows.select("kind", *maps).localCheckpoint()
        return kept
