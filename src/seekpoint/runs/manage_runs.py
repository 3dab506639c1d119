"""The administration of a ledger's runs: list them, take one over, abort, and sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql as ident
from sqlalchemy import URL, Engine, Row, text
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import ConfigError, ReloadOver
from seekpoint.ledger.schema_revision import check
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import DEPENDENT_OBJECTS_STILL_EXIST, UNDEFINED_TABLE, is_transient, sqlstate
from seekpoint.records import add_note, one_line, storable
from seekpoint.runs.run import (
    SHORT_LOCK_WAIT,
    Driver,
    Run,
    StagedPosition,
    Tx,
    how_it_ended,
    release_groups,
    run_of,
    this_driver,
    transaction,
)
from seekpoint.sinks.copy import driver_of


class Runs:
    """The runs of one ledger, from :attr:`seekpoint.admin.Admin.runs`: list them, take one over, abort, and sweep."""

    def __init__(self, engine: Engine | URL | str, schema: str = DEFAULT_SCHEMA, limits: Limits | None = None) -> None:
        self.engine, self.schema, self.limits = postgres_engine(engine), schema, limits or Limits()

    def list(self) -> Sequence[Run]:
        """Every run, the newest first."""
        with self._begin() as tx:
            return [run_of(row) for row in tx.execute(RELOAD_RUN["all_runs"])]

    def get(self, id: UUID) -> Run:  # noqa: A002 -- the column's name
        """One run. Raises ConfigError if there is no run with that id."""
        with self._begin() as tx:
            return self._known(id, tx.execute(RELOAD_RUN["get_run"], run=id).one_or_none())

    def positions(self, id: UUID) -> Sequence[StagedPosition]:  # noqa: A002
        """The run's position in each partition."""
        with self._begin() as tx:
            return tx.positions_of(id)

    def take_over(self, id: UUID, driver: str | None = None) -> Driver:  # noqa: A002
        """Become the driver of this run: the previous one fails at its next step. Waits for a running step.

        Raises ReloadOver if the run has ended, ConfigError if it does not exist.
        """
        with self._begin(self.limits.transaction_age) as tx:
            row = tx.execute(RELOAD_RUN["take_over"], run=id, driver=storable(driver or this_driver())).one_or_none()
            if row is None:
                run = self._known(id, tx.execute(RELOAD_RUN["get_run"], run=id).one_or_none())
                raise ReloadOver(f"run {id} is {how_it_ended(run)}: open another one")
            return Driver(self.engine, self.schema, run_of(row), self.limits)

    def abort(self, id: UUID, reason: str) -> Run:  # noqa: A002
        """End an open run and drop its staged tables; does not change live tables and positions. Waits for a running
        step.

        Raises ReloadOver if the run has already ended, ConfigError if it does not exist. A later :meth:`sweep` drops
        tables to which tasks still write.
        """
        with self._begin(self.limits.transaction_age) as tx:
            closed = tx.execute(RELOAD_RUN["close"], run=id, state="aborted", error=storable(reason)).one_or_none()
            if closed is None:
                run = self._known(id, tx.execute(RELOAD_RUN["get_run"], run=id).one_or_none())
                raise ReloadOver(f"run {id} is {how_it_ended(run)}")
            release_groups(tx.connection, self.schema, id, closed.groups, reason)
        self.drop(id)
        return self.get(id)

    def drop(self, id: UUID) -> bool:  # noqa: A002
        """Drop an ended run's staged tables; returns whether all are dropped. Raises ReloadOver for an open run."""
        run = self.get(id)
        if run.is_open:
            raise ReloadOver(f"run {id} is {run.state}: finish or abort it first")
        return run.swept or sweep(self.engine, self.schema, run)

    def sweep(self, gone_after: timedelta = timedelta(days=1)) -> Sequence[UUID]:
        """Mark runs without a heartbeat for ``gone_after`` as failed, and drop the staged tables of ended runs.

        Returns the runs without tables; a later sweep drops tables that are in use now.
        """
        with self._begin() as tx:
            for row in tx.execute(RELOAD_RUN["gone"], age=gone_after).all():
                release_groups(tx.connection, self.schema, row.id, row.groups, "its driver is gone")
        with self._begin() as tx:
            ended = [run_of(row) for row in tx.execute(RELOAD_RUN["unswept"])]
        return [run.id for run in ended if sweep(self.engine, self.schema, run)]

    @contextmanager
    def _begin(self, lock_wait: float = 30.0) -> Iterator[Tx]:
        """A transaction. Raises SchemaMismatch if the ledger's tables do not exist."""
        try:
            with transaction(self.engine, self.schema, lock_wait=lock_wait) as tx:
                yield tx
        except DBAPIError as error:
            if sqlstate(error) == UNDEFINED_TABLE:
                with transaction(self.engine, self.schema) as tx:
                    check(tx.connection, self.schema)
            raise

    def _known(self, id: UUID, row: Row[Any] | None) -> Run:  # noqa: A002
        if row is None:
            raise ConfigError(f"there is no run {id} in schema {self.schema!r}: check id and schema")
        return run_of(row)


_TABLES = text(
    "SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace(quote_ident(:schema)) "
    "AND c.relkind IN ('r', 'p') ORDER BY c.relname"
)
_FUNCTIONS = text(
    "SELECT CAST(CAST(p.oid AS regprocedure) AS text) FROM pg_proc p "
    "WHERE p.pronamespace = to_regnamespace(quote_ident(:schema)) ORDER BY p.proname"
)


def _drop_table(run: Run, table: str) -> ident.Composed:
    return ident.SQL("DROP TABLE IF EXISTS {}").format(ident.Identifier(run.staging_schema, table))


def sweep(engine: Engine, schema: str, run: Run) -> bool:
    """Drop a run's staging schema; returns whether all of it is dropped.

    Drops each table in a separate transaction, because one for thousands of tables would need all their locks at once.
    A table remains, and with it the schema, if a task writes to it, or if a user's view or function depends on it (as
    on the old table after a swap). Users' objects are never dropped.
    """
    with transaction(engine, schema) as tx:
        tables = tx.connection.execute(_TABLES, {"schema": run.staging_schema}).scalars().all()
        functions = tx.connection.execute(_FUNCTIONS, {"schema": run.staging_schema}).scalars().all()
    commands = [_drop_table(run, table) for table in tables]
    commands += [ident.SQL("DROP FUNCTION IF EXISTS {}").format(ident.SQL(function)) for function in functions]
    commands.append(ident.SQL("DROP SCHEMA IF EXISTS {}").format(ident.Identifier(run.staging_schema)))
    if not all([_run(engine, schema, command) for command in commands]):  # noqa: C419 -- try each of them
        return False
    with transaction(engine, schema) as tx:
        tx.execute(RELOAD_RUN["swept"], run=run.id)
    return True


def drop_attempts(engine: Engine, schema: str, run: Run) -> None:
    """Drop the attempt rows once they are in the rebuilt tables, because they take as much space again."""
    with transaction(engine, schema) as tx:
        attempts = {row.table_name for row in tx.execute(RELOAD_RUN["staged"], run=run.id)}
        tables = tx.connection.execute(_TABLES, {"schema": run.staging_schema}).scalars().all()
    for table in tables:
        if table.startswith(tuple(f"{attempt}_" for attempt in attempts)):
            _run(engine, schema, _drop_table(run, table))


def _run(engine: Engine, schema: str, command: ident.Composed) -> bool:
    try:
        with transaction(engine, schema, lock_wait=SHORT_LOCK_WAIT) as tx:
            driver_of(tx.connection).execute(command)
    except (psycopg.Error, DBAPIError) as error:
        code = sqlstate(error)
        if code is None or not (is_transient(error) or code == DEPENDENT_OBJECTS_STILL_EXIST):
            raise
        return False
    return True


@contextmanager
def ending(runs: Runs, driver: Driver, reason: str) -> Iterator[None]:
    """Abort the driver's run if the block leaves it open, and drop its staged tables.

    A run that another driver has taken over stays open. If the abort fails, the block's error gets a note.
    """
    run = driver.run.id
    try:
        yield
    except BaseException as error:
        try:
            _end(runs, driver, reason)
        except Exception as failed:  # noqa: BLE001 -- raise the block's error: it may have the same cause
            remedy = f"`seekpoint reload abort {run} --reason ...`"
            add_note(error, f"run {run} may still be open ({one_line(failed)}): end it with {remedy}")
        raise
    _end(runs, driver, reason)


def _end(runs: Runs, driver: Driver, reason: str) -> None:
    run = runs.get(driver.run.id)
    if not run.is_open:
        runs.drop(run.id)
    elif run.driver_epoch == driver.epoch:
        runs.abort(run.id, reason)
