"""Databases that tests use one after the other, because dropping one waits for a checkpoint of the whole server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy import URL, Engine, make_url, text

_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
_SCHEMAS = r"SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'"


def libpq(url: URL | str) -> str:
    """The URL, with its password, as libpq and psycopg read it: without SQLAlchemy's name of the driver."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@contextmanager
def new_database(dsn: str, encoding: str = "UTF8") -> Iterator[str]:
    """The URL (with its password) of a new database, dropped at the end."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(libpq(dsn), autocommit=True) as connection:
        connection.execute(
            SQL("CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0").format(Identifier(name), encoding)
        )
        yield make_url(dsn).set(database=name).render_as_string(hide_password=False)
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def create_extension(engine: Engine, name: str) -> None:
    """Create the extension in ``public`` unless it exists; safe for tests that run at the same time.

    Raises SQLAlchemy's NotSupportedError if the server lacks it.
    """
    with engine.begin() as tx:
        tx.execute(text("SELECT pg_advisory_xact_lock(hashtext('create_extension'))"))
        tx.exec_driver_sql(f"CREATE EXTENSION IF NOT EXISTS {name} SCHEMA public")


def empty(url: str) -> None:
    """End the database's sessions, drop its schemas, and reset its settings."""
    writable = "-c default_transaction_read_only=off"
    with psycopg.connect(libpq(url), autocommit=True, options=writable) as connection:
        connection.execute(_OTHERS, [connection.info.backend_pid])
        for (schema,) in connection.execute(_SCHEMAS).fetchall():
            connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(schema)))
        connection.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
        connection.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
        connection.execute(SQL("ALTER DATABASE {} RESET ALL").format(Identifier(make_url(url).database or "")))
