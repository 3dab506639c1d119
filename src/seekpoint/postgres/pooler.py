"""Looks at a session before its first use: detects a connection pooler, and prepares no statements through one.

In transaction mode a pooler (PgBouncer, Odyssey, PgCat, Supavisor) gives each transaction a server session that other
clients use before and after. What a transaction leaves in its session, such as prepared statements, is missing in the
next one, and disturbs other clients.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import ConfigError
from seekpoint.postgres.round_trip import Statement, texts

_ASKED = Statement("SELECT pg_backend_pid()::text, current_setting('array_nulls')")
_KEY = "seekpoint_pooler"  # in ``Connection.info``, which lives as long as the driver's connection


class Pooler(NamedTuple):
    """The backend pid that was sent at the connect, and the one of the session that ran a statement."""

    announced: int
    answering: int


def detect(connection: Connection) -> Pooler | None:
    """The pooler in front of the server, None without one. With one, nothing is prepared on this connection.

    Asked once for each connection of the driver; a pooler in session mode looks the same, and is
    treated in the same way. Raises ConfigError for a session with array_nulls off, and SQLAlchemy's error for a
    connection that is lost.
    """
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        return None
    if _KEY in connection.info:
        known: Pooler | None = connection.info[_KEY]
        return known
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
            "the session cannot be used: its array_nulls is off, in which a NULL in an array becomes the text 'NULL': "
            "set array_nulls to on, in the URL or by ALTER ROLE ... SET"
        )
    pooler = Pooler(driver.info.backend_pid, int(answering))
    if pooler.answering == pooler.announced:
        connection.info[_KEY] = None
        return None
    driver.prepare_threshold = None
    connection.info[_KEY] = pooler
    return pooler
