"""Keeps a warning of psycopg out of the log that repeats an error which is raised.

A pipeline that an error has left is still ended by psycopg, which logs what it meets then, "error ignored terminating":
that the server has skipped the rest, or that the connection is lost. A statement's own error is logged as before:
where the block was left by another one, it is said nowhere else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.errors import PipelineAborted


class _Repeated(logging.Filter):
    """Drops these warnings of one thread."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        if record.thread != self._thread or not any(isinstance(one, psycopg.Pipeline) for one in arguments):
            return True
        return not any(map(_is_repeated, arguments))


def _is_repeated(error: object) -> bool:
    is_lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return is_lost or isinstance(error, PipelineAborted)


@contextmanager
def repeated_errors_unlogged() -> Iterator[None]:
    """Log no such warning of this thread's pipelines until the end of the block."""
    logger, repeated = logging.getLogger("psycopg"), _Repeated()
    logger.addFilter(repeated)
    try:
        yield
    finally:
        logger.removeFilter(repeated)
