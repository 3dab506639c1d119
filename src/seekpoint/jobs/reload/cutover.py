"""The cut-over: one transaction that catches up, publishes the rebuilt rows, sets versions and draws new tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

import psycopg
from psycopg import sql as ident
from psycopg.types.json import Jsonb
from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError

from seekpoint.backoff import TRIES, longer_pause, pause, retried
from seekpoint.errors import CutOverRefused, KafkaUnavailable, RangeStuck, ReloadOver, ReloadRefused
from seekpoint.jobs.reload.compare import Passes, Report
from seekpoint.jobs.reload.cutover_limits import Budget, OverBudget, Plan
from seekpoint.jobs.reload.merge import merge
from seekpoint.jobs.reload.merge_preconditions import allow_wait, others
from seekpoint.jobs.reload.other_topics import other_topics
from seekpoint.jobs.reload.publish import swap
from seekpoint.jobs.reload.rewind import Rewind
from seekpoint.jobs.tables.sql_templates import composed, names, run
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import BATCH, GROUPS, RELOAD_RUN, STATUS
from seekpoint.ledger.tables import dead_letter
from seekpoint.pipeline.declared import declared
from seekpoint.postgres.sqlstates import (
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    connection_lost,
    is_transient,
    sqlstate,
    was_interrupted,
)
from seekpoint.runs.run import Driver, Run, Step, Tx, how_it_ended, run_of, transaction

IDLE = 3.0  # seconds that the brokers may send nothing while all workers wait
LONG_TRIES = 5  # attempts that exceed the workers' maximum wait, after which the cut-over is refused


@dataclass(frozen=True, slots=True)
class CutOver:
    """The result of a cut-over. ``lock_seconds``: from the locks on the offsets to the answer of COMMIT.

    ``records`` is how many records were read under the lock, ``keys`` how many keys were checked there (0 for a swap);
    both are -1 if the run's row had to show that an unanswered COMMIT took effect. ``tries`` counts the attempts.
    """

    lock_seconds: float
    records: int
    keys: int
    tries: int


class PublishedPasses(Passes, Protocol):
    """Brings the rebuilt tables to the groups' positions, the last time with the positions locked."""

    @property
    def sources(self) -> Sequence[PipelineSource]:
        """The pipelines that write the tables."""

    @property
    def rewind(self) -> Rewind | None:
        """The reset that the cut-over carries out; None for an ordinary reload."""

    def apply(self, tx: Step, offsets: Sequence[Row[Any]], /, *, idle: float = IDLE) -> int:
        """As :meth:`Passes.apply`; ``idle`` is how many seconds the brokers may send nothing."""


def cut_over(
    driver: Driver,
    passes: PublishedPasses,
    catch_up: Callable[[], object],
    plan: Plan | None = None,
    *,
    last_pass: Callable[[Budget], object] | None = None,
) -> CutOver:
    """Publish the rebuilt tables, raise versions and epochs, and close the run, in one transaction.

    Positions do not change. Running workers are fenced at their next batch, claim again and continue; those of an older
    handler version exit as outdated. ``catch_up`` runs catch-up passes before the lock, to keep the last one short.
    ``last_pass`` writes in other transactions, so it runs while the positions are locked but the run's row is not.

    After an unanswered COMMIT it reads the run's row; it repeats an attempt that was rolled back (a lock timeout, a
    lost connection). It also rolls back an attempt in which workers would wait longer than the plan's bounds allow;
    after five such attempts it raises CutOverRefused, and the run stays open. Raises ReloadRefused if the run can no
    longer be used; ReloadOver if it has ended or another driver has taken it over; and the error of the last attempt: a
    database error, RangeStuck or KafkaUnavailable.
    """
    plan = plan or Plan()
    waits: list[float] = []
    for attempt in range(1, TRIES + 1):
        budget = Budget(plan.bounds.max_wait)
        try:
            catch_up()
            records, keys = _attempt(driver, passes, budget, plan, last_pass)
        except (DBAPIError, psycopg.Error, RangeStuck, KafkaUnavailable, OverBudget) as error:
            used = budget.used
            if took_effect(driver, error):
                records = keys = -1  # the connection was lost before the results were returned
            elif _was_too_long(error, budget, driver):
                waits.append(used)
                if len(waits) == LONG_TRIES or attempt == TRIES:
                    raise _too_long(
                        driver, passes, waits, plan, by_others=sqlstate(error) == LOCK_NOT_AVAILABLE
                    ) from error
                longer_pause(len(waits))
                continue
            elif attempt == TRIES or not (is_transient(error) or isinstance(error, RangeStuck | KafkaUnavailable)):
                raise
            else:
                pause(attempt)
                continue
        return CutOver(monotonic() - budget.locked_at, records, keys, attempt)
    raise AssertionError("the last try returns or raises")


def changes_nothing(run: Run, report: Report) -> bool:
    """Whether the run would change nothing: equal rows, no dead letters, and no version to raise."""
    return report.is_empty and not report.dead_letters and run.version_from == run.version_to


def close_unchanged(driver: Driver, sources: Iterable[PipelineSource]) -> CutOver:
    """End a run whose tables were equal to the live ones at the comparison's offsets. No worker waits."""
    with driver.step("compared") as tx:
        driver.transition(tx, "cut_over")
        _declare(tx, sources)
        for group in sorted(tx.run.groups):
            note = f"reload {tx.run.id}, no row differed: {tx.run.reason}"
            record_action(GroupConnection(tx.connection, tx.schema, group), "cut-over", actor=tx.run.actor, reason=note)
    return CutOver(0.0, 0, 0, 1)


def _was_too_long(error: BaseException, budget: Budget, driver: Driver) -> bool:
    """Whether its budget, or a row that another session has locked, ended the attempt."""
    if not budget.used:
        return False  # no worker waited
    ended = isinstance(error, OverBudget) or sqlstate(error) == QUERY_CANCELED
    return ended or (sqlstate(error) == LOCK_NOT_AVAILABLE and driver.run.strategy == "merge")


def _too_long(
    driver: Driver, passes: PublishedPasses, waits: list[float], plan: Plan, *, by_others: bool
) -> CutOverRefused:
    attempts = f"{len(waits)} attempts were rolled back after {', '.join(f'{wait:.1f} s' for wait in waits)}"
    predicted = "" if plan.predicted is None else f" ({plan.predicted:.1f} s were predicted)"
    if by_others and max(waits) < plan.bounds.max_wait:
        resume = plan.bounds.resume or f"seekpoint reload resume {driver.run.id}"
        reason = (
            f"another session has locked a row that the merge changes, and workers must not wait for it: {attempts}"
            f"{predicted}: end its transaction, then `{resume}`"
        )
        return CutOverRefused([reason], predicted=plan.predicted, waits=waits)
    with driver.step("compared", "catching_up") as tx:
        how = f"; {others(tx, passes.targets)}" if driver.run.strategy == "merge" else ""
    reason = (
        f"workers would wait longer than the allowed {plan.bounds.max_wait:g} s: {attempts}{predicted}: "
        f"{allow_wait(driver, max(waits), plan.bounds)}{how}"
    )
    return CutOverRefused([reason], predicted=plan.predicted, waits=waits)


def _attempt(
    driver: Driver,
    passes: PublishedPasses,
    budget: Budget,
    plan: Plan,
    last_pass: Callable[[Budget], object] | None,
) -> tuple[int, int]:
    with _locked(driver, budget, last_pass) as tx:
        staging = Staging(tx.run.staging_schema)
        budget.bound(tx.connection)
        offsets = passes.offsets(tx)
        records = passes.apply(tx, offsets, idle=min(IDLE, budget.left))
        keys = 0
        if tx.run.strategy == "merge":
            keys = merge(tx, passes.targets, plan, budget)
        for target in passes.targets if tx.run.strategy != "merge" else ():
            budget.bound(tx.connection)
            swap(tx, staging, target)
        budget.bound(tx.connection)
        take_over_dead_letters(tx, staging)
        _raise_versions(tx)
        _declare(tx, passes.sources)
        if passes.rewind is not None:
            passes.rewind.reset(tx, passes.targets)
        driver.transition(tx, "cut_over")
        budget.bound(tx.connection)
        run(tx.connection, "SET CONSTRAINTS ALL IMMEDIATE")  # run deferred checks under a timeout: COMMIT has none
    return records, keys


@contextmanager
def _locked(driver: Driver, budget: Budget, last_pass: Callable[[Budget], object] | None) -> Iterator[Step]:
    """The cut-over's step, with groups and positions locked: workers wait from here on.

    It locks the run's row first, as all steps do, but with ``last_pass`` last: no other step of such a run locks a
    position, so that cannot deadlock.
    """

    def lock(tx: Tx) -> None:
        budget.begin()
        budget.bound(tx.connection)
        # Workers wait for a driver that is frozen or cut off; no statement's timeout ends its pauses.
        idle = max(driver.limits.transaction_age, budget.seconds)
        tx.execute(BATCH["bound"], idle=f"{round(idle * 1000)}ms")
        _lock_groups(tx, driver.run)
        budget.bound(tx.connection)
        tx.execute(RELOAD_RUN["lock_offsets"], groups=list(driver.run.groups)).all()
        budget.locked_at = monotonic()

    def lock_and_pass(tx: Tx) -> None:
        lock(tx)
        assert last_pass is not None
        last_pass(budget)
        budget.bound(tx.connection)

    states = ("compared",) if driver.run.strategy == "merge" else ("catching_up",)
    with driver.step(*states, before=None if last_pass is None else lock_and_pass) as tx:
        if last_pass is None:
            lock(tx)
        yield tx


def _lock_groups(tx: Tx, run: Run) -> None:
    for group, version in sorted(zip(run.groups, run.version_to, strict=True)):
        row = tx.execute(GROUPS["lock"], group=group).one_or_none()
        if row is None:
            raise ReloadRefused([f"group {group!r} is no longer in the ledger"])
        if row.version > version:
            why = (
                f"group {group!r} was raised to handler version {row.version} meanwhile, and this run is for {version}"
            )
            raise ReloadRefused([why])


def _raise_versions(tx: Step) -> None:
    """Fence every worker with an old token or an older handler version (I5)."""
    for group, version in sorted(zip(tx.run.groups, tx.run.version_to, strict=True)):
        tx.execute(RELOAD_RUN["raise_version"], group=group, version=version)
        tx.execute(GROUPS["redraw"], group=group)
        group_tx = GroupConnection(tx.connection, tx.schema, group)
        record_action(group_tx, "cut-over", actor=tx.run.actor, reason=f"reload {tx.run.id}: {tx.run.reason}")


def _declare(tx: Step, sources: Iterable[PipelineSource]) -> None:
    """Store how the new code writes its tables: a reset before its first claim must know which have sums (I1).

    Stores nothing for a pipeline that does not read all of its group's topics: it does not write all tables.
    """
    offsets = tx.offsets()
    for source in sources:
        if other_topics(source, offsets):
            continue
        group_tx = GroupConnection(tx.connection, tx.schema, source.group)
        new = Jsonb(declared(source.pipeline))
        group_tx.execute(STATUS["store_declared"], version=source.pipeline.version, declared=new)


_OWN = {"id", "dead_lettered_at", "replays", "replayed_at", "replay_error", "replay_traceback"}
_OWN |= {"closed_at", "closed_by", "closed_reason", "retry_at", "crashes"}
_EDIT = ("edited_value", "edited_at", "edited_by", "edited_reason")


def take_over_dead_letters(tx: Tx, staging: Staging) -> None:
    """Copy the run's dead letters to the group; a dead letter that the group already has is reopened (I4).

    If a dead letter was replayed with an edited value, the run has applied that value: the stored value and the edit
    are kept.
    """
    inserted = [column.name for column in dead_letter.columns if column.name not in {*_OWN, *_EDIT}]
    resets = {"dead_lettered_at": "clock_timestamp()", "replays": "0", "crashes": "0"}
    resets |= dict.fromkeys(sorted(_OWN - {"id", *resets}), "NULL")
    changes = [composed("{a} = excluded.{a}", a=(column,)) for column in inserted if column != "value"]
    applied = "dead_letter.state = 'replayed' AND dead_letter.edited_at IS NOT NULL"
    resets |= {column: f"CASE WHEN {applied} THEN dead_letter.{column} END" for column in _EDIT}
    resets |= {"value": f"CASE WHEN {applied} THEN dead_letter.value ELSE excluded.value END"}
    changes += [composed("{a} = {value}", a=(column,), value=ident.SQL(value)) for column, value in resets.items()]
    run(
        tx.connection,
        "INSERT INTO {live} ({columns}) SELECT {columns} FROM {staged} ORDER BY topic, partition, record_offset "
        "ON CONFLICT ON CONSTRAINT dead_letter_record_key DO UPDATE SET {changes}",
        live=(tx.schema, dead_letter.name),
        staged=(staging.schema, dead_letter.name),
        columns=names(inserted),
        changes=ident.SQL(", ").join(changes),
    )


def took_effect(driver: Driver, error: BaseException) -> bool:
    """Whether an unanswered COMMIT took effect, by the run's row; False if ``error`` is not a lost connection.

    Waits for a running COMMIT, but returns False after Ctrl-C: the run can then be resumed. Repeats the query while the
    database cannot be reached. Raises ReloadOver if the run has ended otherwise or another driver has taken it over,
    and the last query's error if the database stays unreachable.
    """
    if not connection_lost(error) or was_interrupted(error):
        return False

    def settled() -> Run:
        with transaction(driver.engine, driver.schema, lock_wait=driver.limits.transaction_age) as tx:
            return run_of(tx.execute(RELOAD_RUN["settled_run"], run=driver.run.id).one())

    current = retried(settled)
    if current.driver_epoch != driver.epoch:
        raise ReloadOver(f"run {current.id} was taken over by {current.driver}")
    if current.state == "cut_over":
        driver.run = current
        return True
    if not current.is_open:
        raise ReloadOver(f"run {current.id} is {how_it_ended(current)}")
    return False
