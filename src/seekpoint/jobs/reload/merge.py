"""Publish strategy ``merge``: insert, update and delete the live rows that differ from the rebuilt ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter

import psycopg
from psycopg import sql as ident
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import CutOverRefused, ReloadRefused
from seekpoint.jobs.reload.compare import DIFFERENT_KEY, distinct
from seekpoint.jobs.reload.cutover_limits import Budget, Plan
from seekpoint.jobs.reload.merge_check import MergeCheck
from seekpoint.jobs.reload.merge_exchange import exchange
from seekpoint.jobs.reload.merge_preconditions import lost, of_deletes, reaches
from seekpoint.jobs.tables.constraints import foreign_keys
from seekpoint.jobs.tables.sql_templates import Part, composed, names, regclass, run
from seekpoint.jobs.tables.staging_schema import Staging, StagingTables, same_key
from seekpoint.jobs.tables.targets import Target
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.runs.run import SHORT_LOCK_WAIT, Driver, Step

FEW = 5  # index look-ups are used for a difference of less than a fifth of the table
WARM = 16  # pages of a difference (about a thousand keys) that are read and locked at a time


def warm(driver: Driver, targets: Sequence[Target], progress: Callable[[int, int], object]) -> None:
    """Read and log the pages that the cut-over will change, before workers wait for it.

    Like an update, a row lock writes to its page, and the first write after a checkpoint logs the whole page
    (``full_page_writes``). It takes the weakest of the four lock modes, on about a thousand rows at a time. For those
    milliseconds that blocks only transactions that delete such a row, change a column of a unique index, or lock it
    ``FOR UPDATE``. Rows that other sessions have locked are skipped. ``progress`` gets the number of keys done, and of
    all keys.

    A transient error (a table lock, a lost connection) ends the warm-up; the cut-over works without it.
    """
    try:
        for target in targets:
            _warm(driver, target, progress)
    except (DBAPIError, psycopg.Error) as error:
        if not is_transient(error):
            raise


def _warm(driver: Driver, target: Target, progress: Callable[[int, int], object]) -> None:
    """Warm the difference, a few pages at a time; nothing if it is too large for index look-ups."""
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        tables = StagingTables(tx.connection, staging, target)
        keys, by_key = _counted(tables)
        pages = tables.value(
            "SELECT pg_relation_size({its}) / current_setting('block_size')::int",
            its=regclass((staging.schema, f"diff_{target.staged}")),
        )
    if not (by_key and pages):
        return
    for page in range(0, pages, WARM):
        progress(keys * page // pages, keys)
        with driver.step("compared") as tx:
            _plan_by_key(tx.connection, True)
            # Read the pages first, so that no lock waits for the disk.
            for locked in ("", "FOR KEY SHARE OF live SKIP LOCKED"):
                StagingTables(tx.connection, staging, target).rows(
                    "WITH warm AS MATERIALIZED (SELECT live.tableoid FROM {diff} AS diff JOIN {live} AS live ON {same} "
                    "WHERE diff.ctid >= {first}::tid AND diff.ctid < {end}::tid {locked}) SELECT count(*) FROM warm",
                    locked=ident.SQL(locked),
                    first=f"({page},0)",
                    end=f"({page + WARM},0)",
                )
    progress(keys, keys)


def merge(tx: Step, targets: Sequence[Target], plan: Plan, budget: Budget) -> int:
    """Make the live rows equal to the rebuilt ones at all keys where they may differ; returns the number of keys.

    Inserts rows to which a foreign key refers before the referring rows, and deletes them afterwards. Waits only
    briefly for a row that another session has locked. Raises CutOverRefused for changes that are not allowed.
    """

    def bound() -> None:
        budget.bound(tx.connection, lock_wait=SHORT_LOCK_WAIT)

    bound()
    run(tx.connection, "SET CONSTRAINTS ALL DEFERRED")  # rows that exchange values violate constraints only temporarily
    ordered, referenced = _parents_first(tx.connection, targets)
    work = []
    for target in ordered:
        bound()
        tables = StagingTables(tx.connection, Staging(tx.run.staging_schema), target)
        keys, by_key = _prepared(tx, tables, bound)
        _require_allowed(tables, by_key, plan)
        work.append((tables, keys, by_key))
    bound()
    checks = [MergeCheck(tables) for tables, _, _ in work]
    children = [entry for entry in reversed(work) if entry[0].target not in referenced]
    parents = [entry for entry in reversed(work) if entry[0].target in referenced]
    for entries, statements in ((children, (_DELETE,)), (work, (_UPDATE, _UPDATE_KEY, _INSERT)), (parents, (_DELETE,))):
        for tables, _, by_key in entries:
            if by_key:  # otherwise the planner would scan both tables under the lock
                _plan_by_key(tx.connection, True)
            try:
                with tx.connection.begin_nested():
                    _rewrite(tables, statements, bound=bound)
            except psycopg.errors.UniqueViolation as error:
                bound()
                exchange(tables, error, partial(_rewrite, tables, (_INSERT,), bound=bound))
            _plan_by_key(tx.connection, False)
    for check in checks:
        bound()
        check.require()
    return sum(keys for _, keys, _ in work)


# -- under the lock ------------------------------------------------------------------------------------------------


def _require_allowed(tables: StagingTables, by_key: bool, plan: Plan) -> None:
    """Check the bounds again under the lock, including the rows that were written after the first check."""
    target = tables.target
    _plan_by_key(tables.connection, by_key)
    written = composed(
        "FROM {diff} AS diff JOIN {live} AS live ON {same} WHERE {kind} = 'touched' "
        "AND NOT EXISTS (SELECT FROM {built} AS built WHERE {as_built})",
        **tables.parts,
    )
    deletes = tables.value(
        "SELECT (SELECT count(*) FROM {diff} WHERE {kind} = 'extra') + (SELECT count(*) {written})", written=written
    )
    if target.is_compacted:
        unexplained = tables.value(  # live rows that are not rebuilt, and that no later record has deleted
            "SELECT count(*) {written} AND NOT EXISTS (SELECT FROM {touched} AS touched WHERE {as_touched})",
            written=written,
            as_touched=same_key(target, "touched", "diff"),
        )
        if unexplained:
            raise ReloadRefused([lost(target, unexplained)])
    _plan_by_key(tables.connection, False)
    reasons = of_deletes(target, deletes, plan.live.get(target.path, 0), plan.bounds)
    if reasons := reasons + reaches(tables, plan.bounds, deletes=deletes, touched=True):
        raise CutOverRefused(reasons)


# -- order of the tables -------------------------------------------------------------------------------------------


def _parents_first(connection: Connection, targets: Sequence[Target]) -> tuple[list[Target], set[Target]]:
    """The tables, each after those to which it refers, unless in a cycle; and the set of referenced tables."""
    graph: dict[Target, set[Target]] = {target: set() for target in targets}
    referenced: set[Target] = set()
    for key in foreign_keys(connection, targets):
        if key.of is None or key.to is None:
            continue
        referenced.add(key.to)  # also tables that refer to themselves: a changed row may have referred to a deleted one
        if key.of != key.to:
            graph[key.of].add(key.to)
    try:
        return list(TopologicalSorter(graph).static_order()), referenced
    except CycleError:
        return list(targets), referenced  # a cycle works only if its constraints are deferrable


def _prepared(tx: Step, tables: StagingTables, bound: Callable[[], None]) -> tuple[int, bool]:
    """Add the keys written since the comparison to the difference; returns its size, and whether to use the index.

    These are the keys that catch-up passes have touched, and the keys of live rows that any session has written: an
    older handler may have written keys that the newer one never touches. To find the latter, the whole table is read
    and counted (0.15 s per million rows).
    """
    assert tx.run.diff_xid is not None
    # Rows written since the comparison: by transactions no older than its oldest open one, but not among those it saw.
    is_late = (
        "(age(live.xmin) <= age({oldest}::xid8::xid) AND NOT EXISTS "
        "(SELECT FROM {seen} AS seen WHERE seen.xid = live.xmin::text::bigint))"
    )
    tables.parts["is_late"] = composed(is_late, **tables.parts, oldest=tx.run.diff_xid)
    tables.run("CREATE {unlogged} TABLE {late} AS SELECT {key} FROM {live} AS live WHERE {is_late}")
    tables.run(
        "INSERT INTO {diff} ({key}, {kind}) SELECT {key}, 'touched' FROM {touched} UNION SELECT {key}, 'touched' "
        "FROM {late} ON CONFLICT ({key}) DO UPDATE SET {kind} = excluded.{kind}"
    )
    bound()
    _plan_by_key(tx.connection, _counted(tables)[1])
    _add_deleted(tables)
    _plan_by_key(tx.connection, False)
    bound()
    return _counted(tables)


def _counted(tables: StagingTables) -> tuple[int, bool]:
    """The number of keys in the difference, and whether index look-ups are faster."""
    [(keys, total)] = tables.rows(
        "SELECT (SELECT count(*) FROM {diff}), "
        "(SELECT greatest(c.reltuples, 0)::bigint FROM pg_class c WHERE c.oid = {its})",
        its=regclass(tables.built),
    )
    return int(keys), keys * FEW < total


def _add_deleted(tables: StagingTables) -> None:
    """Add the keys of live rows that any session has deleted since the comparison; detected by counting.

    Counts only live rows that have not changed since the comparison, because a row inserted since would offset a
    deleted one. Each of these rows is also in the rebuilt table or in the difference, so they cannot outnumber the
    rebuilt rows, and equal counts mean equal keys. Only touched keys are looked up one by one.
    """
    [(live, built)] = tables.rows(
        "SELECT (SELECT count(*) FROM {live} AS live WHERE NOT {is_late}) "
        "- count(*) FILTER (WHERE {kind} IN ('different', {different_key}, 'extra')) "
        "- (SELECT count(*) FROM {diff} JOIN {live} AS live USING ({key}) WHERE {kind} = 'touched' AND NOT {is_late}), "
        "(SELECT count(*) FROM {built}) - count(*) FILTER (WHERE {kind} IN ('different', {different_key}, 'missing')) "
        "- (SELECT count(*) FROM {diff} JOIN {built} USING ({key}) WHERE {kind} = 'touched') FROM {diff}",
        different_key=DIFFERENT_KEY,
    )
    if live != built:
        tables.run(
            "INSERT INTO {diff} ({key}, {kind}) SELECT {key}, 'touched' FROM {built} AS built "
            "WHERE NOT EXISTS (SELECT FROM {live} AS live WHERE {as_live}) "
            "ON CONFLICT ({key}) DO UPDATE SET {kind} = excluded.{kind}"
        )


_DELETE = "DELETE FROM {live} AS live USING {diff} AS diff WHERE diff.{kind} = {extra} AND {same} {unless_built}"
_UPDATE = (
    "UPDATE {live} AS live SET {changes} FROM {diff} AS diff {joined} WHERE diff.{kind} = {different} AND {same} "
    "{if_distinct}"
)
_UPDATE_KEY = _UPDATE.replace("different", "different_key").replace("if_distinct", "if_other_key")
_INSERT = (
    "INSERT INTO {live} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {diff} AS diff {joined} "
    "WHERE diff.{kind} = {missing} {unless_live}"
)


def _rewrite(tables: StagingTables, statements: Sequence[str], *, bound: Callable[[], None]) -> None:
    """Delete, update or insert rows: the comparison's keys with ``diff``'s values, touched keys with rebuilt rows'."""
    target, columns, others = tables.target, tables.columns, tables.others
    kinds = {"extra": "extra", "different": "different", "different_key": DIFFERENT_KEY, "missing": "missing"}
    optional = {
        "joined": "JOIN {built} AS built USING ({key})",
        "unless_built": "AND NOT EXISTS (SELECT FROM {built} AS built WHERE {as_built})",
        "if_distinct": "AND {other_values}",
        "if_other_key": "AND {other_key}",
        "unless_live": "AND NOT EXISTS (SELECT FROM {live} AS live WHERE {same})",
    }
    common_parts = tables.parts | {
        "other_values": distinct(others, "live", "built"),
        "other_key": distinct(target.inexact_key, "live", "built"),
    }
    prepared: dict[str, Part] = {**kinds, **dict.fromkeys(optional, ident.SQL(""))}
    touched = dict.fromkeys(kinds, "touched") | {
        part: composed(template, **common_parts) for part, template in optional.items()
    }
    # Set key columns only in rows whose key differs: triggers and column privileges depend on the columns in SET.
    changing = {_UPDATE: others, _UPDATE_KEY: [*target.inexact_key, *others] if target.inexact_key else []}
    for statement in (template for template in statements if changing.get(template, columns)):
        for source, parts in (("diff", prepared), ("built", touched)):
            changes = (
                composed("{a} = {b}", a=(column,), b=(source, column)) for column in changing.get(statement, columns)
            )
            bound()
            tables.run(
                statement,
                **parts,
                columns=names(columns),
                values=names(columns, source),
                changes=ident.SQL(", ").join(changes),
            )


def _plan_by_key(connection: Connection, by_key: bool) -> None:
    for setting in ("enable_hashjoin", "enable_mergejoin"):
        run(connection, f"SET LOCAL {setting} = {'off' if by_key else 'on'}")
