"""Kafka's configuration: sets the keys on which exactly once depends, and refuses other values for them."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from seekpoint.errors import ConfigError

OWNED: Mapping[str, tuple[Any, str]] = {
    "enable.auto.commit": (False, "offsets are committed in Postgres, with the rows (I1)"),
    "enable.auto.offset.store": (False, "positions never come from Kafka's commits (I6)"),
    "auto.offset.reset": ("error", "an operator decides about offsets that Kafka no longer has; none is skipped (I4)"),
    "enable.partition.eof": (True, "the end of a partition moves the offset past trailing control records (I3)"),
}
"""The keys that Seekpoint sets: key -> (value, reason)."""

DEFAULTS: Mapping[str, Any] = {
    # After its queue was full, librdkafka by default waits 1000 ms before it fetches again: the worker would be idle.
    "fetch.queue.backoff.ms": 10,
    "isolation.level": "read_committed",
    # As in the Java client. By default librdkafka waits up to ten seconds after an outage before it reconnects.
    "reconnect.backoff.max.ms": 1000,
}

# The keys of a consumer's configuration that an admin client needs; it would warn about others.
_ADMIN_PREFIXES = (
    "bootstrap.servers",
    "metadata.broker.list",
    "security.",
    "sasl.",
    "ssl.",
    "socket.",
    "broker.",
    "reconnect.",
    "client.",
    "api.version",
    "oauth_cb",
    "enable.sasl",
    "enable.ssl",
    "resolve.",
    "connections.",
    "retry.",
    "metadata.recovery.",
)


def _same(setting: Any, owned: Any) -> bool:
    return str(setting).strip().lower() == str(owned).strip().lower()


def require_mapping(kafka: Any) -> None:
    """Raise ConfigError for a Kafka configuration that is not a dict, such as a string of brokers' addresses."""
    if not isinstance(kafka, Mapping):
        raise ConfigError(
            f"kafka= takes a dict, e.g. {{'bootstrap.servers': 'localhost:9092'}}, got {type(kafka).__name__}"
        )


def consumer_config(config: Mapping[str, Any], *, group: str) -> dict[str, Any]:
    """The configuration for a ``confluent_kafka.Consumer`` whose positions are in the ledger.

    Takes librdkafka's keys. Sets the keys on which exactly once depends, and raises ConfigError with the reason if
    ``config`` has another value. Sets defaults for ``client.id`` and the keys of ``DEFAULTS``.
    """
    require_mapping(config)
    if not (config.get("bootstrap.servers") or config.get("metadata.broker.list")):
        raise ConfigError("kafka needs 'bootstrap.servers', e.g. {'bootstrap.servers': 'localhost:9092'}")
    for key, (value, why) in OWNED.items():
        if key in config and not _same(config[key], value):
            raise ConfigError(
                f"remove {key!r}: {config[key]!r} from the Kafka configuration; it is {value!r} because {why}"
            )
    if not group.strip():
        raise ConfigError(f"a group needs a name that is not blank, got {group!r}")  # the client aborts the process
    if config.get("group.id", group) != group:
        raise ConfigError(
            f"remove 'group.id': {config['group.id']!r} from the Kafka configuration; the group is the pipeline's: "
            f"{group!r}"
        )
    for key in ("on_commit", "default.topic.config"):
        if key in config:
            raise ConfigError(f"remove {key!r} from the Kafka configuration: it has no effect with offsets in Postgres")
    owned = {key: value for key, (value, _) in OWNED.items()}
    return {
        **DEFAULTS,
        "client.id": f"seekpoint-{group}-{socket.gethostname()}-{os.getpid()}",
        **config,
        **owned,
        "group.id": group,
    }


def is_eager(config: Mapping[str, Any]) -> bool:
    """Whether each rebalance revokes all partitions (eager protocol); otherwise assignments change incrementally.

    The client does not report its protocol, and refuses the other protocol's calls.
    """
    if str(config.get("group.protocol", "classic")).lower() == "consumer":
        return False
    return "cooperative-sticky" not in str(config.get("partition.assignment.strategy", ""))


def admin_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a consumer's configuration that an admin client understands.

    The admin client logs only critical messages: the consumer already reports unreachable brokers.
    """
    settings = {key: value for key, value in config.items() if key.startswith(_ADMIN_PREFIXES)}
    return {"log_level": 2, **settings}


class Sparing(logging.Filter):
    """Passes one log line of a kind every ten seconds, with the number dropped: an outage repeats lines for hours."""

    PAUSE = 10.0  # seconds

    def __init__(self) -> None:
        super().__init__()
        # Kind -> (time of the last passed line, number dropped since)
        self._logged: dict[tuple[int, object], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes; its kind is librdkafka's facility (FAIL, ERROR, CONFWARN ...) and level."""
        args = record.args if isinstance(record.args, tuple) else ()
        kind, now = (record.levelno, args[0] if args else record.msg), monotonic()
        logged_at, left_out = self._logged.get(kind, (now - self.PAUSE, 0))
        if now - logged_at < self.PAUSE:
            self._logged[kind] = logged_at, left_out + 1
            return False
        self._logged[kind] = now, 0
        if left_out:
            record.msg = f"{record.msg} (and {left_out} more of this kind before)"
        return True


_SPARING = Sparing()


def make_consumer(config: Mapping[str, Any], **callbacks: Any) -> Consumer:
    """Make a consumer. Raises ConfigError, with librdkafka's message, for a key or value that librdkafka refuses.

    The logger ``seekpoint.kafka.client`` gets librdkafka's log lines, a few of each kind (:class:`Sparing`), unless the
    configuration has a ``logger``.
    """
    logger = logging.getLogger("seekpoint.kafka.client")
    logger.addFilter(_SPARING)
    try:
        return Consumer({"logger": logger, **config, **callbacks})
    except (KafkaException, TypeError, ValueError) as error:
        raise _refused(config, error) from None


def make_admin(config: Mapping[str, Any], **callbacks: Any) -> AdminClient:
    """Make an admin client for a consumer's configuration. Raises ConfigError, as :func:`make_consumer` does."""
    try:
        return AdminClient({**admin_config(config), **callbacks})
    except (KafkaException, TypeError, ValueError) as error:
        raise _refused(config, error) from None


def require_properties(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key or value that librdkafka does not know; waits for no broker.

    An admin client would not notice a misspelled key, because :func:`admin_config` omits it.
    """
    make_consumer({"log_level": 0, "group.id": "seekpoint", **config}).close()


_FILES = tuple(f"ssl.{of}.location" for of in ("ca", "certificate", "key", "keystore", "crl"))


def _refused(config: Mapping[str, Any], error: Exception) -> ConfigError:
    """ConfigError with the client's message, and unreadable files, which the client does not name."""
    message = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    named = {key: str(config[key]) for key in _FILES if config.get(key) and config[key] != "probe"}
    lost = [f"{key}: {path} {why}" for key, path in named.items() if (why := _unreadable(Path(path)))]
    return ConfigError("; ".join([f"the Kafka configuration was refused: {message}", *lost]))


def _unreadable(path: Path) -> str | None:
    if not path.exists():
        return "does not exist"
    return None if os.access(path, os.R_OK) else "cannot be read by this process"
