"""The log of ``seekpoint run`` on stderr: lines for people, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping
from copy import copy
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import typer

from seekpoint import events
from seekpoint.cli.error_messages import message_of
from seekpoint.cli.errors import say
from seekpoint.cli.masking import masked

logger = logging.getLogger("seekpoint.cli")

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """The format of the log."""

    TEXT = "text"
    JSON = "json"


class MaskingFormatter(logging.Formatter):
    """Masks passwords, even in other libraries' lines, and prints a worker's final error as one sentence."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of text, and the traceback."""
        return masked(super().format(_explained(record)))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields of the record's extra."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; an exception's traceback is the field ``traceback``."""
        record = _explained(record)
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update((name, value) for name, value in vars(record).items() if name not in {*_STANDARD, *fields})
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(_safe(fields))


def set_up_logging(form: LogFormat) -> None:
    """Write the log to stderr, unless the program has set up its own."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter()
        if form is LogFormat.JSON
        else MaskingFormatter("%(asctime)s %(levelname)-7s %(name)s %(message)s")
    )
    root.addHandler(handler)
    logging.captureWarnings(form is LogFormat.JSON)
    logging.getLogger("seekpoint").setLevel(logging.INFO)
    # psycopg warns of each statement after a failed one in a pipeline; the search for a failing record causes many.
    logging.getLogger("psycopg").setLevel(logging.ERROR)


def log_own_lines(context: typer.Context, form: LogFormat) -> None:
    """With JSON, also log the command's own lines, and the error that ends it."""
    if form is LogFormat.JSON:
        before = say.set(_log)
        context.call_on_close(lambda: say.reset(before))


def _log(level: int, text: str) -> None:
    set_up_logging(LogFormat.JSON)  # early, to include errors such as a module that cannot be imported
    logger.log(level, "%s", text)


def _explained(record: logging.LogRecord) -> logging.LogRecord:
    """The log record of a worker's final error, with the command's sentence instead of the traceback."""
    match record.args:
        case (group, events.WorkerStopped(error=BaseException() as error, is_aborted=False)):
            record = copy(record)
            why = message_of(error) if isinstance(error, Exception) else repr(error)
            record.msg, record.args = "%sWorkerStopped: %s", (group, why)
            record.exc_info = record.exc_text = None
    return record


def _safe(value: Any) -> Any:
    """The value in JSON's types, without passwords in its strings."""
    match value:
        case None | bool() | int():
            return value
        case Mapping():
            return {masked(str(name)): _safe(element) for name, element in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_safe(element) for element in value]
        case _:
            # JSON has no NaN and Infinity.
            return value if isinstance(value, float) and math.isfinite(value) else masked(str(value))
