"""Ends a command on an error or a signal: a readable message without passwords, and the exit code."""

from __future__ import annotations

import json
import logging
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import typer

from seekpoint.cli.error_messages import message_of
from seekpoint.cli.exit_codes import ABORTED, exit_code
from seekpoint.cli.masking import masked, printable
from seekpoint.errors import SeekpointError
from seekpoint.postgres.sqlstates import was_interrupted
from seekpoint.records import notes
from seekpoint.worker.signal_handlers import handled

with_traceback: ContextVar[bool] = ContextVar("with_traceback", default=False)


def _print(level: int, text: str) -> None:
    typer.echo(f"error: {text}" if level == logging.ERROR else text, err=True)


# Writes a command's own lines, each with a log level: unchanged to stderr, or into a JSON log.
say: ContextVar[Callable[[int, str], None]] = ContextVar("say", default=_print)


@contextmanager
def explained(report: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turn errors into a message on stderr (or into ``report``, printed as JSON) and the exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except KeyboardInterrupt as aborted:
        say.get()(logging.WARNING, printable(f"aborted: {aborted}" if str(aborted) else "aborted"))
        raise typer.Exit(ABORTED) from None
    except Exception as error:  # noqa: BLE001 -- any error: the user gets a message, not a traceback
        if was_interrupted(error):
            say.get()(logging.WARNING, printable(": ".join(["aborted", *notes(error)])))
            raise typer.Exit(ABORTED) from None
        if with_traceback.get():
            say.get()(logging.INFO, printable("".join(traceback.format_exception(error))))
        message = message_of(error)
        if report is None:
            say.get()(logging.ERROR, printable(message))
        else:
            code = error.code if isinstance(error, SeekpointError) else None
            typer.echo(json.dumps({**report, "code": code, "message": masked(message)}, indent=2))
        raise typer.Exit(exit_code(error)) from None


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the command says what stays open, and how to resume it."""

    def hear(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handled(hear, signal.SIGTERM):
        yield
