"""SQLAlchemy engines: made from a URL or given; driver, isolation level and each new connection are checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from seekpoint.errors import ConfigError
from seekpoint.postgres import pooler

# A dead peer is noticed within a minute or so; the URL may set others.
_KEEPALIVES: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
# Encodings that no server stores: their characters may have bytes of ASCII.
# Source: https://www.postgresql.org/docs/current/multibyte.html, "Server?" No.
_CLIENT_ONLY = frozenset({"BIG5", "GB18030", "GBK", "JOHAB", "SHIFT_JIS_2004", "SJIS", "UHC"})


def postgres_engine(engine: Engine | URL | str) -> Engine:
    """The engine itself, or one made from a URL; refuses other drivers, async engines and AUTOCOMMIT."""
    if isinstance(engine, str | URL):
        url = read_url(engine)
        if url.drivername in {"postgresql", "postgres"}:
            url = url.set(drivername="postgresql+psycopg")
        if url.drivername != "postgresql+psycopg":
            _refuse(url)
        silent = {key: value for key, value in _KEEPALIVES.items() if key not in url.query}
        engine = create_engine(url, pool_pre_ping=True, connect_args=silent)
    if not isinstance(engine, Engine):
        raise ConfigError(
            f"engine must be a URL or a sync SQLAlchemy Engine on postgresql+psycopg, got {type(engine).__name__}; "
            "from an AsyncEngine on psycopg, pass engine.sync_engine.url or create_engine(url)"
        )
    if engine.dialect.name != "postgresql" or engine.dialect.driver != "psycopg":
        _refuse(engine.url)
    given = (engine.get_execution_options().get("isolation_level"), engine.dialect._on_connect_isolation_level)  # noqa: SLF001
    if "AUTOCOMMIT" in {str(level).upper() for level in given}:
        raise ConfigError(
            "the engine is set to AUTOCOMMIT: rows and offsets could not be one transaction; make it without "
            "isolation_level"
        )
    return check_connections(engine)


def apart(engine: Engine) -> Engine:
    """An engine with the same connections, settings and events, of which each is opened when used, and none is kept.

    For threads that must take no connection of the pool which others need.
    """
    pool, options = engine.pool, engine.get_execution_options()
    own = NullPool(pool._creator, dialect=engine.dialect, _dispatch=pool.dispatch)  # noqa: SLF001 -- as pool.recreate()
    made = Engine(own, engine.dialect, engine.url, execution_options=options)
    made.dispatch = made.dispatch._join(engine.dispatch)  # noqa: SLF001 -- as Engine.execution_options()
    return made


def schema_translation(engine: Engine | URL | str) -> Mapping[str | None, str | None]:
    """The schemas that statements on this engine's connections are translated to."""
    options = engine.get_execution_options() if isinstance(engine, Engine) else {}
    return options.get("schema_translate_map") or {}


def shown(url: URL) -> str:
    """The URL as it may be logged: without passwords, also in its query."""
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


def read_url(given: URL | str) -> URL:
    """The database's URL; raises ConfigError, without quoting it, where a password would be read as the host."""
    try:
        url = make_url(given)
        # An @ or / in a password ends it: the rest would be resolved as a host, and shown.
        ambiguous = "@" in f"{url.host}{url.database}" or (
            isinstance(given, str) and re.split(r"\?\w+=", given)[0].count("@") > 1
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


def check_connections(engine: Engine) -> Engine:
    """Check each new connection of the engine once, before its first use. Returns the engine."""
    if not event.contains(engine, "connect", _require_readable):
        event.listen(engine, "connect", _require_readable, insert=True)  # before SQLAlchemy itself reads anything
    if not event.contains(engine, "engine_connect", pooler.detect):
        event.listen(engine, "engine_connect", pooler.detect)
    return engine


def _require_readable(driver: object, _record: object) -> None:
    """Raise ConfigError where psycopg could not read texts or times.

    The settings are not changed: the application's own casts depend on them.
    """
    if not isinstance(driver, psycopg.Connection):
        return
    encoding, style = (driver.info.parameter_status(name) or "" for name in ("client_encoding", "DateStyle"))
    problem = None
    if encoding == "SQL_ASCII":
        problem = "its client_encoding is SQL_ASCII, in which texts are bytes: set client_encoding=utf8"
    elif encoding in _CLIENT_ONLY:
        problem = (
            f"its client_encoding is {encoding}, where the second byte of a character may be a backslash, which COPY "
            "reads as one: set client_encoding=utf8"
        )
    elif style and not style.startswith("ISO"):
        problem = f"its DateStyle is {style!r}, in which psycopg reads no times: set DateStyle to ISO"
    if problem is not None:
        driver.close()
        raise ConfigError(f"the session cannot be used: {problem}, in the URL or by ALTER ROLE ... SET")
