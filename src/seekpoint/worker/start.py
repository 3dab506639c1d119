"""Checks schema, tables and topics before a worker joins its group; waits for servers that do not answer."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from sqlalchemy import text

from seekpoint import events
from seekpoint.backoff import Backoff
from seekpoint.errors import ConfigError, KafkaUnavailable
from seekpoint.events import Announcer
from seekpoint.kafka.config import make_consumer
from seekpoint.kafka.identity import CHECK_KAFKA, SHORT_TIMEOUT, Identity, KafkaRefused
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.schema_revision import check
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import ONE_PARTITION
from seekpoint.postgres import pooler
from seekpoint.postgres.engine import first_connection
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import error_attribute, one_line

UNKNOWN = (0.2, 0.4, 0.8)  # seconds before asking again for a topic that is unknown at the start

# The error of a failed connection attempt has only the server's message, and no SQLSTATE. A message that is not listed
# here, or not in English, counts as transient, and is logged on each attempt.
_REFUSED = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",  # a role, a database, or a certificate's file
    "is not permitted to log in",
    "is not allowed",
    "permission denied",
    "no such database",  # PgBouncer
    "no such user",
    "certificate verify failed",
    "does not support ssl",
    "server certificate for",
    "invalid port number",
    "invalid connection option",
    "invalid percent-encoded token",
    "invalid uri",
    "invalid ssl protocol version range",
    "invalid require_auth method",
    "invalid when ssl support is not compiled in",
    "invalid when gssapi support is not compiled in",
    "invalid command-line argument",  # from the server, about the URL's options=
)
# A bad value of a client's option (`invalid sslmode value`, `invalid "ssl_min_protocol_version" value`), or of a
# server's setting (`invalid value for parameter "work_mem"`). Not every "invalid" is permanent: without a server, a
# load balancer may send what the client calls an invalid response.
_BAD_VALUE = re.compile(r'\binvalid (?:"?\w+"? value\b|value for parameter)')


class StartChecks:
    """The checks before a worker's first record. ``tables``: the tables that it writes, each with its schema."""

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: GroupLedger,
        config: Mapping[str, Any],
        partitions: Collection[tuple[str, int]] | None,
        *,
        announce: Announcer,
        stopping: threading.Event,
    ) -> None:
        self._pipeline, self._ledger, self._limits, self._config = pipeline, ledger, ledger.limits, config
        self._partitions, self._announce, self._stopping = partitions, announce, stopping
        self._kafka_timeout = min(SHORT_TIMEOUT, self._limits.start_wait or math.inf, self._limits.kafka_timeout)
        self.tables: tuple[str, ...] = ()

    def run(self) -> bool:
        """Run the checks, and wait for servers that do not answer; False if the worker was stopped meanwhile.

        Raises permanent errors, and KafkaUnavailable or the database's error when ``Limits.start_wait`` is over.
        """
        began, waits, limit = monotonic(), Backoff().waits(), self._limits.start_wait or math.inf
        trouble: events.KafkaTrouble | events.DatabaseTrouble
        is_delayed = False
        self._announce(events.Starting(group=self._pipeline.group))
        while True:
            try:
                self._check()
            except KafkaUnavailable as error:
                if monotonic() - began >= limit:
                    raise KafkaUnavailable(error.text, CHECK_KAFKA) from error
                trouble = events.KafkaTrouble(error=str(error))
                reason = str(KafkaUnavailable(error.text, CHECK_KAFKA))
            except Exception as error:
                if not is_transient_at_start(error) or monotonic() - began >= limit:
                    raise
                trouble = events.DatabaseTrouble(error=error)
                reason = f"{one_line(error)}; check that the server runs, and check the database's URL"
            else:
                return not self._stopping.is_set()
            if not is_delayed:
                is_delayed = True
                make_consumer({**self._config, "log_level": 0}).close()  # raises an error for unknown options
                self._announce(events.StartDelayed(reason=reason, limit=self._limits.start_wait))
            self._kafka_timeout = min(limit, self._limits.kafka_timeout)
            wait = max(0.0, min(next(waits), limit - (monotonic() - began)))
            self._announce(replace(trouble, wait=wait))
            if self._stopping.wait(wait):
                return False

    def _check(self) -> None:
        """Check schema, tables, topics and partitions once; each error is one sentence."""
        with first_connection(self._ledger.engine) as connection:
            check(connection, self._ledger.schema)
            if (detected := pooler.detect(connection)) is not None:
                self._announce(events.PoolerDetected(announced=detected.announced, answering=detected.answering))
        self._check_tables()
        identity = Identity(self._config, self._kafka_timeout)
        try:
            identity.cluster_id()
            self._add_topics(identity)
            counts = self._counts(identity)
        except KafkaRefused as error:
            raise ConfigError(f"{error.text}; {CHECK_KAFKA}") from None
        for sink in self._pipeline.sinks:
            for topic, count in counts.items():
                if count > 1 and sink.empties and sink.takes(topic):
                    raise ConfigError(f"{sink!r}: topic {topic!r} has {count} partitions: {ONE_PARTITION}")
        for topic, number in self._partitions or ():
            if not 0 <= number < counts[topic]:
                raise ConfigError(
                    f"partitions= names {topic}/{number}, but topic {topic!r} has {counts[topic]} partitions, numbered "
                    "from 0"
                )

    def _add_topics(self, identity: Identity) -> None:
        """Add the topics that the pipeline's pattern matches. Raises ConfigError if there is none."""
        if (pattern := self._pipeline.pattern) is None:
            return
        for pause in (*UNKNOWN, 0.0):
            if (names := pattern.matching(identity.names())) or self._stopping.wait(pause):
                break
        else:
            raise ConfigError(
                f"no topic's name matches {pattern!r} as a whole: create one, grant this user DESCRIBE on it, or "
                "correct the pattern"
            )
        for topic in names:
            self._pipeline.add_topic(topic)

    def _counts(self, identity: Identity) -> Mapping[str, int]:
        """How many partitions each topic has. Raises ConfigError for a topic that stays unknown.

        A broker that has just started may not know topics that exist.
        """
        for pause in UNKNOWN:
            counts = identity.known(self._pipeline.topics)
            if len(counts) == len(self._pipeline.topics) or self._stopping.wait(pause):
                break
        return identity.partitions(self._pipeline.topics)

    def _check_tables(self) -> None:
        """Find missing tables, columns and rights before the first record.

        The worker starts in spite of a transient error, such as an index build's lock, for which its batches will wait.
        """
        wait = text("SELECT set_config('lock_timeout', :wait, true)")
        try:
            with self._ledger.engine.connect() as connection:  # its transaction is rolled back at the end
                connection.execute(wait, {"wait": f"{max(1, round(self._limits.claim_wait * 1000))}ms"})
                self.tables = self._pipeline.check_tables(connection)
        except Exception as error:
            if not is_transient(error):
                raise
            self._announce(events.DatabaseTrouble(error=error))


def is_transient_at_start(error: BaseException) -> bool:
    """Whether the database may answer later; False if it refused the worker, or for other errors.

    A wrong password is not tried again, because the server may count attempts.
    """
    message = str(error_attribute(error, "orig") or error).lower()
    return (
        is_transient(error) and not any(sentence in message for sentence in _REFUSED) and not _BAD_VALUE.search(message)
    )
