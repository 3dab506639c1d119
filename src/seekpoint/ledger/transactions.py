"""Transactions on the ledger's tables: durable, with bounded waits for locks, and with a name for operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import WORKER
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import separate_engine
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, sqlstate

T = TypeVar("T")


class GroupTransactions:
    """Opens transactions on one group's rows, on connections of ``engine``.

    ``application_name`` is their name in pg_stat_activity.
    """

    engine: Engine
    group: str
    schema: str
    limits: Limits
    application_name: str

    @contextmanager
    def apart(self) -> Iterator[Self]:
        """A copy with connections outside of the engine's pool, closed when the block ends."""
        copied = copy(self)
        with separate_engine(self.engine) as copied.engine:
            yield copied

    def group_connection(self, connection: Connection) -> GroupConnection:
        """The caller's connection, for statements on this group's rows."""
        return GroupConnection(connection, self.schema, self.group)

    def configure(self, tx: Connection, lock_wait: float | None = None) -> None:
        """Make a transaction durable, even with ``synchronous_commit=False``, and bound its lock waits (seconds).

        The first statement of each transaction except that of a batch; ``lock_wait`` is ``Limits.claim_wait`` by
        default.
        """
        self.group_connection(tx).execute(WORKER["configure"], **self._configuration(lock_wait))

    def _configuration(self, lock_wait: float | None) -> dict[str, str]:
        wait = self.limits.claim_wait if lock_wait is None else lock_wait
        # The first worker of a topic asks the brokers while it has locked the group.
        idle = max(self.limits.transaction_age, 2 * self.limits.kafka_timeout)
        return {
            "lock_timeout": f"{max(1, round(wait * 1000))}ms",
            "idle": f"{round(idle * 1000)}ms",
            "application_name": self.application_name,
        }

    @property
    def _short_wait(self) -> float:
        """Seconds to wait for the lock of one row that must not hold up other partitions."""
        return min(0.05, self.limits.claim_wait)

    @contextmanager
    def begin(self, lock_wait: float | None = None) -> Iterator[GroupConnection]:
        """Begin a durable transaction with bounded lock waits."""
        with self._transaction() as tx:
            self.configure(tx.connection, lock_wait)
            yield tx

    @contextmanager
    def _transaction(self) -> Iterator[GroupConnection]:
        """A transaction that is not configured yet."""
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                yield self.group_connection(connection)

    @contextmanager
    def _plain_read(self) -> Iterator[GroupConnection]:
        """A connection for plain reads, without a transaction: one round trip each."""
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            yield self.group_connection(connection)


def unless_locked(
    transaction: AbstractContextManager[GroupConnection], step: Callable[[GroupConnection], T]
) -> T | None:
    """Run ``step`` in a transaction; None if a lock was not granted in time."""
    try:
        with transaction as tx:
            return step(tx)
    except OperationalError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        return None
