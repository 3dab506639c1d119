"""Makes or takes SQLAlchemy engines, and checks the driver, the isolation level and each session."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, cast

import psycopg
from sqlalchemy import URL, Connection, Engine, Pool, create_engine, event, make_url
from sqlalchemy.engine.events import ConnectionEvents
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool, QueuePool, StaticPool

from seekpoint.errors import ConfigError
from seekpoint.postgres import pooler

# A dead peer is noticed within a minute or so; the URL may override these.
_KEEPALIVES: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
# Encodings that no server stores, because their characters may contain ASCII bytes.
# Source: https://www.postgresql.org/docs/current/multibyte.html, "Server?" No.
_CLIENT_ONLY = frozenset({"BIG5", "GB18030", "GBK", "JOHAB", "SHIFT_JIS_2004", "SJIS", "UHC"})
_CHECKED = "seekpoint_checked"  # an execution option of our engines, whose sessions are checked
WORKER_CONNECTIONS = 3  # in a worker's pool: for its batches, for the ledger between them, for a replay
_MAY_CHANGE = {"before_execute", "before_cursor_execute"}  # events whose listeners return the statement to execute


def postgres_engine(engine: Engine | URL | str) -> Engine:
    """An engine on the given engine's pool, or a new one for a URL.

    Raises ConfigError for another driver, an async engine, AUTOCOMMIT or a StaticPool.
    """
    if isinstance(engine, str | URL):
        url = read_url(engine)
        if url.drivername in {"postgresql", "postgres"}:
            url = url.set(drivername="postgresql+psycopg")
        if url.drivername != "postgresql+psycopg":
            _refuse(url)
        silent = {key: value for key, value in _KEEPALIVES.items() if key not in url.query}
        engine = create_engine(url, pool_pre_ping=True, connect_args=silent)
        event.listen(engine, "connect", require_readable, insert=True)  # before SQLAlchemy itself reads anything
    if isinstance(cast("object", engine), Connection):
        raise ConfigError("engine is a Connection, but Seekpoint opens its own: pass connection.engine")
    if not isinstance(engine, Engine):
        raise ConfigError(
            f"engine must be a URL or a sync SQLAlchemy Engine on postgresql+psycopg, got {type(engine).__name__}; "
            "from an AsyncEngine on psycopg, pass engine.sync_engine.url or create_engine(url)"
        )
    if engine.dialect.is_async:
        raise ConfigError("this engine's driver is asynchronous: pass its URL, or a sync engine on psycopg")
    if engine.dialect.name != "postgresql" or engine.dialect.driver != "psycopg":
        _refuse(engine.url)
    if isinstance(engine.pool, StaticPool):
        raise ConfigError(
            "the engine has a StaticPool, whose one connection a worker would share with the application: create it "
            "without poolclass="
        )
    if _level_of_options(engine) == "AUTOCOMMIT":
        raise in_autocommit("engine")
    checked = check_connections(engine)
    event.listen(checked, "engine_connect", _refuse_autocommit)  # create_engine(isolation_level=) shows only there
    return checked


@contextmanager
def first_connection(engine: Engine) -> Iterator[Connection]:
    """A worker's first connection. Raises ConfigError for rows that are not tuples, or another isolation level."""
    try:
        connection = engine.connect()
    except AssertionError as error:  # SQLAlchemy reads the server's version by index from a row
        raise ConfigError(
            f"the engine's connections return rows that SQLAlchemy cannot read ({error}): it and Seekpoint need "
            "tuples; create the engine without row_factory= in connect_args"
        ) from error
    with connection:
        driver = connection.connection.driver_connection
        level = driver.isolation_level if isinstance(driver, psycopg.Connection) else None
        if level is not None:  # set by create_engine(isolation_level=) or by a listener
            _refuse_level(level.name.replace("_", " "))
        yield connection


def worker_engine(engine: Engine | URL | str) -> Engine:
    """An engine with a separate pool, for one worker, which disposes of it. The given engine is not used.

    It has the given engine's settings, and the current listeners of that engine, its pool and its dialect, except those
    for ``engine_disposed``. A pool that keeps connections keeps at most ``WORKER_CONNECTIONS``.

    Raises ConfigError as :func:`postgres_engine` does, and if a worker cannot have a separate pool of this class.
    """
    hosts = postgres_engine(engine)
    own = _engine_on(_worker_pool(hosts.pool), hosts)
    for name in vars(ConnectionEvents):
        if name.startswith("_") or name in {"dispatch", "engine_disposed"}:
            continue
        of_all_engines = list(getattr(own.dispatch, name))
        for listener in getattr(hosts.dispatch, name):
            if listener not in of_all_engines:
                event.listen(own, name, listener, **({"retval": True} if name in _MAY_CHANGE else {}))
    return own


def _worker_pool(pool: Pool) -> Pool:
    if isinstance(pool, NullPool):
        return pool.recreate()
    arguments, settings = arguments_of(pool)
    if not isinstance(pool, QueuePool) or "pool_size" not in settings:
        raise ConfigError(
            f"a worker needs a separate pool of {WORKER_CONNECTIONS} connections, which cannot be made from the "
            f"engine's {type(pool).__name__}: create the engine without poolclass=, or with QueuePool or NullPool"
        )
    return type(pool)(*arguments, **{**settings, "pool_size": WORKER_CONNECTIONS, "max_overflow": 0})


def arguments_of(pool: Pool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which ``recreate()`` makes another pool of this class; the first is its creator.

    SQLAlchemy has no other public name for them. They are empty if the pool's class has a ``recreate()`` of another
    kind.
    """
    noted: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(_pool: Pool, *arguments: Any, **settings: Any) -> None:
        noted.append((arguments, settings))

    twin = copy(pool)
    twin.__class__ = type(type(pool).__name__, (type(pool),), {"__init__": note})
    twin.recreate()
    return noted[0] if noted else ((), {})


def _engine_on(pool: Pool, engine: Engine) -> Engine:
    """An engine on this pool, with the settings of the given one and without its listeners."""
    return Engine(  # create_engine() would make another dialect, without json_serializer= and a listener of do_connect
        pool,
        engine.dialect,
        engine.url,
        logging_name=engine.logging_name,
        echo=engine.echo,
        execution_options=engine.get_execution_options(),
        hide_parameters=engine.hide_parameters,
    )


@contextmanager
def separate_engine(engine: Engine) -> Iterator[Engine]:
    """An engine with the same connection settings and a separate pool; disposed of when the block ends.

    For threads that must not take connections that others need, nor run the application's listeners: it has the
    listeners of the pool, but not those of the engine.
    """
    separate = _engine_on(engine.pool.recreate(), engine)
    event.listen(separate, "engine_connect", _check_session)
    try:
        yield separate
    finally:
        separate.dispose()


def schema_translation(engine: Engine | URL | str) -> Mapping[str | None, str | None]:
    """The engine's ``schema_translate_map``, which changes the schemas in statements."""
    options = engine.get_execution_options() if isinstance(engine, Engine) else {}
    return options.get("schema_translate_map") or {}


def shown(url: URL) -> str:
    """The URL as it may be logged: without passwords, also in its query."""
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


def read_url(address: URL | str) -> URL:
    """The database's URL. Raises ConfigError, without quoting it, if part of a password would be the host."""
    try:
        url = make_url(address)
        # An @ or / in a password ends it: the rest would be resolved as a host name, and shown.
        ambiguous = "@" in f"{url.host}{url.database}" or (
            isinstance(address, str) and re.split(r"\?\w+=", address)[0].count("@") > 1
        )
    except (ArgumentError, ValueError):  # their messages may quote the whole URL
        ambiguous = True
    if ambiguous:
        raise ConfigError(
            "the database's URL cannot be read: write postgresql://user:password@host:5432/database, with %40 for @, "
            "%2F for / and %3A for : in the password"
        )
    return url


def _refuse(url: URL) -> Engine:
    raise ConfigError(
        f"engine {shown(url)!r} is not on psycopg 3: write postgresql+psycopg://user:password@host/database"
    )


def require_read_committed(engine: Engine | URL | str) -> None:
    """Raise ConfigError for an engine with a stricter isolation level than a worker's READ COMMITTED."""
    if isinstance(engine, Engine):
        _refuse_level(_level_of_options(engine))


def _refuse_level(level: str) -> None:
    if level in {"SERIALIZABLE", "REPEATABLE READ"}:
        raise ConfigError(
            f"the engine's isolation level is {level}, but a worker's transactions are READ COMMITTED: if that is "
            'enough for the handler, pass engine.execution_options(isolation_level="READ COMMITTED")'
        )


def _level_of_options(engine: Engine) -> str:
    return str(engine.get_execution_options().get("isolation_level") or "").upper().replace("_", " ")


def check_connections(engine: Engine) -> Engine:
    """An engine on the same pool that checks each session it takes; does not change the given engine.

    So the application can still use a session whose settings Seekpoint refuses.
    """
    if engine.get_execution_options().get(_CHECKED):
        return engine
    checked = engine.execution_options(**{_CHECKED: True})
    event.listen(checked, "engine_connect", _check_session)
    return checked


def _check_session(connection: Connection) -> None:
    """Raise ConfigError for a session that cannot be used, and return it to the pool unchanged."""
    try:
        require_readable(connection.connection.driver_connection)
    except ConfigError:
        connection.close()
        raise
    pooler.detect(connection)


def _refuse_autocommit(connection: Connection) -> None:
    if is_autocommit(connection):
        connection.close()
        raise in_autocommit("engine")


def in_autocommit(kind: str) -> ConfigError:
    """The error for an engine or a connection (``kind``) whose driver commits each statement separately."""
    return ConfigError(
        f"the {kind} is in AUTOCOMMIT mode: rows and offsets could not be committed in one transaction; create it "
        "without isolation_level and autocommit"
    )


def is_autocommit(connection: Connection) -> bool:
    """Whether the driver commits each statement separately."""
    return bool(getattr(connection.connection.driver_connection, "autocommit", False))


def require_readable(driver: object, _record: object = None) -> None:
    """Raise ConfigError for an unusable connection; engines that Seekpoint makes call it as a listener."""
    if isinstance(driver, psycopg.Connection) and (problem := _unreadable(driver)) is not None:
        raise ConfigError(f"the session cannot be used: {problem}, in the URL or by ALTER ROLE ... SET")


def _unreadable(driver: psycopg.Connection[Any]) -> str | None:
    """Why psycopg could not read texts or times of this session; None if it can. The settings are not changed."""
    encoding, style = (driver.info.parameter_status(name) or "" for name in ("client_encoding", "DateStyle"))
    if encoding == "SQL_ASCII":
        return "its client_encoding is SQL_ASCII, in which psycopg reads texts as bytes: set client_encoding=utf8"
    if encoding in _CLIENT_ONLY:
        return (
            f"its client_encoding is {encoding}, in which the second byte of a character may be a backslash, which "
            "COPY takes for an escape: set client_encoding=utf8"
        )
    if style and not style.startswith("ISO"):
        return f"its DateStyle is {style!r}, in which psycopg cannot read times: set DateStyle to ISO"
    return None
