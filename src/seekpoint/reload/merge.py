"""Taking live tables to the rebuilt ones row by row, in the cut-over's transaction; and making that short before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

import psycopg
from psycopg import sql as ident
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from seekpoint.guard import passes
from seekpoint.reload.compare import DIFFERENT_KEY, compared, distinct
from seekpoint.reload.kept import Kept
from seekpoint.reload.layout import KIND, Staging, name, names, rows, run, unlogged
from seekpoint.reload.run import Driver, Tx
from seekpoint.reload.targets import Target
from seekpoint.sinks.layout import quoted

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
        if not passes(error):
            raise


def _warm(driver: Driver, found: Sequence[Target], told: Callable[[int, int], object]) -> None:
    for target in found:
        for part in _parts(driver, target, told):
            with driver.step("diffed") as tx:
                _plan_by_key(tx.connection, True)
                for locked in ("", "FOR KEY SHARE OF live SKIP LOCKED"):  # read first: no row waits for a disk, locked
                    rows(
                        tx.connection,
                        "WITH warm AS MATERIALIZED (SELECT live.tableoid FROM {diff} AS diff JOIN {live} AS live "
                        "ON {same} WHERE {part} {locked}) SELECT count(*) FROM warm",
                        diff=name(*Staging(driver.run.staging_schema).diff(target)),
                        live=name(*target.path),
                        same=_same(target, "live", "diff"),
                        part=part,
                        locked=ident.SQL(locked),
                    )


def _parts(driver: Driver, target: Target, told: Callable[[int, int], object]) -> Iterator[ident.Composed]:
    """The difference, some pages at a time; nothing where it is so large that many of its rows share a page."""
    staging = Staging(driver.run.staging_schema)
    with driver.step("diffed") as tx:
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


def merge(tx: Tx, staging: Staging, found: Sequence[Target], diff_xid: str, *, same_keys: bool) -> int:
    """Take the live tables to the rebuilt ones, at the keys where they may differ; returns how many those are.

    Where one of them refers to another by a foreign key, rows are added before what refers to them, and deleted after.
    """
    ordered, referenced = _parents_first(tx.connection, found)
    work = [(target, *_prepared(tx, staging, target, diff_xid, same_keys=same_keys)) for target in ordered]
    kept = [Kept(tx.connection, staging, target, columns) for target, _, columns, _, _ in work]
    children = [one for one in reversed(work) if one[0] not in referenced]
    parents = [one for one in reversed(work) if one[0] in referenced]
    for some, statements in ((children, (_DELETE,)), (work, (_UPDATE, _UPDATE_KEY, _INSERT)), (parents, (_DELETE,))):
        for target, parts, columns, _, by_key in some:
            if by_key:  # else the planner reads both tables from end to end, under the lock
                _plan_by_key(tx.connection, True)
            _rewrite(tx.connection, target, columns, parts, statements)
            _plan_by_key(tx.connection, False)
    for each in kept:
        each.require()
    return sum(keys for _, _, _, keys, _ in work)


_REFERENCES = text(
    """
    SELECT DISTINCT n.nspname, c.relname, m.nspname AS to_schema, p.relname AS to_table
    FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_class p ON p.oid = f.confrelid JOIN pg_namespace m ON m.oid = p.relnamespace
    WHERE f.contype = 'f' AND f.conrelid <> f.confrelid AND to_regclass(:name) IN (f.conrelid, f.confrelid)
    """
)


def _parents_first(connection: Connection, found: Sequence[Target]) -> tuple[list[Target], set[Target]]:
    """The tables, each behind those that it refers to, as far as that can be; and those that others refer to."""
    known = {target.path: target for target in found}
    graph: dict[Target, set[Target]] = {target: set() for target in found}
    if len(found) > 1:
        for path in known:
            for schema, table, *to in connection.execute(_REFERENCES, {"name": quoted(*path)}):
                if (child := known.get((schema, table))) and (parent := known.get((to[0], to[1]))):
                    graph[child].add(parent)
    referenced = {parent for parents in graph.values() for parent in parents}
    try:
        return list(TopologicalSorter(graph).static_order()), referenced
    except CycleError:
        return list(found), referenced  # only constraints that wait for COMMIT can take that


def _prepared(
    tx: Tx, staging: Staging, target: Target, diff_xid: str, *, same_keys: bool
) -> tuple[dict[str, ident.Composable], tuple[str, ...], int, bool]:
    """The names in a table's statements, its columns, how many keys are looked at, and whether one by one.

    Those are the prepared ones, those that the rounds since have touched, and those of live rows that were written
    since by anybody: an older handler may have written keys that the newer one never touches. For these the whole
    table is looked through and counted (0.15 s per million rows), unless ``same_keys`` says that there are none,
    and the prepared ones do not belie it.
    """
    connection, columns = tx.connection, compared(tx, staging, target)
    parts = {
        "live": name(*target.path),
        "built": name(*staging.table(target)),
        "diff": name(*staging.diff(target)),
        "touched": name(*staging.touched(target)),
        "unlogged": unlogged(staging.schema),
        "late": name(staging.schema, f"late_{target.staged}"),
        "key": names(target.key),
        "columns": names(columns),
        "same": _same(target, "live", "diff"),
        "as_live": _same(target, "live", "built"),
        "kind": name(KIND),
        "compared_kinds": ident.SQL(", ").join(map(ident.Literal, ("different", DIFFERENT_KEY))),
        "is_late": ident.SQL("age(live.xmin) <= age({}::xid8::xid)").format(ident.Literal(diff_xid)),
    }
    nobody_else = _add_others(connection, parts, same_keys=same_keys)
    table = quoted(*staging.table(target))
    keys, by_key = _counted(connection, parts["diff"], table)
    if not nobody_else:
        _plan_by_key(connection, by_key)
        _add_deleted(connection, parts)
        _plan_by_key(connection, False)
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


def _add_others(connection: Connection, parts: dict[str, ident.Composable], *, same_keys: bool) -> bool:
    """The keys that the rounds since the diff have touched, and those of live rows that were written since.

    Returns whether ``same_keys`` is taken at its word: then there are no others.
    """
    kinds = {row[0] for row in rows(connection, "SELECT DISTINCT {kind} FROM {diff}", **parts)}
    nobody_else = same_keys and not kinds >= {"missing", "extra"}
    wanted = ident.SQL("false") if nobody_else else parts["is_late"]
    run(
        connection,
        "CREATE {unlogged} TABLE {late} AS SELECT {key} FROM {live} AS live WHERE {wanted}",
        wanted=wanted,
        **parts,
    )
    run(
        connection,
        "INSERT INTO {diff} ({key}, {kind}) SELECT {key}, 'touched' FROM {touched} UNION SELECT {key}, 'touched' "
        "FROM {late} ON CONFLICT ({key}) DO UPDATE SET {kind} = excluded.{kind}",
        **parts,
    )
    return nobody_else


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
            **parts, match=_same(target, "built", "diff")
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


def _same(target: Target, left: str, right: str) -> ident.Composed:
    return ident.SQL(" AND ").join(
        ident.SQL("{} = {}").format(name(left, column), name(right, column)) for column in target.key
    )
