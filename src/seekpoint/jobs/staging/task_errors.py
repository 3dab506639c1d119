"""Errors that end staging: passed from a task to the driver as text, and stored in the run's schema."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

from sqlalchemy import Engine

from seekpoint import errors
from seekpoint.errors import (
    ArchiveDamaged,
    ConfigError,
    FrameFailed,
    RangeLost,
    RangeStuck,
    ReloadOver,
    ReloadRefused,
    SeekpointError,
    TopicRecreated,
)
from seekpoint.jobs.tables.sql_templates import rows, run
from seekpoint.jobs.tables.staging_schema import is_there, unlogged
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.records import Partition
from seekpoint.runs.run import Tx, transaction

#: Errors that would recur in a retry of the task. The driver decides whether one also ends the run: a damaged file,
#: for example, can be restored.
ENDS_STAGING = (
    ArchiveDamaged, ConfigError, FrameFailed, RangeLost, RangeStuck, ReloadOver, ReloadRefused, TopicRecreated,
)  # fmt: skip

_TABLE = "task_errors"
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_HOST = re.compile(r"\(TID \d+\) \((\S+) executor ")


def error_as_text(error: SeekpointError) -> str:
    """Serialize the error for :func:`error_of`."""
    state = {
        key: [*value] if isinstance(value, tuple) else value
        for key, value in vars(error).items()
        if isinstance(value, str | int | tuple) or value is None
    }
    return json.dumps([type(error).__name__, error.text, state], default=str)


def error_of(text_: str) -> SeekpointError:
    """The error that :func:`error_as_text` has serialized."""
    kind_, message, state = json.loads(text_)
    kind: Any = getattr(errors, kind_)
    ending: SeekpointError = kind.__new__(kind)
    Exception.__init__(ending, message)
    for key, value in state.items():
        attribute = Partition(*value) if key == "partition" else tuple(value) if isinstance(value, list) else value
        setattr(ending, key, attribute)
    return ending


def make_task_errors(tx: Tx, staging_schema: str) -> None:
    """Create the table in which tasks report errors that end the run."""
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job text NOT NULL, "
        "error text NOT NULL)",
        unlogged=unlogged(staging_schema),
        table=(staging_schema, _TABLE),
    )


def report_task_error(engine: Engine, schema: str, run_id: UUID, job: str, error: SeekpointError) -> None:
    """Store an error for this job's driver, which polls every second. Without its run, nothing is stored."""
    with transaction(engine, schema) as tx:
        row = tx.execute(RELOAD_RUN["get_run"], run=run_id).one_or_none()
        if row is not None and is_there(tx.connection, table := (row.staging_schema, _TABLE)):
            statement = "INSERT INTO {table} (job, error) VALUES ({job}, {error})"
            run(tx.connection, statement, table=table, job=job, error=error_as_text(error))


def task_errors(tx: Tx, staging_schema: str, job: str) -> list[SeekpointError]:
    """The errors that tasks of this job have reported, in order.

    Omits errors of other jobs, because a cancelled job's task may report one while the run's next job stages.
    """
    if not is_there(tx.connection, table := (staging_schema, _TABLE)):
        return []
    reports = rows(tx.connection, "SELECT error FROM {table} WHERE job = {job} ORDER BY id", table=table, job=job)
    return [error_of(text) for (text,) in reports]


def missing_module(error: BaseException) -> ConfigError | None:
    """A ConfigError with the remedy if Spark's Python workers could not import a module; otherwise None."""
    if (match := _NO_MODULE.search(str(error))) is None:
        return None
    host = _HOST.search(str(error))
    where = "" if host is None else f" on {host[1]}"
    ending = ConfigError(
        f"Spark's Python workers{where} have no module {match[1]!r} (this process may have it): install it in the "
        "executors' Python, or add it to the session (spark.submit.pyFiles)"
    )
    ending.__cause__ = error
    return ending
