"""The exit code of a command, by the error that ends it."""

from __future__ import annotations

import psycopg
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from seekpoint.cli.error_messages import NO_CONNECTION, connection_remedy
from seekpoint.errors import ConfigError, KafkaUnavailable, SeekpointError
from seekpoint.kafka.client import KafkaException

FAILED, USAGE, AWAY, ABORTED = 1, 2, 3, 130

_NO_ANSWER = {"_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_RESOLVE"}  # the client's own errors


def _is_away(error: BaseException | None) -> bool:
    """Whether the error says that brokers or database cannot be reached, or have ended the connection."""
    if isinstance(error, KafkaException):
        return error.args[0].name() in _NO_ANSWER
    cause = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, psycopg.OperationalError):
        return isinstance(cause, KafkaUnavailable)
    if cause.sqlstate is None:  # without an SQLSTATE there was no session
        return connection_remedy(str(cause)) == NO_CONNECTION
    return cause.sqlstate.startswith(("08", "57P"))


def exit_code(error: Exception) -> int:
    """2 if command, configuration or declaration is wrong, 3 if brokers or database are away, otherwise 1."""
    if _is_away(error) or (isinstance(error, SeekpointError) and _is_away(error.__cause__)):
        return AWAY
    if isinstance(error, KafkaException):
        return USAGE if error.args[0].name() == "_INVALID_ARG" else FAILED
    # 1, not 2: the command is right even if a throwaway server does not start, or the database lacks a table or right.
    passing = isinstance(error.__cause__, psycopg.Error) or type(error).__name__ == "ServerFailed"
    wrong = isinstance(error, ConfigError | CommandError | ImportError | SyntaxError)
    return USAGE if wrong and not passing else FAILED
