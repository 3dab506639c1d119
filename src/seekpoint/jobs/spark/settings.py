"""Settings that the driver passes to tasks: JSON, with the names of environment variables in place of secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from seekpoint.errors import ConfigError
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENV = "$env"
SECRET = re.compile(r"(?i)password|passphrase|secret|jaas|key\.pem|oauthbearer\.config")
_PLAIN = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class Env:
    """The value of an environment variable, looked up where it is used: in the driver, and again in each task.

    What a Spark job is given is written into its plan and its logs. So a password is given by name:
    ``{"sasl.password": Env("KAFKA_PASSWORD")}``, and the variable is set for the executors.
    """

    name: str

    def value(self) -> str:
        """What it stands for here. Raises ConfigError where it is not set."""
        if (found := os.environ.get(self.name)) is None:
            raise ConfigError(
                f"the environment variable {self.name} is not set in this process: set it for the driver and for the "
                f"executors (spark.executorEnv.{self.name}, or a secret of your cluster)"
            )
        return found


_SPARKS_OWN = "(?i)secret|password|token|access[.]?key"  # where nothing is set
#: For ``spark.redaction.regex``: what Spark replaces in its event log, its UI and its logs.
REDACTED = (
    r"(?i)secret|password|passphrase|passwd|token|credential|access[.]?key|jaas|key\.pem|oauthbearer"
    r"|database_url|://[^/\s:@]+:[^@\s]+@"
)


def require_no_secret(spark: SparkSession, database: object, kafka: Mapping[str, Any]) -> None:
    """Raise ConfigError where a variable that has a secret is given by Spark's settings, which would log its value."""
    names = {database.name} if isinstance(database, Env) else set()
    names |= {str(value[_ENV]) for value in kafka.values() if isinstance(value, dict)}
    redacted = str(spark.conf.get("spark.redaction.regex", _SPARKS_OWN))
    for name in sorted(names):
        key = f"spark.executorEnv.{name}"
        value = spark.conf.get(key, None)
        if value is not None and not any(map(_pattern(redacted).search, (key, str(value)))):
            raise ConfigError(
                f"{key} is written to Spark's event log and its UI as it is: set spark.redaction.regex before the "
                f"session is made (seekpoint.spark.REDACTED matches it), and change what was logged; or give {name} to "
                "the executors as a secret of your cluster"
            )


def _pattern(redacted: str) -> re.Pattern[str]:
    try:
        return re.compile(redacted)
    except re.error as error:
        raise ConfigError(
            f"spark.redaction.regex is {redacted!r}, which Java may read, but Python cannot ({error}): so it is not "
            "known whether Spark logs secrets. Set it to a pattern that both can read, or to seekpoint.spark.REDACTED"
        ) from error


def portable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as JSON can carry them. Raises ConfigError for passwords in the open, and for callables."""
    carried: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Env):
            carried[key] = {_ENV: value.name}
        elif SECRET.search(key):
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
    """The settings of this process: names looked up. Takes what :func:`portable` returned."""
    return {key: Env(value[_ENV]).value() if isinstance(value, dict) else value for key, value in carried.items()}


def carried_range(range_: Range) -> list[Any]:
    """A range as JSON can carry it."""
    return [range_.partition.topic, range_.partition.number, str(range_.topic_id), range_.start, range_.end]


def range_of(carried: Sequence[Any]) -> Range:
    """What :func:`carried_range` made."""
    topic, number, topic_id, start, end = carried
    return Range(Partition(topic, number), UUID(topic_id), start, end)
