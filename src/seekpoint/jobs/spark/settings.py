"""Settings that the driver passes to tasks: JSON, with names of environment variables instead of secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from seekpoint.errors import ConfigError
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENV = "$env"
SECRET = re.compile(r"(?i)password|passphrase|secret|jaas|key\.pem|oauthbearer\.config|kinit\.cmd")
_SECRET_IN_URL = re.compile(
    r"(?i)\b[a-z][a-z0-9+.-]*://(?:[^/\s@]*:[^/\s@]+@"
    r"|\S*[?&][^=&\s]*(?:password|secret|token|(?:api|access)_?key)[^=&\s]*=)"
)
_PLAIN = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class Env:
    """The value of an environment variable, looked up where it is used: in the driver and in each task.

    Spark writes a job's settings to its plan and its logs, so pass a password by name,
    ``{"sasl.password": Env("KAFKA_PASSWORD")}``, and set the variable for the executors.
    """

    name: str

    def value(self) -> str:
        """The variable's value in this process. Raises ConfigError if it is not set."""
        if (text := os.environ.get(self.name)) is None:
            raise ConfigError(
                f"the environment variable {self.name} is not set in this process: set it before the session is made, "
                "for the driver and, as a secret of your cluster, for the executors. Spark writes the value of "
                f"spark.executorEnv.{self.name} to its event log, unless spark.redaction.regex is "
                "seekpoint.spark.REDACTED"
            )
        return text


_IN_OPTION = "env:"


def setting_of_option(value: str) -> Env | str:
    """Parse an option: ``env:NAME`` means the variable's value; any other text means itself."""
    return Env(value.removeprefix(_IN_OPTION)) if value.startswith(_IN_OPTION) else value


_SPARKS_OWN = "(?i)secret|password|token|access[.]?key"  # Spark's default for spark.redaction.regex
#: For ``spark.redaction.regex``: Spark redacts matching settings in its event log, its UI and its logs.
REDACTED = (
    r"(?i)secret|password|passphrase|passwd|token|credential|access[.]?key|jaas|key\.pem|oauthbearer"
    r"|database_url|://[^/\s:@]+:[^@\s]+@"
)


def require_no_secret(spark: SparkSession, database: object, kafka: Mapping[str, Any]) -> None:
    """Raise ConfigError if Spark would log a secret: a URL's password, or a variable set by Spark's configuration."""
    if isinstance(database, str) and _has_password(database):
        raise ConfigError(
            "the password in database= would be in the job's plan and logs: set an environment variable for the "
            "driver and the executors, and give its name, database=Env('SEEKPOINT_DATABASE_URL')"
        )
    names = {database.name} if isinstance(database, Env) else set()
    names |= {str(value[_ENV]) for value in kafka.values() if isinstance(value, dict)}
    redacted = str(spark.conf.get("spark.redaction.regex", _SPARKS_OWN))
    for name in sorted(names):
        key = f"spark.executorEnv.{name}"
        value = spark.conf.get(key, None)
        if value is not None and not any(map(_pattern(redacted).search, (key, str(value)))):
            raise ConfigError(
                f"{key} is written to Spark's event log and its UI as it is: set spark.redaction.regex before the "
                "session is made (seekpoint.spark.REDACTED matches it), and replace passwords that were logged; or "
                f"give {name} to the executors as a secret of your cluster"
            )


def _has_password(url: str) -> bool:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError("database= is not a URL: write postgresql://user@host:5432/database") from None
    return bool(parsed.password or any("password" in key for key in parsed.query))  # also libpq's sslpassword


def _pattern(redacted: str) -> re.Pattern[str]:
    try:
        return re.compile(redacted)
    except re.error as error:
        raise ConfigError(
            f"spark.redaction.regex is {redacted!r}, which Java may accept, but Python does not ({error}): so it is "
            "unknown whether Spark logs secrets. Set a pattern that both accept, or seekpoint.spark.REDACTED"
        ) from error


def is_secret(key: str, value: object) -> bool:
    """Whether a setting contains a secret, by its name or in a URL."""
    return bool(SECRET.search(key) or (isinstance(value, str) and _SECRET_IN_URL.search(value)))


def portable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as values for JSON; idempotent.

    Raises ConfigError for passwords in plain text and for callables.
    """
    carried: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Env):
            carried[key] = {_ENV: value.name}
        elif isinstance(value, dict) and value.keys() == {_ENV}:  # a stream's source has already converted it
            carried[key] = value
        elif is_secret(key, value):
            raise ConfigError(
                f"{key!r} would be in the job's plan and logs: write Env('NAME') for its value, and set the "
                "environment variable NAME for the driver and the executors"
            )
        elif isinstance(value, _PLAIN):
            carried[key] = value
        else:
            raise ConfigError(
                f"{key!r} cannot be sent to Spark's tasks: it is a {type(value).__name__}; take it out, or use a "
                "setting that is text or a number"
            )
    return carried


def resolved(carried: Mapping[str, Any]) -> dict[str, Any]:
    """The settings returned by :func:`portable`, with the values of this process's environment variables."""
    return {key: Env(value[_ENV]).value() if isinstance(value, dict) else value for key, value in carried.items()}


def carried_range(range_: Range) -> list[Any]:
    """A range as a list for JSON."""
    return [range_.partition.topic, range_.partition.number, str(range_.topic_id), range_.start, range_.end]


def range_of(carried: Sequence[Any]) -> Range:
    """Parse a list that :func:`carried_range` has made."""
    topic, number, topic_id, start, end = carried
    return Range(Partition(topic, number), UUID(topic_id), start, end)
