"""Detects a connection pooler, and prepares no statements through one.

In transaction mode a pooler (PgBouncer, Odyssey, PgCat, Supavisor) gives each transaction a server session that other
clients use before and after. What a transaction leaves in its session, such as prepared statements, is missing in the
next one, and disturbs other clients.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection

_KEY = "seekpoint_pooler"  # in ``Connection.info``, which lives as long as the driver's connection


class Pooler(NamedTuple):
    """The backend pid that was sent at the connect, and the one of the session that ran a statement."""

    announced: int
    answering: int


def detect(connection: Connection) -> Pooler | None:
    """The pooler in front of the server, None without one. With one, nothing is prepared on this connection.

    Asked once for each connection of the driver; a pooler in session mode looks the same, and is
    treated in the same way.
    """
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        return None
    if _KEY in connection.info:
        known: Pooler | None = connection.info[_KEY]
        return known
    try:
        pooler = Pooler(driver.info.backend_pid, _answering(driver))
    except psycopg.Error:  # a connection that is lost or broken: its next statement raises it, as SQLAlchemy's error
        driver.prepare_threshold = None
        return None
    if pooler.answering == pooler.announced:
        connection.info[_KEY] = None
        return None
    driver.prepare_threshold = None
    connection.info[_KEY] = pooler
    return pooler


def _answering(driver: psycopg.Connection[object]) -> int:
    """The backend pid of the session that answers now; begins no transaction."""
    idle, autocommit = driver.info.transaction_status == TransactionStatus.IDLE, driver.autocommit
    if idle:
        driver.autocommit = True
    try:
        row = psycopg.Cursor(driver, row_factory=tuple_row).execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    finally:
        if idle and not driver.closed:
            driver.autocommit = autocommit
    assert row is not None
    return int(row[0])
