"""Writes the rows that operators read: workers' states, samples of positions and logs, declarations.

Each transaction is short, separate and bounded. No worker bases a decision on these rows; a reset reads the
declarations, to protect sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from seekpoint.ledger.ledger import GroupLedger
from seekpoint.ledger.schema_connection import APPLICATION, GroupConnection
from seekpoint.ledger.sql import STATUS, arrays, asking_for
from seekpoint.records import Partition, storable

_SAMPLED = ("sampled_topic", "sampled_partition", "sampled_log_start", "sampled_log_end")
TIMEOUT = 1.0  # seconds, for each statement


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """The process of a worker, for operators; ``library`` is the version of Seekpoint."""

    host: str
    pid: int
    client_id: str | None
    library: str


class StatusTables:
    """Writes one worker's rows for display."""

    def __init__(self, ledger: GroupLedger, process: WorkerProcess) -> None:
        self._ledger, self._process, self._owner = ledger, process, ledger.owner

    def seen(self, state: str, trouble: str | None = None) -> None:
        """Store that the worker runs, and its state; ``trouble``: what is wrong, why it waits, or by what it ended."""
        with self._begin() as tx:
            tx.execute(
                STATUS["worker_seen"],
                owner=self._owner,
                host=storable(self._process.host),
                pid=self._process.pid,
                client=self._process.client_id,
                version=self._ledger.version,
                library=self._process.library,
                state=state,
                trouble=None if trouble is None else storable(trouble),
            )

    def sample(self, logs: Mapping[Partition, tuple[int, int]]) -> None:
        """Store position, log start and log end of the partitions in ``logs`` that this worker owns."""
        rows = [(*partition, *log) for partition, log in sorted(logs.items())]
        with self._begin() as tx:
            tx.execute(STATUS["insert_samples"], owner=self._owner, **arrays(rows, *_SAMPLED))

    def prune(self, partitions: Collection[Partition]) -> None:
        """Delete outdated samples of these partitions, and workers that were not seen for a day."""
        with self._begin() as tx:
            tx.execute(STATUS["prune_samples"], **asking_for(sorted(partitions)))
            tx.execute(STATUS["delete_unseen"])

    def declare(self, declared: Mapping[str, Any]) -> None:
        """Store the pipeline's declarations by topic; no effect if the group is at another handler version."""
        with self._begin() as tx:
            tx.execute(STATUS["store_declared"], version=self._ledger.version, declared=Jsonb(dict(declared)))

    @contextmanager
    def _begin(self) -> Iterator[GroupConnection]:
        with self._ledger.engine.connect() as connection:
            connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                tx = self._ledger.group_connection(connection)
                name = f"{APPLICATION}status {self._owner.hex[:8]} {self._ledger.group}"[:63]
                tx.execute(STATUS["configure"], timeout=f"{round(TIMEOUT * 1000)}ms", application_name=name)
                yield tx
