"""The setup of every task that uses the database: import path, engine, and the report of errors that end the run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Engine

from seekpoint.errors import KafkaUnavailable
from seekpoint.jobs.spark.settings import Env, portable, resolved
from seekpoint.jobs.staging.task_errors import ENDS_STAGING, report_task_error
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import one_line


def task_plan(database: Env | str, schema: str) -> dict[str, Any]:
    """The driver's part of a plan for :func:`task`, which also needs the ids ``run`` and ``job``."""
    return {"here": str(Path.cwd()), "database": portable({"url": database}), "schema": schema}


@contextmanager
def task(plan: Mapping[str, Any]) -> Iterator[Engine]:
    """Provide an engine for the block. An error that ends the run is reported to its driver, and raised.

    Raises TaskTrouble for a transient error, so that the driver does not blame the frame.
    """
    if plan["here"] not in sys.path:  # the driver's working directory, from which commands import pipelines
        sys.path.append(plan["here"])
    engine = _engine(resolved(plan["database"])["url"])
    try:
        yield engine
    except ENDS_STAGING as error:
        report_task_error(engine, plan["schema"], UUID(plan["run"]), plan["job"], error)
        raise
    except Exception as error:
        if is_transient(error) or isinstance(error, KafkaUnavailable):
            raise TaskTrouble(one_line(error)) from error
        raise


@cache
def _engine(url: str) -> Engine:
    """One engine per process: Spark reuses its Python workers, and a new session costs more than a small range."""
    return postgres_engine(url)


class TaskTrouble(Exception):  # noqa: N818 -- is_trouble() looks for the name in the text of Spark's exception
    """Database or brokers did not answer a task, or ended its session, so the task can be repeated."""


class InputChanged(TaskTrouble):
    """An input's table was rewritten after the snapshot: its rows can be read in a new snapshot."""


#: Parts of Spark's messages after TaskTrouble, or after the end of a Python process that runs a task or plans a data
#: source. For the latter, Spark's driver reports the error of its pipe or socket (``PythonWorkerFactory``).
_TROUBLES = (
    TaskTrouble.__name__,
    InputChanged.__name__,
    "ExecutorLostFailure",
    "FetchFailed",
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "Python daemon failed to launch worker",
    "EOFException",
    "java.io.IOException: Broken pipe",
    "java.io.IOException: Stream closed",
    "java.net.SocketException",
)


def is_trouble(error: BaseException) -> bool:
    """Whether the cause of Spark's exception may be over by the next micro-batch: servers or processes."""
    return any(part in str(error) for part in _TROUBLES)


def is_input_changed(error: BaseException) -> bool:
    """Whether Spark's exception reports an input whose table was rewritten after the snapshot."""
    return InputChanged.__name__ in str(error)
