"""Checks a session before its first use: detects a connection pooler, and prepares no statements through one.

In transaction mode a pooler (PgBouncer, Odyssey, PgCat, Supavisor) gives each transaction a server session that other
clients use before and after. A prepared statement, or anything else that a transaction leaves in its session, is
missing in the client's next transaction, and visible to other clients.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import ConfigError
from seekpoint.postgres.round_trip import Statement, texts

_ASKED = Statement("SELECT pg_backend_pid()::text, current_setting('array_nulls')")
_KEY = "seekpoint_pooler"  # a key of ``Connection.info``, which lives as long as the driver's connection


class Pooler(NamedTuple):
    """A detected pooler: the backend pid announced on connecting, and the pid that answered a statement."""

    announced: int
    answering: int


def detect(connection: Connection) -> Pooler | None:
    """The pooler in front of the server, None if there is none. With a pooler, nothing is prepared on this connection.

    Checked once for each connection of the driver, and again after a check that failed, as in an aborted transaction. A
    pooler in session mode cannot be distinguished, and is treated in the same way. Raises ConfigError for a session
    with array_nulls off, and SQLAlchemy's error for a lost connection.
    """
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        return None
    if _KEY in connection.info:
        detected: Pooler | None = connection.info[_KEY]
        return detected
    try:
        answering, array_nulls = texts(driver, _ASKED)
    except psycopg.Error as error:
        if driver.closed:
            connection.invalidate(error)
            raise DBAPIError.instance(_ASKED.text, None, error, psycopg.Error, dialect=connection.dialect) from error
        driver.prepare_threshold = None
        return None
    if array_nulls == "off":
        connection.close()
        raise ConfigError(
            "the session cannot be used: its array_nulls is off, so a NULL in an array would become the text 'NULL'. "
            "Set array_nulls to on, in the URL or by ALTER ROLE ... SET"
        )
    pooler = Pooler(driver.info.backend_pid, int(answering))
    if pooler.answering == pooler.announced:
        connection.info[_KEY] = None
        return None
    driver.prepare_threshold = None
    connection.info[_KEY] = pooler
    return pooler
