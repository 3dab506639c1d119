"""Checks of each new connection of an engine: is there a pooler, can psycopg read texts and times."""

from __future__ import annotations

import psycopg
from sqlalchemy import Engine, event

from seekpoint.errors import ConfigError
from seekpoint.postgres import pooler


def watch(engine: Engine) -> Engine:
    """Check each new connection of the engine once, before its first use. Returns the engine."""
    if not event.contains(engine, "connect", _require_readable):
        event.listen(engine, "connect", _require_readable, insert=True)  # before SQLAlchemy itself reads anything
    if not event.contains(engine, "engine_connect", pooler.found):
        event.listen(engine, "engine_connect", pooler.found)
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
    elif style and not style.startswith("ISO"):
        problem = f"its DateStyle is {style!r}, in which psycopg reads no times: set DateStyle to ISO"
    if problem is not None:
        driver.close()
        raise ConfigError(f"the session cannot be used: {problem}, in the URL or by ALTER ROLE ... SET")
