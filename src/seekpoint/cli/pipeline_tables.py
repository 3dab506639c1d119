"""Compares the tables that a pipeline's sinks need with a database's, for ``db table`` and ``doctor``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, MetaData, Table, text

from seekpoint import remedies
from seekpoint.admin.findings import Finding, Level, problems_or_ok
from seekpoint.errors import ConfigError
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import one_line
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.suggested_table import FILLFACTOR, joined_table, suggested_table
from seekpoint.sinks.table_changes import table_changes


def sinks_by_table(pipeline: Pipeline) -> dict[str, list[Any]]:
    """The sinks that write each table, by the table's name."""
    sinks: dict[str, list[Any]] = {}
    for sink in pipeline.sinks:
        if isinstance(sink, TableSink):
            sinks.setdefault(".".join(sink.path), []).append(sink)
    return sinks


def suggested(pipeline: Pipeline, fillfactor: int = FILLFACTOR) -> dict[str, Table]:
    """Each table that the sinks need, by name. Raises ConfigError for an unknown type or contradictory sinks."""
    return {
        name: joined_table(
            [suggested_table(sink, pipeline.codecs_of(sink), MetaData(), fillfactor=fillfactor) for sink in sinks]
        )
        for name, sinks in sinks_by_table(pipeline).items()
    }


def table_findings(engine: Engine, target: str, pipeline: Pipeline) -> list[Finding]:
    """Findings about whether the tables take this pipeline's rows: statements that are missing, or a start's refusal.

    Waits at most two seconds for a lock; the transaction is rolled back.
    """
    try:
        with engine.connect() as look:
            look.execute(text("SET LOCAL lock_timeout = '2s'"))
            problems = _problems(look, target, pipeline)
    except Exception as error:
        if not is_transient(error):
            raise
        reason = one_line(error)
        problems = [Finding.of("tables", Level.WARNING, f"{target}: not checked: {reason}", "run doctor again")]
    return problems_or_ok("tables", problems, f"{target}: its tables take every row")


def _problems(look: Connection, target: str, pipeline: Pipeline) -> list[Finding]:
    try:
        tables = suggested(pipeline)
    except ConfigError as error:
        tables, problems = {}, [_finding(Level.WARNING, f"{target}: types were not compared", error, target)]
    else:
        problems = [
            Finding.of("tables", Level.FAILURE, f"{target}: {name} does not take every row", *map(_one_line, lacks))
            for name, table in tables.items()
            if (lacks := table_changes(look, table))
        ]
    if not any(problem.level is Level.FAILURE for problem in problems):
        try:
            pipeline.check_tables(look)
        except ConfigError as error:
            problems.append(_finding(Level.FAILURE, target, error, target))
    return problems


def _finding(level: Level, check: str, error: ConfigError, target: str) -> Finding:
    """The error as a finding; its text after the first semicolon is the remedy."""
    problem, _, remedy = remedies.for_pipeline(error.text, target).partition("; ")
    return Finding.of("tables", level, f"{check}: {problem}", remedy)


def _one_line(statement: str) -> str:
    return " ".join(statement.split())
