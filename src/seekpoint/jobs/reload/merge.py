"""Taking live tables to the rebuilt ones row by row, in the cut-over's transaction; and making that short before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import psycopg
from psycopg import sql as ident
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import CutOverRefused, ReloadRefused
from seekpoint.jobs.reload.compare import DIFFERENT_KEY, compared, differing, distinct, same_key
from seekpoint.jobs.reload.cutover_limits import ROW_WAIT, Bounds, Budget
from seekpoint.jobs.reload.merge_check import Kept
from seekpoint.jobs.run.run import Driver, Step, Tx
from seekpoint.jobs.tables.compose import name, names, rows, run
from seekpoint.jobs.tables.constraints import foreign_keys
from seekpoint.jobs.tables.side_effects import of_inheritance, referencing
from seekpoint.jobs.tables.staging_schema import KIND, Staging, remembered_columns, unlogged
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.sinks.catalog import quoted

FEW = 5  # a difference of less than a fifth of the table is looked up key by key
WARM = 16  # pages of a difference, about a thousand keys: what is looked up and locked at once


def warm(driver: Driver, found: Sequence[Target], told: Callable[[int, int], object]) -> None:
    """Have the pages in memory, and logged, that the cut-over is going to change, while nobody waits for it.

    A row lock writes to its page as an update does: the first one behind a checkpoint logs the page as a whole
    (``full_page_writes``), and whoever comes next does not. Of the four modes this is the weakest, on about a
    thousand rows at a time: for those milliseconds only who deletes such a row, sets a column of a unique index or
    takes it ``FOR UPDATE`` waits. What others hold so is left out. ``told`` hears how many keys are done, of how many.

    What cannot be had now (the lock of a table, the database) is left: the cut-over does without, and tries again.
    """
    try:
        _warm(driver, found, told)
    except (DBAPIError, psycopg.Error) as error:
        if not is_transient(error):
            raise


def _warm(driver: Driver, found: Sequence[Target], told: Callable[[int, int], object]) -> None:
    for target in found:
        for part in _parts(driver, target, told):
            with driver.step("compared") as tx:
                _plan_by_key(tx.connection, True)
                for locked in ("", "FOR KEY SHARE OF live SKIP LOCKED"):  # read first: no row waits for a disk, locked
                    rows(
                        tx.connection,
                        "WITH warm AS MATERIALIZED (SELECT live.tableoid FROM {diff} AS diff JOIN {live} AS live "
                        "ON {same} WHERE {part} {locked}) SELECT count(*) FROM warm",
                        diff=name(*Staging(tx.run.staging_schema).diff(target)),
                        live=name(*target.path),
                        same=same_key(target, "live", "diff"),
                        part=part,
                        locked=ident.SQL(locked),
                    )


def _parts(driver: Driver, target: Target, told: Callable[[int, int], object]) -> Iterator[ident.Composed]:
    """The difference, some pages at a time; nothing where it is so large that many of its rows share a page."""
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        keys, by_key = _counted(tx.connection, name(*staging.diff(target)), quoted(*staging.table(target)))
        [(pages,)] = rows(
            tx.connection,
            "SELECT pg_relation_size({diff}::regclass) / current_setting('block_size')::int",
            diff=ident.Literal(quoted(*staging.diff(target))),
        )
    if not (by_key and pages):
        return
    for page in range(0, pages, WARM):
        told(keys * page // pages, keys)
        yield ident.SQL("diff.ctid >= {}::tid AND diff.ctid < {}::tid").format(f"({page},0)", f"({page + WARM},0)")
    told(keys, keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a merge may do, and in which time. ``live``: the rows of each table, as they were counted before."""

    bounds: Bounds
    budget: Budget
    live: Mapping[Path, int]


def merge(tx: Step, staging: Staging, found: Sequence[Target], terms: Terms) -> int:
    """Take the live tables to the rebuilt ones, at the keys where they may differ; returns how many those are.

    Where one of them refers to another by a foreign key, rows are added before what refers to them, and deleted after.
    A row that another session has locked is waited for only shortly. Raises CutOverRefused for what is not allowed.
    """

    def bound() -> None:
        terms.budget.bound(tx.connection, lock_wait=ROW_WAIT)

    bound()
    run(tx.connection, "SET CONSTRAINTS ALL DEFERRED")  # rows that exchange values break them only on the way
    ordered, referenced = _parents_first(tx.connection, found)
    work = []
    for target in ordered:
        bound()
        prepared = _prepared(tx, staging, target, bound)
        _require_allowed(tx, staging, target, prepared, terms)
        work.append((target, *prepared))
    bound()
    kept = [Kept(tx.connection, staging, target, columns) for target, _, columns, _, _ in work]
    children = [one for one in reversed(work) if one[0] not in referenced]
    parents = [one for one in reversed(work) if one[0] in referenced]
    for some, statements in ((children, (_DELETE,)), (work, (_UPDATE, _UPDATE_KEY, _INSERT)), (parents, (_DELETE,))):
        for target, parts, columns, _, by_key in some:
            if by_key:  # else the planner reads both tables from end to end, under the lock
                _plan_by_key(tx.connection, True)
            try:
                _rewrite(tx.connection, target, columns, parts, statements, bound=bound)
            except psycopg.errors.UniqueViolation as error:
                raise CutOverRefused([_exchanged(target, error)]) from error
            _plan_by_key(tx.connection, False)
    for each in kept:
        bound()
        each.require()
    return sum(keys for _, _, _, keys, _ in work)


def _exchanged(target: Target, error: psycopg.Error) -> str:
    said, constraint = error.diag.message_detail or error.diag.message_primary, error.diag.constraint_name
    return (
        f"{target.name}: a merge changes one row after the other, and on its way two rows have one value of "
        f"{constraint} ({said}). Where rows only exchange values, strategies 'swap' and 'generation' can publish them, "
        "for they replace the whole table: open another run; or make it a DEFERRABLE constraint, and resume this one"
    )


# -- what is not done unless it is allowed -------------------------------------------------------------------------


def lost(target: Target, count: int) -> str:
    """Why rows of a compacted topic's table are not deleted."""
    return (
        f"{target.name}: {count} live rows are not in the rebuilt table, and its topic is compacted: the records that "
        "they were made of may be gone. Rebuild it from a topic that has every record, or delete the rows "
        "that no record explains (`seekpoint verify` shows them) and open another run"
    )


def of_deletes(target: Target, deletes: int, live: int, bounds: Bounds) -> list[str]:
    """Why so many rows of the table are not deleted."""
    live = max(live, deletes)  # of rows that came since they were counted
    if deletes <= bounds.max_deletes * live:
        return []
    share = deletes / max(live, 1)
    reason = (
        f"{target.name}: {deletes} of {live} live rows ({share:.0%}) are not in the rebuilt table and would go, "
        f"more than {bounds.max_deletes:.0%}: look at them with `seekpoint verify`; if they are to go, `seekpoint "
        f"reload resume --max-deletes {min(1.0, round(share + 0.005, 2)):g}` (Reload(…, max_deletes=…))"
    )
    return [reason]


def reaches(
    connection: Connection, staging: Staging, target: Target, bounds: Bounds, *, deletes: int, touched: bool = False
) -> list[str]:
    """Why changes of this table are not made, for what they do to other tables."""
    reasons = [] if bounds.allow_inheritance else of_inheritance(connection, target)
    if bounds.allow_cascades:
        return reasons
    remedy = "allow it by --allow-cascades (Reload(…, allow_cascades=True))"
    for key in referencing(connection, target):
        if key.on_delete and deletes:
            reasons.append(f"{target.name}: {deletes} rows would be deleted, and {key}: {remedy}")
        if key.on_update and (changed := _changed(connection, staging, target, key.columns, touched=touched)):
            reasons.append(f"{target.name}: {changed} rows would get other values, and {key}: {remedy}")
    return reasons


def _changed(connection: Connection, staging: Staging, target: Target, columns: Sequence[str], *, touched: bool) -> int:
    """How many live rows would get other values in these columns."""
    written = remembered_columns(connection, staging.table(target)) or target.all_columns
    if not (wanted := [one for one in differing(target, columns) if one in written]):
        return 0
    kinds = ("different", DIFFERENT_KEY, *(["touched"] if touched else []))
    [(count,)] = rows(
        connection,
        "SELECT count(*) FROM {diff} AS diff JOIN {live} AS live ON {same} JOIN {built} AS built ON {as_built} "
        "WHERE diff.{kind} IN ({kinds}) AND {distinct}",
        diff=name(*staging.diff(target)),
        live=name(*target.path),
        built=name(*staging.table(target)),
        same=same_key(target, "live", "diff"),
        as_built=same_key(target, "built", "diff"),
        kind=name(KIND),
        kinds=ident.SQL(", ").join(map(ident.Literal, kinds)),
        distinct=distinct(wanted, "live", "built"),
    )
    return int(count)


def _require_allowed(tx: Tx, staging: Staging, target: Target, prepared: Prepared, terms: Terms) -> None:
    """The same once more under the lock, with what was written since."""
    parts, _, _, by_key = prepared
    _plan_by_key(tx.connection, by_key)
    [(deletes,)] = rows(
        tx.connection,
        "SELECT (SELECT count(*) FROM {diff} WHERE {kind} = 'extra') + (SELECT count(*) FROM {diff} AS diff "
        "JOIN {live} AS live ON {same} WHERE {kind} = 'touched' AND NOT EXISTS "
        "(SELECT FROM {built} AS built WHERE {match}))",
        **parts,
        match=same_key(target, "built", "diff"),
    )
    if target.is_compacted and (unexplained := _unexplained(tx, parts)):
        raise ReloadRefused([lost(target, unexplained)])
    _plan_by_key(tx.connection, False)
    reasons = of_deletes(target, deletes, terms.live.get(target.path, 0), terms.bounds)
    if reasons := reasons + reaches(tx.connection, staging, target, terms.bounds, deletes=deletes, touched=True):
        raise CutOverRefused(reasons)


def _unexplained(tx: Tx, parts: dict[str, ident.Composable]) -> int:
    """Live rows that are in no rebuilt table, and that no record since has deleted there."""
    [(count,)] = rows(
        tx.connection,
        "SELECT count(*) FROM {diff} AS diff JOIN {live} AS live ON {same} WHERE {kind} = 'touched' "
        "AND NOT EXISTS (SELECT FROM {built} AS built WHERE {as_built}) "
        "AND NOT EXISTS (SELECT FROM {touched} AS touched WHERE {as_touched})",
        **parts,
    )
    return int(count)


# -- in which order ------------------------------------------------------------------------------------------------


def _parents_first(connection: Connection, found: Sequence[Target]) -> tuple[list[Target], set[Target]]:
    """The tables, each behind those that it refers to, as far as that can be; and those that are referred to."""
    graph: dict[Target, set[Target]] = {target: set() for target in found}
    referenced: set[Target] = set()
    for key in foreign_keys(connection, found):
        if key.of is None or key.to is None:
            continue
        referenced.add(key.to)  # also by itself: a changed row may have referred to a deleted one
        if key.of != key.to:
            graph[key.of].add(key.to)
    try:
        return list(TopologicalSorter(graph).static_order()), referenced
    except CycleError:
        return list(found), referenced  # only constraints that wait for COMMIT can take that


Prepared = tuple[dict[str, ident.Composable], tuple[str, ...], int, bool]


def _prepared(tx: Step, staging: Staging, target: Target, bound: Callable[[], None]) -> Prepared:
    """The names in a table's statements, its columns, how many keys are looked at, and whether one by one.

    Those are the prepared ones, those that the rounds since have touched, and those of live rows that were written
    since by anybody: an older handler may have written keys that the newer one never touches. For these the whole
    table is read and counted (0.15 s per million rows).
    """
    connection, columns = tx.connection, compared(tx, staging, target)
    assert tx.run.diff_xid is not None
    parts = {
        "live": name(*target.path),
        "built": name(*staging.table(target)),
        "diff": name(*staging.diff(target)),
        "touched": name(*staging.touched(target)),
        "unlogged": unlogged(staging.schema),
        "late": name(staging.schema, f"late_{target.staged}"),
        "key": names(target.key),
        "columns": names(columns),
        "same": same_key(target, "live", "diff"),
        "as_live": same_key(target, "live", "built"),
        "as_built": same_key(target, "built", "diff"),
        "as_touched": same_key(target, "touched", "diff"),
        "kind": name(KIND),
        "compared_kinds": ident.SQL(", ").join(map(ident.Literal, ("different", DIFFERENT_KEY))),
        "seen": name(*staging.seen(target)),
        # Written since the comparison's snapshot, as a whole: not what was only written since its oldest transaction.
        "is_late": ident.SQL(
            "(age(live.xmin) <= age({}::xid8::xid) AND NOT EXISTS "
            "(SELECT FROM {} AS seen WHERE seen.xid = live.xmin::text::bigint))"
        ).format(ident.Literal(tx.run.diff_xid), name(*staging.seen(target))),
    }
    run(
        connection, "CREATE {unlogged} TABLE IF NOT EXISTS {seen} (xid bigint)", **parts
    )  # a run that an older version compared
    _add_written(connection, parts)
    bound()
    table = quoted(*staging.table(target))
    _plan_by_key(connection, _counted(connection, parts["diff"], table)[1])
    _add_deleted(connection, parts)
    _plan_by_key(connection, False)
    bound()
    keys, by_key = _counted(connection, parts["diff"], table)
    return parts, columns, keys, by_key


def _counted(connection: Connection, diff: ident.Composable, table: str) -> tuple[int, bool]:
    """How many keys there are, and whether so few that each is looked up by itself."""
    [(keys, total)] = rows(
        connection,
        "SELECT (SELECT count(*) FROM {diff}), "
        "(SELECT greatest(c.reltuples, 0)::bigint FROM pg_class c WHERE c.oid = {table}::regclass)",
        diff=diff,
        table=ident.Literal(table),
    )
    return int(keys), keys * FEW < total


def _add_written(connection: Connection, parts: dict[str, ident.Composable]) -> None:
    """The keys that the rounds since the diff have touched, and those of live rows that were written since."""
    run(connection, "CREATE {unlogged} TABLE {late} AS SELECT {key} FROM {live} AS live WHERE {is_late}", **parts)
    run(
        connection,
        "INSERT INTO {diff} ({key}, {kind}) SELECT {key}, 'touched' FROM {touched} UNION SELECT {key}, 'touched' "
        "FROM {late} ON CONFLICT ({key}) DO UPDATE SET {kind} = excluded.{kind}",
        **parts,
    )


def _add_deleted(connection: Connection, parts: dict[str, ident.Composable]) -> None:
    """The keys of live rows that were deleted since, by whoever: nothing is left there that would tell of them.

    Only live rows that are as they were when the tables were compared are counted: one that came since, behind our look
    or under a NULL, would hide one that is gone. Each of them was compared: it is rebuilt, too, or known by its kind.
    So there can be no more of them than of rebuilt ones, and equal numbers are equal keys. Only touched keys are looked
    up.
    """
    [(live, built)] = rows(
        connection,
        "SELECT (SELECT count(*) FROM {live} AS live WHERE NOT {is_late}) "
        "- count(*) FILTER (WHERE {kind} IN ({compared_kinds}, 'extra')) "
        "- (SELECT count(*) FROM {diff} JOIN {live} AS live USING ({key}) WHERE {kind} = 'touched' AND NOT {is_late}), "
        "(SELECT count(*) FROM {built}) - count(*) FILTER (WHERE {kind} IN ({compared_kinds}, 'missing')) "
        "- (SELECT count(*) FROM {diff} JOIN {built} USING ({key}) WHERE {kind} = 'touched') FROM {diff}",
        **parts,
    )
    if live != built:
        run(
            connection,
            "INSERT INTO {diff} ({key}, {kind}) SELECT {key}, 'touched' FROM {built} AS built "
            "WHERE NOT EXISTS (SELECT FROM {live} AS live WHERE {as_live}) "
            "ON CONFLICT ({key}) DO UPDATE SET {kind} = excluded.{kind}",
            **parts,
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


def _rewrite(
    connection: Connection,
    target: Target,
    columns: Sequence[str],
    parts: dict[str, ident.Composable],
    statements: Sequence[str],
    *,
    bound: Callable[[], None],
) -> None:
    """Delete, change or add: what was prepared as it stands in the diff, what was touched as it is now."""
    nothing = ident.SQL("")
    optional = ("joined", "unless_built", "if_distinct", "if_other_key", "unless_live")
    kinds = {"extra": "extra", "different": "different", "different_key": DIFFERENT_KEY, "missing": "missing"}
    prepared = dict.fromkeys(optional, nothing) | {each: ident.Literal(kind) for each, kind in kinds.items()}
    others = [column for column in columns if column not in target.key]
    touched = dict.fromkeys(kinds, ident.Literal("touched")) | {
        "joined": ident.SQL("JOIN {built} AS built USING ({key})").format(**parts),
        "unless_built": ident.SQL("AND NOT EXISTS (SELECT FROM {built} AS built WHERE {match})").format(
            **parts, match=same_key(target, "built", "diff")
        ),
        "if_distinct": ident.SQL("AND {}").format(distinct(others, "live", "built")),
        "if_other_key": ident.SQL("AND {}").format(distinct(target.inexact_key, "live", "built")),
        "unless_live": ident.SQL("AND NOT EXISTS (SELECT FROM {live} AS live WHERE {same})").format(**parts),
    }
    # A key is set where its bytes differ, and in no other row: triggers and column rights go by what is named in SET.
    changing = {_UPDATE: others, _UPDATE_KEY: [*target.inexact_key, *others] if target.inexact_key else []}
    for statement in (one for one in statements if changing.get(one, columns)):
        for source, given in (("diff", prepared), ("built", touched)):
            changes = (
                ident.SQL("{0} = {1}.{0}").format(name(one), name(source)) for one in changing.get(statement, columns)
            )
            bound()
            run(
                connection,
                statement,
                **parts,
                **given,
                values=names(columns, source),
                changes=ident.SQL(", ").join(changes),
            )


def _plan_by_key(connection: Connection, given: bool) -> None:
    for setting in ("enable_hashjoin", "enable_mergejoin"):
        run(connection, f"SET LOCAL {setting} = {{value}}", value=ident.SQL("off" if given else "on"))
