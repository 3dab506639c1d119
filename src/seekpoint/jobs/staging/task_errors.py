"""Errors that end a staging: passed from a task to the driver as text, and stored in the run's schema."""

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
    RangeLost,
    RangeStuck,
    ReloadOver,
    ReloadRefused,
    SeekpointError,
    TopicRecreated,
)
from seekpoint.jobs.run import Tx, transaction
from seekpoint.jobs.tables.sql_templates import rows, run
from seekpoint.jobs.tables.staging_schema import is_there, unlogged
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.records import Partition

#: Errors that a retry of the task does not pass. The driver decides whether one ends the run, too: a file that is
#: damaged can be brought back.
ENDS_STAGING = (ArchiveDamaged, ConfigError, RangeLost, RangeStuck, ReloadOver, ReloadRefused, TopicRecreated)

_TABLE = "task_errors"
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


def error_as_text(error: SeekpointError) -> str:
    """The error as text, from which :func:`error_of` makes it again."""
    state = {
        key: [*value] if isinstance(value, tuple) else value
        for key, value in vars(error).items()
        if isinstance(value, str | int | tuple) or value is None
    }
    return json.dumps([type(error).__name__, str(error), state], default=str)


def error_of(text_: str) -> SeekpointError:
    """The error of which :func:`error_as_text` is the text."""
    kind_, message, state = json.loads(text_)
    kind: Any = getattr(errors, kind_)
    ending: SeekpointError = kind.__new__(kind)
    Exception.__init__(ending, message)
    for key, value in state.items():
        made = Partition(*value) if key == "partition" else tuple(value) if isinstance(value, list) else value
        setattr(ending, key, made)
    return ending


def make_task_errors(tx: Tx, staging_schema: str) -> None:
    """Create the table in which a run's tasks report what ends it."""
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job text NOT NULL, "
        "error text NOT NULL)",
        unlogged=unlogged(staging_schema),
        table=(staging_schema, _TABLE),
    )


def report_task_error(engine: Engine, schema: str, run_id: UUID, job: str, error: SeekpointError) -> None:
    """Report it to the driver of this job, which looks each second; there is no report to a run that is gone."""
    with transaction(engine, schema) as tx:
        of = tx.execute(RELOAD_RUN["get_run"], run=run_id).one_or_none()
        if of is not None and is_there(tx.connection, table := (of.staging_schema, _TABLE)):
            statement = "INSERT INTO {table} (job, error) VALUES ({job}, {error})"
            run(tx.connection, statement, table=table, job=job, error=error_as_text(error))


def task_errors(tx: Tx, staging_schema: str, job: str) -> list[SeekpointError]:
    """What tasks of this job have reported, in order.

    A task of a job that was cancelled may report its error while the next job of the run is staging.
    """
    if not is_there(tx.connection, table := (staging_schema, _TABLE)):
        return []
    found = rows(tx.connection, "SELECT error FROM {table} WHERE job = {job} ORDER BY id", table=table, job=job)
    return [error_of(text) for (text,) in found]


def missing_module(error: BaseException) -> ConfigError | None:
    """The remedy where Spark's exception says that its workers could not import what a task is made of; else None."""
    if (found := _NO_MODULE.search(str(error))) is None:
        return None
    ending = ConfigError(
        f"Spark's Python workers have no module {found[1]!r} (this process may have it): install it for the executors' "
        "Python, or give it to the session (spark.submit.pyFiles)"
    )
    ending.__cause__ = error
    return ending
