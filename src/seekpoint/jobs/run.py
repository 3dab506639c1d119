"""A run in the database: its driver, state and positions. Each step is one transaction that locks the run's row."""

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
from seekpoint.ledger.tables import PUBLISHING, RELOAD_CLOSED, reload_position
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.sqlstates import SERIALIZATION_FAILURE, sqlstate
from seekpoint.records import Partition, storable
from seekpoint.sinks.copy import driver_of

SERIALIZABLE_ENOUGH = "REPEATABLE READ"  # one snapshot for all that a step reads

CRASH_CHECK = "crash_check"  # a table with one row, until Postgres crashes: that empties every unlogged table
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
        """Whether it has not ended."""
        return self.state not in RELOAD_CLOSED

    @property
    def kind(self) -> str:
        """What it is called in messages."""
        return "reload" if self.strategy in PUBLISHING else self.strategy


@dataclass(frozen=True, slots=True)
class StagedPosition:
    """A run's position in one partition: ``next_offset`` is the next one that it reads."""

    group: str
    partition: Partition
    topic_id: UUID
    first_offset: int
    end_offset: int
    next_offset: int
    epoch: int
    resets: int


def position_of(row: Row[Any], *, end: int) -> StagedPosition:
    """A run's first position for a row of ``OFFSETS``: the first offset that its group has applied."""
    at, first = Partition(row.topic, row.partition), row.first_offset
    return StagedPosition(row.consumer_group, at, row.topic_id, first, end, first, row.epoch, row.resets)


def values_of(row: Row[Any]) -> dict[str, Any]:
    """A row's values by the names of its columns, arrays as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row._asdict().items()}


def run_of(row: Row[Any]) -> Run:
    """A row of ``reload_run`` as a value."""
    return Run(**values_of(row))


def this_driver() -> str:
    """This process as ``user@host:pid``."""
    return f"{operator()}@{socket.gethostname()}:{os.getpid()}"


class Tx(SchemaConnection):
    """A transaction of a run, on the ledger's tables and those of its staging schema."""

    connection: HandlerConnection

    def positions_of(self, run: UUID) -> list[StagedPosition]:
        """The run's positions, in the order of locks."""
        rows = (tuple(row) for row in self.execute(RELOAD_RUN["positions"], run=run))
        return [StagedPosition(row[1], Partition(*row[2:4]), *row[4:]) for row in rows]

    def add_positions(self, run: UUID, positions: Iterable[StagedPosition]) -> None:
        """Store a run's positions: where it begins, ends for now, and is."""
        columns = reload_position.columns.keys()
        given = [(run, at.group, at.partition.topic, at.partition.number, *astuple(at)[2:]) for at in positions]
        self.execute(RELOAD_RUN["insert_position"], [dict(zip(columns, values, strict=True)) for values in given])


class Step(Tx):
    """The transaction of one step of a run. ``run`` is its row as the step has found it."""

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
        """Move the run's positions, in the transaction that adds its rows."""
        ordered = sorted(ends)
        self.execute(
            RELOAD_RUN["advance_positions"],
            run=self.run.id,
            moving_consumer_group=[group for group, _ in ordered],
            moving_topic=[at.topic for _, at in ordered],
            moving_partition=[at.number for _, at in ordered],
            moving_to_offset=[ends[each] for each in ordered],
        )


@contextmanager
def transaction(
    engine: Engine, schema: str, *, lock_wait: float = 30.0, isolation: str = "READ COMMITTED"
) -> Iterator[Tx]:
    """A durable transaction with bounded waits for locks (seconds); after an error its connection is closed."""
    connection = HandlerConnection(engine)
    try:
        connection.execution_options(isolation_level=isolation)
        with connection.begin():
            tx = Tx(connection, schema)
            tx.execute(
                WORKER["configure"],
                lock_timeout=f"{max(1, round(lock_wait * 1000))}ms",
                application_name=f"{APPLICATION}job {os.getpid()}",
            )
            tx.execute(RELOAD_RUN["unhurried"])
            yield tx
    except BaseException:
        connection.put_back(broken=True)
        raise
    connection.put_back()


# -- a batch job pauses its group and is its partitions' owner ------------------------------------------------------


def let_go(connection: Connection, schema: str, run: UUID, groups: Sequence[str], reason: str) -> None:
    """Release the groups, in the transaction that ends a batch job: workers claim, and continue where it ended.

    A pause by another actor stays. For a run of another job this does nothing.
    """
    for group in sorted(groups):
        scope = GroupConnection(connection, schema, group)
        row = scope.execute(GROUPS["read"]).one_or_none()
        if row is not None and row.paused and row.paused_by == pauser(run):
            set_paused(scope, False, actor=pauser(run), reason=reason)
        scope.execute(RELOAD_RUN["disown"], run=run)


# -- the driver ---------------------------------------------------------------------------------------------------


class Driver:
    """One driver's right to take a run's next step: it ends when another driver takes over the run.

    ``run`` is the row as of the last step. ``notes`` say what a merge's changes may reach beside its tables.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, engine: Engine, schema: str, run: Run, limits: Limits) -> None:
        self.engine, self.schema, self.run, self.limits = engine, schema, run, limits
        self.epoch = run.driver_epoch

    @contextmanager
    def step(self, *states: str, isolation: str = "READ COMMITTED") -> Iterator[Step]:
        """One step, in one transaction that locks the run's row: allowed in these states, and to the newest driver.

        Raises ReloadOver where the run has ended, or another driver took it over; then nothing is written. Raises
        ReloadRefused where what was staged is lost, or published; that ends the run.
        """
        wait = self.limits.transaction_age
        with transaction(self.engine, self.schema, lock_wait=wait, isolation=isolation) as tx:
            self._admit(self._lock(tx), states)
            if (why := self._lost(tx)) is None:
                yield Step(tx, self.run)
                self.run = run_of(tx.execute(RELOAD_RUN["get_run"], run=self.run.id).one())
        if why is not None:
            refused = ReloadRefused([why])
            self.fail(refused)
            raise refused

    def _lost(self, tx: Tx) -> str | None:
        """Why what was staged cannot be used any more; None where it can."""
        now = tx.connection.execute(_STAGED, {"schema": self.run.staging_schema}).one()
        if not now.is_unlogged:
            if not now.is_staged or now.published is None:
                return None
            why = f"publication {now.published} FOR ALL TABLES was created since the run was opened, and would have the"
            return f"{why} run's own tables: open another run"
        check = Identifier(self.run.staging_schema, CRASH_CHECK)
        if driver_of(tx.connection).execute(SQL("SELECT FROM {}").format(check)).rowcount == 1:
            return None
        why = "Postgres has crashed since the run was opened, which emptied its tables: they are unlogged, because a"
        return f"{why} publication has all tables. Open another run"

    def _lock(self, tx: Tx) -> Row[Any] | None:
        try:
            return tx.execute(RELOAD_RUN["step"], run=self.run.id).one_or_none()
        except DBAPIError as error:
            if sqlstate(error) != SERIALIZATION_FAILURE:
                raise
            # Another transaction wrote the row while this one waited for it: read it in a newer snapshot.
            with transaction(self.engine, self.schema) as now:
                self._admit(now.execute(RELOAD_RUN["get_run"], run=self.run.id).one_or_none(), _OPEN)
            raise

    def _admit(self, row: Row[Any] | None, states: Collection[str]) -> None:
        if row is None:
            raise ReloadOver(f"there is no run {self.run.id} any more")
        now = run_of(row)
        if now.driver_epoch != self.epoch:
            raise ReloadOver(
                f"run {now.id} was taken over by {now.driver} (driver epoch {now.driver_epoch}, this one has "
                f"{self.epoch}): leave it to that driver, or take it again"
            )
        if not now.is_open:
            raise ReloadOver(f"run {now.id} is {how_it_ended(now)}")
        if now.state not in states:
            raise ReloadOver(f"run {now.id} is {now.state}, and this step follows {' or '.join(states)}")
        self.run = now

    def transition(self, tx: Tx, state: str) -> None:
        """Enter the next state, in this step."""
        tx.execute(RELOAD_RUN["transition"], run=self.run.id, state=state)

    def heartbeat(self) -> None:
        """Store a heartbeat of the driver; raises as :meth:`step` does."""
        with self.step(*_OPEN):
            pass

    @contextmanager
    def ending(
        self, ends: tuple[type[Exception], ...], refusal: Callable[[Exception], Exception | None]
    ) -> Iterator[None]:
        """End the run, with the reason stored, by an error that would recur under every driver.

        That is one of ``ends``, or what ``refusal`` returns for another one, which is raised in its place.
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
        """End the run, unless another driver has taken it over; what is staged is swept later."""
        said = storable(f"{type(error).__name__}: {error}")
        with transaction(self.engine, self.schema) as tx:
            row = tx.execute(RELOAD_RUN["step"], run=self.run.id).one_or_none()
            if row is not None and row.driver_epoch == self.epoch:
                tx.execute(RELOAD_RUN["close"], run=self.run.id, state="failed", error=said)
                let_go(tx.connection, self.schema, self.run.id, self.run.groups, said)
                self.run = run_of(tx.execute(RELOAD_RUN["get_run"], run=self.run.id).one())


_OPEN = ("opened", "staging", "staged", "indexed", "catching_up", "compared")


def how_it_ended(run: Run) -> str:
    """How a run has ended, with its error."""
    word = run.state.replace("_", " ")
    return f"{word}: {run.error}" if run.error else word


Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much
