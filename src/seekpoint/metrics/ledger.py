"""The gauges that a ledger has of all its groups, also of those whose workers are dead: read by SQL, from views."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import URL, Engine, Row
from sqlalchemy.exc import SQLAlchemyError

from seekpoint.admin.lag import Lag, Logs, ask_logs, lag_of
from seekpoint.errors import KafkaUnavailable
from seekpoint.kafka.identity import Identity
from seekpoint.ledger.schema_connection import APPLICATION, SchemaConnection
from seekpoint.ledger.sql import STATUS
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.metrics import catalogue as of
from seekpoint.metrics.samples import Samples
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import Partition

logger = logging.getLogger("seekpoint.metrics")

# Seconds; Prometheus waits ten for a scrape. The brokers are asked three times.
TIMEOUT = 5.0  # for each statement
KAFKA_TIMEOUT = 2.0


class LedgerGauges:
    """Has the gauges of all groups of one ledger; each reading is one transaction that writes nothing.

    ``kafka`` is librdkafka's configuration: then the brokers are asked where the logs begin and end, and lag and
    headroom are known where workers are dead, too: in time by the samples that they have left. Without it, or where
    none answers, both are of the workers' samples, and have no series where the last one is older than three minutes.
    Where the database does not answer, the gauge "ledger_up" is 0, and nothing else has a series.
    """

    def __init__(
        self, engine: Engine | URL | str, *, schema: str = DEFAULT_SCHEMA, kafka: Mapping[str, Any] | None = None
    ) -> None:
        self.error: Exception | None = None  # of the last reading
        self._engine, self._schema = postgres_engine(engine), schema
        self._kafka = dict(kafka or {})
        self._identity: Identity | None = None
        self._reading = threading.Lock()  # two scrapers at once: one after the other

    def add_to(self, samples: Samples) -> None:
        """Add the gauges of now. Raises nothing where a server is away."""
        if not self._reading.acquire(timeout=TIMEOUT):  # a server that never answers: no thread more waits for it
            samples.add(of.LEDGER_UP, 0)
            return
        try:
            self._read(samples)
        except SQLAlchemyError as error:
            self._note(error, "the ledger cannot be read")
            samples.add(of.LEDGER_UP, 0)
        else:
            samples.add(of.LEDGER_UP, 1)
        finally:
            self._reading.release()

    def _note(self, error: Exception | None, what: str = "") -> None:
        if error is not None and self.error is None:  # once, until a reading succeeds
            logger.warning("%s: %s", what, getattr(error, "orig", None) or error)
        self.error = error

    def _read(self, samples: Samples) -> None:
        with self._engine.connect() as connection, connection.begin():
            tx = SchemaConnection(connection, self._schema)
            tx.execute(STATUS["configure"], timeout=f"{TIMEOUT:.0f}s", application_name=f"{APPLICATION}exporter")
            groups, partitions = tx.execute(STATUS["group_status"]).all(), tx.execute(STATUS["lag_of_all"]).all()
            runs = tx.execute(STATUS["silent_drivers"]).all()
            ids = tx.execute(STATUS["topic_ids"]).all() if self._kafka else []
        for row in groups:
            samples.add(of.PAUSED, row.paused, row.consumer_group)
            samples.add(of.WORKERS, row.workers, row.consumer_group)
        for row in runs:
            samples.add(of.RELOAD_SILENT, row.silent, row.id, row.state)
        error, logs = self._ask_brokers(ids)
        for row in partitions:
            _add_partition(samples, row, lag_of(row, logs))
        if self._kafka:
            samples.add(of.KAFKA_UP, error is None)
        self._note(error, "the brokers do not answer; lag is of the workers' samples")

    def _ask_brokers(self, rows: Sequence[Row[Any]]) -> tuple[Exception | None, Logs]:
        """The logs of these partitions; none where no broker answers, with the error."""
        if not rows:
            return None, {}
        ids = {(row.consumer_group, Partition(row.topic, row.partition)): row.topic_id for row in rows}
        try:
            if self._identity is None:
                self._identity = Identity(self._kafka, KAFKA_TIMEOUT)
            logs = ask_logs(self._identity, ids, self._kafka).logs
        except KafkaUnavailable as error:
            return error, {}
        return None, logs


def _add_partition(samples: Samples, row: Row[Any], lag: Lag) -> None:
    group, at = row.consumer_group, Partition(row.topic, row.partition)
    samples.add_at(of.NEXT_OFFSET, row.next_offset, group, at)
    samples.add_at(of.LAG, lag.lag, group, at)
    samples.add_at(of.LAG_SECONDS, lag.lag_seconds, group, at)
    samples.add_at(of.HEADROOM, lag.headroom, group, at)
    samples.add_at(of.HEADROOM_SECONDS, lag.headroom_seconds, group, at)
    samples.add_at(of.SAMPLE_AGE, None if row.sample_age is None else row.sample_age.total_seconds(), group, at)
    samples.add_at(of.OWNED, row.owned, group, at)
    samples.add_at(of.DEAD_LETTERS_OPEN, row.dead_letters, group, at)
    samples.add_at(of.BLOCKED, row.blocked, group, at)
    if row.stop_kind is not None:
        samples.add_at(of.STOPPED, 1, group, at, row.stop_kind)
    if row.committed_at is not None:
        samples.add_at(of.LAST_COMMIT, row.committed_at.timestamp(), group, at)
