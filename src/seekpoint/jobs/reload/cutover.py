"""The cut-over: one transaction that catches up, publishes the rebuilt rows, sets versions and draws new tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import psycopg
from psycopg import sql as ident
from sqlalchemy.exc import DBAPIError

from seekpoint.backoff import TRIES, longer_pause, pause, retried
from seekpoint.errors import CutOverRefused, KafkaUnavailable, RangeStuck, ReloadOver, ReloadRefused
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.reload.compare import Report
from seekpoint.jobs.reload.cutover_limits import Budget, OverBudget, Plan
from seekpoint.jobs.reload.merge import merge
from seekpoint.jobs.reload.merge_preconditions import allow_wait, others
from seekpoint.jobs.reload.publish import swap
from seekpoint.jobs.run import Driver, Run, Step, Tx, how_it_ended, run_of, transaction
from seekpoint.jobs.tables.sql_templates import composed, names, run
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, RELOAD_RUN
from seekpoint.ledger.tables import dead_letter
from seekpoint.postgres.sqlstates import (
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    connection_lost,
    is_transient,
    sqlstate,
    was_interrupted,
)

IDLE = 3.0  # seconds at most that the brokers may send nothing while all workers wait
LONG_TRIES = 5  # tries that take longer than workers may wait


@dataclass(frozen=True, slots=True)
class CutOver:
    """How a cut-over went. ``lock_seconds``: from the locks on the offsets to the answer of COMMIT.

    ``records`` were read under the lock, ``keys`` were checked there (0 for a swap), and it took ``tries`` tries.
    ``records`` and ``keys`` are -1 where COMMIT had no answer, and the run's row shows that it took effect.
    """

    lock_seconds: float
    records: int
    keys: int
    tries: int


def cut_over(
    driver: Driver, passes: CatchUp, catch_up: Callable[[], object], plan: Plan | None = None, *, tries: int = TRIES
) -> CutOver:
    """Publish the rebuilt tables, raise versions and epochs, and close the run, in one transaction.

    Positions do not change. Running workers are fenced at their next batch, claim again and continue; those of an older
    handler version exit as outdated. ``catch_up`` runs the catch-up passes that keep the part under the lock short.

    After an unknown commit the run's row is read; what was rolled back (a lock timeout, a lost connection) is tried
    again. A try that would make workers wait for longer than the plan's bounds allow is rolled back, too; after five of
    these CutOverRefused is raised, and the run stays open. Raises ReloadRefused where the run cannot be used any more,
    ReloadOver, and the last error.
    """
    plan = plan or Plan()
    waits: list[float] = []
    for attempt in range(1, tries + 1):
        budget = Budget(plan.bounds.max_wait)
        try:
            catch_up()
            records, keys = _attempt(driver, passes, budget, plan)
        except (DBAPIError, psycopg.Error, RangeStuck, KafkaUnavailable, OverBudget) as error:
            used = budget.used
            if took_effect(driver, error):
                records = keys = -1  # the counts were lost with the answer
            elif _was_too_long(error, budget, driver):
                waits.append(used)
                if len(waits) == LONG_TRIES or attempt == tries:
                    raise _too_long(
                        driver, passes, waits, plan, by_others=sqlstate(error) == LOCK_NOT_AVAILABLE
                    ) from error
                longer_pause(len(waits))
                continue
            elif attempt == tries or not (is_transient(error) or isinstance(error, RangeStuck | KafkaUnavailable)):
                raise
            else:
                pause(attempt)
                continue
        return CutOver(monotonic() - budget.locked_at, records, keys, attempt)
    raise AssertionError("the last try returns or raises")


def changes_nothing(run: Run, report: Report) -> bool:
    """Whether all is as the run would leave it: the rows were equal, no version is raised, no record is left out."""
    return report.is_empty and not report.dead_letters and run.version_from == run.version_to


def close_unchanged(driver: Driver) -> CutOver:
    """End a run that changes nothing: the tables were what it rebuilt, at the comparison's offsets. No worker waits."""
    with driver.step("compared") as tx:
        driver.transition(tx, "cut_over")
        for group in sorted(tx.run.groups):
            done = f"reload {tx.run.id}, no row differed: {tx.run.reason}"
            record_action(GroupConnection(tx.connection, tx.schema, group), "cut-over", actor=tx.run.actor, reason=done)
    return CutOver(0.0, 0, 0, 1)


def _was_too_long(error: BaseException, budget: Budget, driver: Driver) -> bool:
    """Whether the try was ended by its budget, or by a row that another session has locked."""
    if not budget.used:
        return False  # no worker waited
    ended = isinstance(error, OverBudget) or sqlstate(error) == QUERY_CANCELED
    return ended or (sqlstate(error) == LOCK_NOT_AVAILABLE and driver.run.strategy == "merge")


def _too_long(driver: Driver, passes: CatchUp, waits: list[float], plan: Plan, *, by_others: bool) -> CutOverRefused:
    seen = f"{len(waits)} tries were rolled back after {', '.join(f'{each:.1f} s' for each in waits)}"
    predicted = "" if plan.predicted is None else f" ({plan.predicted:.1f} s were predicted)"
    if by_others and max(waits) < plan.bounds.max_wait:
        reason = (
            f"another session holds the lock of a row that is to be changed, and workers do not wait for it: {seen}"
            f"{predicted}: end its transaction, then `seekpoint reload resume {driver.run.id}`"
        )
        return CutOverRefused([reason], predicted=plan.predicted, waits=waits)
    with driver.step("compared", "catching_up") as tx:
        how = f"; {others(tx, passes.targets)}" if driver.run.strategy == "merge" else ""
    reason = (
        f"workers would wait for longer than the {plan.bounds.max_wait:g} s that are allowed: {seen}{predicted}: "
        f"{allow_wait(driver, max(waits))}{how}"
    )
    return CutOverRefused([reason], predicted=plan.predicted, waits=waits)


def _attempt(driver: Driver, passes: CatchUp, budget: Budget, plan: Plan) -> tuple[int, int]:
    states = ("compared",) if driver.run.strategy == "merge" else ("catching_up",)
    with driver.step(*states) as tx:
        staging = Staging(tx.run.staging_schema)
        budget.begin()
        budget.bound(tx.connection)
        _lock_groups(tx)
        budget.bound(tx.connection)
        tx.execute(RELOAD_RUN["lock_offsets"], groups=list(tx.run.groups)).all()
        budget.locked_at = monotonic()
        budget.bound(tx.connection)
        offsets = tx.offsets()
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
        driver.transition(tx, "cut_over")
        budget.bound(tx.connection)
        run(tx.connection, "SET CONSTRAINTS ALL IMMEDIATE")  # what is deferred runs now: no timeout ends a COMMIT
    return records, keys


def _lock_groups(tx: Step) -> None:
    for group, to in sorted(zip(tx.run.groups, tx.run.version_to, strict=True)):
        row = tx.execute(GROUPS["lock"], group=group).one_or_none()
        if row is None:
            raise ReloadRefused([f"group {group!r} is not in the ledger any more"])
        if row.version > to:
            raise ReloadRefused(
                [f"group {group!r} was raised to handler version {row.version} meanwhile, and this run is for {to}"]
            )


def _raise_versions(tx: Step) -> None:
    """Fence every worker with an old token or an older handler version (I5)."""
    for group, to in sorted(zip(tx.run.groups, tx.run.version_to, strict=True)):
        tx.execute(RELOAD_RUN["raise_version"], group=group, version=to)
        tx.execute(GROUPS["redraw"], group=group)
        group_tx = GroupConnection(tx.connection, tx.schema, group)
        record_action(group_tx, "cut-over", actor=tx.run.actor, reason=f"reload {tx.run.id}: {tx.run.reason}")


_OWN = {"id", "dead_lettered_at", "replays", "replayed_at", "replay_error", "replay_traceback"}
_OWN |= {"closed_at", "closed_by", "closed_reason"}


def take_over_dead_letters(tx: Tx, staging: Staging) -> None:
    """Insert the run's dead letters into the group's; one that the group has already is opened again (I4)."""
    given = [column.name for column in dead_letter.columns if column.name not in _OWN]
    anew = {"dead_lettered_at": "clock_timestamp()", "replays": "0"}
    anew |= dict.fromkeys(sorted(_OWN - {"id", *anew}), "NULL")
    changes = [composed("{a} = excluded.{a}", a=(column,)) for column in given]
    changes += [composed("{a} = {value}", a=(column,), value=ident.SQL(value)) for column, value in anew.items()]
    run(
        tx.connection,
        "INSERT INTO {live} ({columns}) SELECT {columns} FROM {staged} ORDER BY topic, partition, record_offset "
        "ON CONFLICT ON CONSTRAINT dead_letter_record_key DO UPDATE SET {changes}",
        live=(tx.schema, dead_letter.name),
        staged=(staging.schema, dead_letter.name),
        columns=names(given),
        changes=ident.SQL(", ").join(changes),
    )


def took_effect(driver: Driver, error: BaseException) -> bool:
    """Whether a commit whose answer was lost by ``error`` took effect, by the run's row.

    Waits for a COMMIT that has not ended, except after Ctrl-C: it is not known then, and the run is resumed. Repeated
    while the database cannot be reached. Raises ReloadOver, and the last error.
    """
    if not connection_lost(error) or was_interrupted(error):
        return False

    def settled() -> Run:
        with transaction(driver.engine, driver.schema, lock_wait=driver.limits.transaction_age) as tx:
            return run_of(tx.execute(RELOAD_RUN["settled_run"], run=driver.run.id).one())

    now = retried(settled)
    if now.driver_epoch != driver.epoch:
        raise ReloadOver(f"run {now.id} was taken over by {now.driver}")
    if now.state == "cut_over":
        driver.run = now
        return True
    if not now.is_open:
        raise ReloadOver(f"run {now.id} is {how_it_ended(now)}")
    return False
