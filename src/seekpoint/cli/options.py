"""Options that several commands share, and what they become."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import NullPool

from seekpoint.cli.errors import keep_secret
from seekpoint.errors import ConfigError
from seekpoint.postgres.engine import read_url, watch

_DATABASE_URL = typer.Option(envvar="SEEKPOINT_DATABASE_URL", help="postgresql://user:password@host:5432/database")
DatabaseUrl = Annotated[str, _DATABASE_URL]
OptionalDatabaseUrl = Annotated[str | None, _DATABASE_URL]
Schema = Annotated[str, typer.Option(help="Postgres schema of the ledger.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Actor = Annotated[str | None, typer.Option(help="Who does it. Default: the user of the operating system.")]

_AGO = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def database(text: str) -> URL:
    """The URL, on psycopg whatever driver it names; raises ConfigError for what is none, without quoting it."""
    url = read_url(text)
    if url.get_backend_name() not in {"postgresql", "postgres"}:
        raise ConfigError(f"the ledger lives in Postgres, not in {url.get_backend_name()}: postgresql://…")
    keep_secret(url)
    return url.set(drivername="postgresql+psycopg")


def one_off_engine(text: str) -> Engine:
    """An engine that keeps no connection open, for commands that look once and end."""
    return watch(create_engine(database(text), poolclass=NullPool))


def kafka_settings(pairs: Iterable[str] | None, file: Path | None) -> dict[str, str]:
    """librdkafka's configuration from a properties file and from ``key=value`` pairs, which win."""
    settings = {} if file is None else dict(_properties(file))
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--kafka takes key=value, e.g. --kafka bootstrap.servers=localhost:9092, not {key!r}")
        settings[key.strip()] = value.strip()
    keep_secret(kafka=settings)
    return settings


def _properties(file: Path) -> Mapping[str, str]:
    """``key=value`` lines; blank lines and those that begin with ``#`` or ``!`` are skipped."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        restarted = (
            '; if `seekpoint dev` was restarted: eval "$(seekpoint dev env)"' if "seekpoint-dev-" in str(file) else ""
        )
        raise ConfigError(f"the Kafka configuration {file} cannot be read: {why}{restarted}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():  # the line is not quoted: it may hold a password
            raise ConfigError(f"{file}, line {number}: expected key=value, or # before a comment")
        found[key.strip()] = value.strip()
    return found


def names_brokers(settings: Mapping[str, Any]) -> bool:
    """Whether this configuration of librdkafka says where the brokers are."""
    return bool(settings.get("bootstrap.servers") or settings.get("metadata.broker.list"))


def require_brokers(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError where no brokers are named."""
    if not names_brokers(settings):
        raise ConfigError(
            "no brokers are named: give --kafka bootstrap.servers=host:9092, or a properties file with --kafka-config "
            "or SEEKPOINT_KAFKA_CONFIG"
        )


def ago(text: str, option: str) -> timedelta:
    """``90s``, ``30m``, ``12h``, ``7d``; raises ConfigError for anything else."""
    if found := _AGO.fullmatch(text.strip()):
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    raise ConfigError(f"{option} takes a length of time such as 90s, 30m, 12h, 7d; not {text!r}")


def since(text: str) -> datetime:
    """``2026-08-01T12:00Z``, or how long ago; raises ConfigError for what is neither, and where the zone is missing."""
    if _AGO.fullmatch(text.strip()):
        try:
            return datetime.now(UTC) - ago(text, "--since")
        except OverflowError:
            raise ConfigError(f"--since {text}: that is before the year 1; leave it out to mean all") from None
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"--since takes a time such as 2026-08-01T12:00Z, or how long ago: 90s, 30m, 12h, 7d; not {text!r}"
        ) from None
    if at.tzinfo is None:
        raise ConfigError(f"--since {text}: say in which zone, e.g. {text}Z or {text}+02:00")
    return at
