"""Two groups that read one topic into tables of the same names, each in its schema, so that one replaces the other.

Each row has the handler version that wrote it. A record that is applied twice has two entries, and counts twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text

from seekpoint import Batch, Limits, Pipeline, Poison, Retry, Text, Worker
from seekpoint.admin import Admin, ReplacePlan, ReplaceResult
from support.events import Run
from support.worker_group import PROTOCOLS, WorkerGroup

KAFKA = PROTOCOLS["cooperative"]  # a killed member is missed after three seconds
OFTEN = Limits(idle_check=0.1, lag_check=0.1)
OLD, NEW = 1, 2  # handler versions
TABLES = """
    CREATE TABLE {0}.entries (
        n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, partition int NOT NULL, "offset" bigint NOT NULL,
        version int NOT NULL
    );
    CREATE TABLE {0}.totals (partition int PRIMARY KEY, records bigint NOT NULL)
"""


LATE = Retry(attempts=5, wait_initial=3600, wait_max=3600, jitter=0)


def handler(version: int, away: Collection[str] = ()) -> Any:
    """The handler of this version. Values that begin with ``bad`` and the version's number are poison.

    Values of ``away`` fail with an error that is retried.
    """

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        records = list(batch)
        if any(record.value in away for record in records):
            raise TimeoutError("no answer")
        if bad := [record for record in records if record.value.startswith(f"bad {version}")]:
            raise Poison("a test", *bad)
        rows = [{"partition": record.partition, "offset": record.offset, "version": version} for record in records]
        tx.execute(
            text('INSERT INTO entries (partition, "offset", version) VALUES (:partition, :offset, :version)'), rows
        )
        tx.execute(
            text(
                "INSERT INTO totals VALUES (:partition, :records) ON CONFLICT (partition) DO UPDATE SET "
                "records = totals.records + excluded.records"
            ),
            [
                {"partition": partition, "records": n}
                for partition, n in sorted(Counter(record.partition for record in records).items())
            ],
        )

    return handle


def pipeline(group: str, topic: str, version: int, away: Collection[str] = (), **options: Any) -> Pipeline:
    return Pipeline(
        group, topics=topic, value=Text(), handle=handler(version, away), writes=["entries", "totals"],
        version=version, on_poison="dead_letter", **options,
    )  # fmt: skip


def engine_into(dsn: str, schema: str) -> Engine:
    """An engine whose sessions find the tables in this schema."""
    return create_engine(dsn, connect_args={"options": f"-c search_path={schema}"})


class Replacement:
    """Two groups on the servers of ``worker_group``: that group writes to ``live``, the other group to ``next``."""

    def __init__(self, worker_group: WorkerGroup, live: str, following: str, partitions: int = 2) -> None:
        self.worker_group, self.live, self.next = worker_group, live, following
        self.old, self.new = worker_group.group, f"{worker_group.group}-2"
        self.topic = worker_group.topic(partitions)
        self.partitions = partitions
        self.engines = {schema: engine_into(worker_group.dsn, schema) for schema in (live, following)}
        self.admin = Admin(worker_group.engine, schema=worker_group.schema)

    def worker(self, group: str, version: int, **options: Any) -> Run:
        """Run a worker of the group on a thread."""
        schema = self.live if group == self.old else self.next
        declared = pipeline(group, self.topic, version, **options)
        return self.worker_group.worker(declared, engine=self.engines[schema], limits=OFTEN)

    def process(self, group: str, version: int) -> Mapping[str, Any]:
        """The parameters for a process with a worker of the group."""
        schema = self.live if group == self.old else self.next
        what = {"role": "worker", "dsn": self.worker_group.dsn, "schema": self.worker_group.schema, "group": group}
        kafka = {"bootstrap.servers": self.worker_group.broker, **KAFKA}
        return what | {"topic": self.topic, "version": version, "into": schema, "kafka": kafka}

    def produce(self, *values: str) -> None:
        """Produce these values to each partition."""
        for partition in range(self.partitions):
            self.worker_group.produce(self.topic, values, partition=partition)

    def plan(self) -> ReplacePlan:
        return self.admin.plan_replace(self.old, by=self.new)

    def replace(self, **options: Any) -> ReplaceResult:
        return self.admin.replace_group(self.plan(), **{"reason": "a test", "wait": 60.0, **options})

    def versions(self) -> tuple[set[int], set[int]]:
        """The handler versions of the rows in the live and in the other schema; checks all rows (I1, I4).

        In one snapshot, each record before a group's position, except its dead letters that were not replayed, must
        have one entry in the group's schema, and count once.
        """
        with self.worker_group.engine.connect().execution_options(isolation_level="REPEATABLE READ") as tx:
            return self._versions(tx, self.old, self.live), self._versions(tx, self.new, self.next)

    def _versions(self, tx: Connection, group: str, schema: str) -> set[int]:
        named = {"group": group}
        ledger = f'"{self.worker_group.schema}"'
        positions = tx.execute(
            text(f"SELECT partition, next_offset FROM {ledger}.partition_offset WHERE consumer_group = :group"), named
        )
        expected = {(row.partition, offset) for row in positions for offset in range(row.next_offset)}
        unapplied = "consumer_group = :group AND state <> 'replayed'"
        dead_letters = tx.execute(
            text(f"SELECT partition, record_offset FROM {ledger}.dead_letter WHERE {unapplied}"), named
        )
        expected -= {(row.partition, row.record_offset) for row in dead_letters}
        entries = tx.execute(text(f'SELECT partition, "offset", version FROM {schema}.entries')).all()
        counted = Counter((row.partition, row.offset) for row in entries)
        lost, twice = expected - counted.keys(), counted - Counter(expected)
        assert (not lost, not twice) == (True, True), f"{schema}: lost {sorted(lost)[:9]}, twice {sorted(twice)[:9]}"
        counts = {row.partition: row.records for row in tx.execute(text(f"SELECT * FROM {schema}.totals"))}
        assert counts == Counter(row.partition for row in entries)
        return {row.version for row in entries}

    def positions(self, group: str) -> dict[int, int]:
        with self.worker_group.engine.connect() as tx:
            table = f'"{self.worker_group.schema}".partition_offset'
            query = text(f"SELECT partition, next_offset FROM {table} WHERE consumer_group = :g")
            return {row.partition: row.next_offset for row in tx.execute(query, {"g": group})}

    def wait_for(self, group: str, offset: int) -> None:
        """Wait until the group has this position in every partition."""
        self.worker_group.wait(lambda: self.positions(group) == dict.fromkeys(range(self.partitions), offset))


def make_worker(what: Mapping[str, Any], observe: list[Any]) -> tuple[Worker, Engine]:
    """Make the worker of :meth:`Replacement.process`, and its engine, which the caller disposes of."""
    engine = engine_into(what["dsn"], what["into"])
    declared = pipeline(what["group"], what["topic"], what["version"])
    worker = Worker(
        declared, engine=engine, kafka=what["kafka"], schema=what["schema"], limits=OFTEN, observe=observe,
    )  # fmt: skip
    return worker, engine
