"""A run in the database: driver, state and positions. Each step is one transaction that locks the run's row."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.sql import SQL, Identifier
from sqlalchemy import Connection, Engine, Row, text
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import ReloadOver, ReloadRefused
from seekpoint.ledger.admin_actions import operator, pauser, set_paused
from seekpoint.ledger.schema_connection import APPLICATION, GroupConnection, SchemaConnection
from seekpoint.ledger.sql import GROUPS, RELOAD_RUN, WORKER
from seekpoint.ledger.tables import PUBLISHING, RELOAD_CLOSED, is_of_frames, reload_position
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.sqlstates import SERIALIZATION_FAILURE, sqlstate
from seekpoint.records import Partition, storable
from seekpoint.sinks.copy import driver_of

REPEATABLE_READ = "REPEATABLE READ"  # one snapshot for all reads of a transaction
SHORT_LOCK_WAIT = 0.3  # seconds to wait for a lock; sessions that queue for the same lock wait just as long

CRASH_CHECK = "crash_check"  # an unlogged table with one row, which a crash of Postgres deletes
_STAGED = text(
    """
    SELECT to_regclass(format('%I.crash_check', CAST(:schema AS text))) IS NOT NULL AS is_unlogged,
           to_regnamespace(quote_ident(:schema)) IS NOT NULL AS is_staged,
           (SELECT min(CAST(pubname AS text)) FROM pg_publication WHERE puballtables) AS published
    """
)


@dataclass(frozen=True, slots=True)
class Run:
    """One row of ``reload_run``. Times are the database's."""

    id: UUID
    groups: tuple[str, ...]
    tables: tuple[str, ...]
    strategy: str
    pipelines: tuple[str, ...]
    version_from: tuple[int, ...]
    version_to: tuple[int, ...]
    state: str
    driver_epoch: int
    driver: str
    staging_schema: str
    swept: bool
    diff_xid: str | None
    actor: str
    reason: str
    error: str | None
    archive: str | None
    differences: tuple[Mapping[str, Any], ...] | None
    opened_at: datetime
    changed_at: datetime

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended."""
        return self.state not in RELOAD_CLOSED

    @property
    def is_of_frames(self) -> bool:
        """Whether the run rebuilds a SparkPipeline's tables, as its schema's name shows."""
        return is_of_frames(self.staging_schema)

    @property
    def kind(self) -> str:
        """The run's kind in messages: "reload" or the strategy."""
        return "reload" if self.strategy in PUBLISHING else self.strategy


@dataclass(frozen=True, slots=True)
class StagedPosition:
    """A run's position in one partition; ``next_offset`` is the next offset to read."""

    group: str
    partition: Partition
    topic_id: UUID
    first_offset: int
    end_offset: int
    next_offset: int
    epoch: int
    resets: int


def position_of(row: Row[Any], *, end: int) -> StagedPosition:
    """A run's initial position in the partition of a ``partition_offset`` row: the group's first applied offset."""
    partition, first = Partition(row.topic, row.partition), row.first_offset
    return StagedPosition(row.consumer_group, partition, row.topic_id, first, end, first, row.epoch, row.resets)


def values_of(row: Row[Any]) -> dict[str, Any]:
    """A row's values by column name, with arrays as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row._asdict().items()}


def run_of(row: Row[Any]) -> Run:
    """A row of ``reload_run`` as a Run."""
    return Run(**values_of(row))


def this_driver() -> str:
    """This process as ``user@host:pid``, as Postgres can store it."""
    return storable(f"{operator()}@{socket.gethostname()}:{os.getpid()}")


class Tx(SchemaConnection):
    """A transaction on the ledger's tables and on those of a run's staging schema."""

    connection: HandlerConnection

    def positions_of(self, run: UUID) -> list[StagedPosition]:
        """The run's positions, in the order of locks."""
        rows = (tuple(row) for row in self.execute(RELOAD_RUN["positions"], run=run))
        return [StagedPosition(row[1], Partition(*row[2:4]), *row[4:]) for row in rows]

    def get_run(self, run: UUID) -> Run | None:
        """The run's row; None if it does not exist."""
        row = self.execute(RELOAD_RUN["get_run"], run=run).one_or_none()
        return None if row is None else run_of(row)

    def add_positions(self, run: UUID, positions: Iterable[StagedPosition]) -> None:
        """Store a run's positions: first, end and next offset of each partition."""
        columns = reload_position.columns.keys()
        rows = [
            (run, position.group, position.partition.topic, position.partition.number, *astuple(position)[2:])
            for position in positions
        ]
        self.execute(RELOAD_RUN["insert_position"], [dict(zip(columns, row, strict=True)) for row in rows])


class Step(Tx):
    """The transaction of one step of a run. ``run`` is the run's row at the beginning of the step."""

    def __init__(self, tx: Tx, run: Run) -> None:
        super().__init__(tx.connection, tx.schema)
        self.run = run

    def positions(self) -> list[StagedPosition]:
        """The run's positions, in the order of locks."""
        return self.positions_of(self.run.id)

    def offsets(self) -> Sequence[Row[Any]]:
        """The rows of ``partition_offset`` of the run's groups."""
        return self.execute(RELOAD_RUN["offsets"], groups=list(self.run.groups)).all()

    def advance(self, ends: Mapping[tuple[str, Partition], int]) -> None:
        """Advance the run's positions to ``ends``, in the transaction that adds the rows."""
        ordered = sorted(ends)
        self.execute(
            RELOAD_RUN["advance_positions"],
            run=self.run.id,
            moving_consumer_group=[group for group, _ in ordered],
            moving_topic=[partition.topic for _, partition in ordered],
            moving_partition=[partition.number for _, partition in ordered],
            moving_to_offset=[ends[key] for key in ordered],
        )


@contextmanager
def transaction(
    engine: Engine, schema: str, *, lock_wait: float = 30.0, isolation: str = "READ COMMITTED"
) -> Iterator[Tx]:
    """A durable transaction with a wait of at most ``lock_wait`` seconds for a lock; an error closes its connection."""
    connection = HandlerConnection(engine)
    try:
        connection.execution_options(isolation_level=isolation)
        with connection.begin():
            tx = Tx(connection, schema)
            tx.execute(
                WORKER["configure"],
                lock_timeout=f"{max(1, round(lock_wait * 1000))}ms",
                idle="0",
                application_name=f"{APPLICATION}job {os.getpid()}",
            )
            tx.execute(RELOAD_RUN["unhurried"])
            yield tx
    except BaseException:
        connection.put_back(broken=True)
        raise
    connection.put_back()


# -- a batch job pauses its group and owns the group's partitions ---------------------------------------------------


def release_groups(connection: Connection, schema: str, run: UUID, groups: Sequence[str], reason: str) -> None:
    """Resume the groups of a batch job and release its claims, in the transaction that ends the job.

    Groups that another actor has paused stay paused. Does nothing for runs of other kinds.
    """
    for group in sorted(groups):
        scope = GroupConnection(connection, schema, group)
        row = scope.execute(GROUPS["read"]).one_or_none()
        if row is not None and row.paused and row.paused_by == pauser(run):
            set_paused(scope, False, actor=pauser(run), reason=reason)
        scope.execute(RELOAD_RUN["disown"], run=run)


# -- the driver ---------------------------------------------------------------------------------------------------


class Driver:
    """Carries out the steps of a run, until another driver takes it over.

    ``run`` is the run's row as of the last step. For a new run, ``plan`` says how each table is rebuilt, and ``notes``
    what a merge may change in other tables.
    """

    plan: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __init__(self, engine: Engine, schema: str, run: Run, limits: Limits) -> None:
        self.engine, self.schema, self.run, self.limits = engine, schema, run, limits
        self.epoch = run.driver_epoch

    @contextmanager
    def step(
        self, *states: str, isolation: str = "READ COMMITTED", before: Callable[[Tx], object] | None = None
    ) -> Iterator[Step]:
        """One step: a transaction that locks the run's row, and requires the newest driver and one of these ``states``.

        ``before`` is called in the transaction before it locks the row, so that other steps are not blocked meanwhile.
        Raises ReloadOver, with nothing written, if the run is in another state or another driver took it over. Raises
        ReloadRefused, which ends the run, if a crash emptied the staged tables or a publication has them.
        """
        wait = self.limits.transaction_age
        with transaction(self.engine, self.schema, lock_wait=wait, isolation=isolation) as tx:
            if before is not None:
                before(tx)
            self._admit(self._lock(tx), states)
            if (why := self._lost(tx)) is None:
                yield Step(tx, self.run)
                self.run = run_of(tx.execute(RELOAD_RUN["get_run"], run=self.run.id).one())
        if why is not None:
            refused = ReloadRefused([why])
            self.fail(refused)
            raise refused

    def _lost(self, tx: Tx) -> str | None:
        """Return why the staged tables can no longer be used; None if they can."""
        status = tx.connection.execute(_STAGED, {"schema": self.run.staging_schema}).one()
        if not status.is_unlogged:
            if not status.is_staged or status.published is None:
                return None
            return (
                f"publication {status.published} FOR ALL TABLES was created since the run was opened, and would "
                "publish the run's own tables: open another run"
            )
        check = Identifier(self.run.staging_schema, CRASH_CHECK)
        if driver_of(tx.connection).execute(SQL("SELECT FROM {}").format(check)).rowcount == 1:
            return None
        why = "Postgres has crashed since the run was opened, which emptied its unlogged tables (they are unlogged"
        return f"{why} because a publication has all tables): open another run"

    def _lock(self, tx: Tx) -> Row[Any] | None:
        try:
            return tx.execute(RELOAD_RUN["step"], run=self.run.id).one_or_none()
        except DBAPIError as error:
            if sqlstate(error) != SERIALIZATION_FAILURE:
                raise
            # Another transaction wrote the row while this one waited for the lock: read it in a newer snapshot.
            with transaction(self.engine, self.schema) as newer:
                self._admit(newer.execute(RELOAD_RUN["get_run"], run=self.run.id).one_or_none(), _OPEN)
            raise

    def _admit(self, row: Row[Any] | None, states: Collection[str]) -> None:
        if row is None:
            raise ReloadOver(f"run {self.run.id} no longer exists")
        run = run_of(row)
        if run.driver_epoch != self.epoch:
            raise ReloadOver(
                f"run {run.id} was taken over by {run.driver} (driver epoch {run.driver_epoch}, this one has "
                f"{self.epoch}): leave it to that driver, or take it over again"
            )
        if not run.is_open:
            raise ReloadOver(f"run {run.id} is {how_it_ended(run)}")
        if run.state not in states:
            raise ReloadOver(f"run {run.id} is {run.state}, and this step needs it to be {' or '.join(states)}")
        self.run = run

    def transition(self, tx: Tx, state: str) -> None:
        """Enter the next state, in this step."""
        tx.execute(RELOAD_RUN["transition"], run=self.run.id, state=state)

    def heartbeat(self) -> None:
        """Store a heartbeat of the driver. Raises the errors of :meth:`step`."""
        with self.step(*_OPEN):
            pass

    @contextmanager
    def ending(
        self, ends: tuple[type[Exception], ...], refusal: Callable[[Exception], Exception | None]
    ) -> Iterator[None]:
        """End the run and store the reason, if the block raises an error that every driver would get.

        These are the classes ``ends``, and errors that ``refusal`` translates: its result is raised instead.
        """
        try:
            yield
        except ends as error:
            self.fail(error)
            raise
        except Exception as error:
            if (refused := refusal(error)) is None:
                raise
            self.fail(refused)
            raise refused from error

    def fail(self, error: BaseException) -> None:
        """End the run as failed, unless another driver has taken it over; its tables are swept later."""
        reason = storable(f"{type(error).__name__}: {error}")
        with transaction(self.engine, self.schema) as tx:
            row = tx.execute(RELOAD_RUN["step"], run=self.run.id).one_or_none()
            if row is not None and row.driver_epoch == self.epoch:
                tx.execute(RELOAD_RUN["close"], run=self.run.id, state="failed", error=reason)
                release_groups(tx.connection, self.schema, self.run.id, self.run.groups, reason)
                self.run = run_of(tx.execute(RELOAD_RUN["get_run"], run=self.run.id).one())


_OPEN = ("opened", "staging", "staged", "indexed", "catching_up", "compared")


def how_it_ended(run: Run) -> str:
    """The state of an ended run, with its error."""
    word = run.state.replace("_", " ")
    return f"{word}: {run.error}" if run.error else word


Progress = Callable[[str, int, int], None]  # activity, amount done, total
