"""Gauges of all groups of a ledger, even of those whose workers have crashed; read from views with SQL."""

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

# In seconds. Prometheus waits ten seconds for a scrape, in which brokers may have to answer three questions.
TIMEOUT = 5.0  # seconds for each statement
KAFKA_TIMEOUT = 2.0


class LedgerGauges:
    """Reads the gauges of all groups of one ledger, in one read-only transaction each time.

    With ``kafka``, librdkafka's configuration, the brokers are asked where the logs begin and end. Then lag and
    headroom are known even if no worker runs, although in seconds they also need the workers' last samples. Without
    brokers, or if none answers, both come from those samples, and have no series if the last one is older than three
    minutes. If the database does not answer, the gauge "ledger_up" is 0, and nothing else has a series.
    """

    def __init__(
        self, engine: Engine | URL | str, *, schema: str = DEFAULT_SCHEMA, kafka: Mapping[str, Any] | None = None
    ) -> None:
        self.error: Exception | None = None  # of the last reading
        self._engine, self._schema = postgres_engine(engine), schema
        self._kafka = dict(kafka or {})
        self._identity: Identity | None = None
        self._reading = threading.Lock()  # concurrent scrapes read one after the other

    def add_to(self, samples: Samples) -> None:
        """Add the current gauges. Raises nothing if a server is down."""
        if not self._reading.acquire(timeout=TIMEOUT):  # a server does not answer: no further thread waits for it
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

    def _note(self, error: Exception | None, problem: str = "") -> None:
        if error is not None and self.error is None:  # logged once, until a reading succeeds
            logger.warning("%s: %s", problem, getattr(error, "orig", None) or error)
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
        error, logs = self._ask_brokers(ids) if self._kafka else (None, {})
        for row in partitions:
            _add_partition(samples, row, lag_of(row, logs))
        if self._kafka:
            samples.add(of.KAFKA_UP, error is None)
        self._note(error, "the brokers do not answer; lag comes from the workers' samples")

    def _ask_brokers(self, rows: Sequence[Row[Any]]) -> tuple[Exception | None, Logs]:
        """These partitions' logs, or the error if no broker answers."""
        ids = {(row.consumer_group, Partition(row.topic, row.partition)): row.topic_id for row in rows}
        try:
            if self._identity is None:
                self._identity = Identity(self._kafka, KAFKA_TIMEOUT)
            if not ids:  # without positions there is no other request, and brokers that are away would count as up
                self._identity.cluster_id()
                return None, {}
            logs = ask_logs(self._identity, ids, self._kafka).logs
        except KafkaUnavailable as error:
            return error, {}
        return None, logs


def _add_partition(samples: Samples, row: Row[Any], lag: Lag) -> None:
    group, partition = row.consumer_group, Partition(row.topic, row.partition)
    samples.add_at(of.NEXT_OFFSET, row.next_offset, group, partition)
    samples.add_at(of.LAG, lag.lag, group, partition)
    samples.add_at(of.LAG_SECONDS, lag.lag_seconds, group, partition)
    samples.add_at(of.HEADROOM, lag.headroom, group, partition)
    samples.add_at(of.HEADROOM_SECONDS, lag.headroom_seconds, group, partition)
    samples.add_at(of.SAMPLE_AGE, None if row.sample_age is None else row.sample_age.total_seconds(), group, partition)
    samples.add_at(of.OWNED, row.owned, group, partition)
    samples.add_at(of.DEAD_LETTERS_OPEN, row.dead_letters, group, partition)
    samples.add_at(of.BLOCKED, row.blocked, group, partition)
    samples.add_at(of.RECORDS_WAITING, row.waiting, group, partition)
    samples.add_at(of.OLDEST_WAITING, row.oldest_waiting_seconds, group, partition)
    if row.stop_kind is not None:
        samples.add_at(of.STOPPED, 1, group, partition, row.stop_kind)
    if row.committed_at is not None:
        samples.add_at(of.LAST_COMMIT, row.committed_at.timestamp(), group, partition)
