"""The rebuilt table beside the live one, at the same offsets: which rows are missing, extra or different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.jobs.reload.rounds import CatchUp
from seekpoint.jobs.run import statements as sql
from seekpoint.jobs.run.run import SERIALIZABLE_ENOUGH, Driver, Tx
from seekpoint.jobs.tables.compose import Composable, name, names, rows, run
from seekpoint.jobs.tables.copies import watch
from seekpoint.jobs.tables.staging_schema import KIND, Staging, remembered_columns, unlogged
from seekpoint.jobs.tables.targets import Target

SAMPLES = 20  # rows of each kind that are shown
DIFFERENT_KEY = "different key"  # a kind: the keys are equal (=), and not the same bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """One row that differs: its key, the columns that are written as the live table has them, and as they should be."""

    kind: str
    key: Mapping[str, Any]
    live: Mapping[str, Any] | None
    rebuilt: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Difference:
    """What one table's comparison found. ``missing`` rows the live table should have; ``extra`` ones it should not."""

    table: str
    equal: int
    missing: int
    extra: int
    different: int
    samples: tuple[Sample, ...]

    @property
    def live(self) -> int:
        """The rows of the live table."""
        return self.equal + self.different + self.extra

    @property
    def is_empty(self) -> bool:
        """Whether the live table is what the log says."""
        return not (self.missing or self.extra or self.different)


@dataclass(frozen=True, slots=True)
class Report:
    """A comparison of all tables of a run, at ``offsets``: ``group topic/partition`` to the position it was made at."""

    tables: tuple[Difference, ...]
    offsets: Mapping[str, int]
    dead_letters: int

    @property
    def is_empty(self) -> bool:
        """Whether all tables are what the log says."""
        return all(table.is_empty for table in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self) | {"is_empty": self.is_empty}


def prepare(driver: Driver, rounds: CatchUp) -> Report:
    """Take the rebuilt tables to the ledger's positions and compare, in one snapshot; keep the keys that differ.

    No lock is taken on anything live: workers go on.
    """
    with driver.step("catching_up", "compared", isolation=SERIALIZABLE_ENOUGH) as tx:
        staging = Staging(tx.run.staging_schema)
        offsets = tx.offsets()
        rounds.apply(tx, offsets)
        found = tuple(_compare(tx, staging, target) for target in rounds.targets)
        letters = _dead_letters(tx, staging)
        tx.execute(sql.DIFFED, its_run=driver.run.id)
    return Report(found, {f"{r.consumer_group} {r.topic}/{r.partition}": r.next_offset for r in offsets}, letters)


def compared(tx: Tx, staging: Staging, target: Target) -> tuple[str, ...]:
    """The columns that the pipelines own."""
    return remembered_columns(tx.connection, staging.table(target)) or target.all_columns


def distinct(columns: Sequence[str], left: str, right: str) -> Composable:
    """Whether two rows differ in these columns, byte by byte: values that ``=`` takes for one may be two.

    Types that have no equality (json, point, xml) are compared in the same way.
    """
    if not columns:
        return ident.SQL("false")
    return ident.SQL("ROW({})::record *<> ROW({})::record").format(names(columns, left), names(columns, right))


def same_key(target: Target, left: str, right: str) -> ident.Composed:
    """Whether two rows have one key."""
    return ident.SQL(" AND ").join(
        ident.SQL("{} = {}").format(name(left, column), name(right, column)) for column in target.key
    )


def differing(target: Target, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns by which two rows of one key can differ."""
    exact = set(target.key) - set(target.inexact_key)
    return tuple(column for column in columns if column not in exact)


def _compare(tx: Tx, staging: Staging, target: Target) -> Difference:
    connection, columns = tx.connection, compared(tx, staging, target)
    live, built, diff = name(*target.path), name(*staging.table(target)), name(*staging.diff(target))
    others = [column for column in columns if column not in target.key]
    for table in (staging.diff(target), staging.touched(target), staging.seen(target)):
        run(connection, "DROP TABLE IF EXISTS {table}", table=name(*table))
    run(
        connection,
        "CREATE {unlogged} TABLE {diff} AS SELECT {built_key}, CASE WHEN live.tableoid IS NULL THEN 'missing' "
        "WHEN built.tableoid IS NULL THEN 'extra' WHEN {other_key} THEN {different_key} ELSE 'different' END AS {kind}"
        "{values} "
        "FROM {live} AS live FULL JOIN {built} AS built USING ({key}) "
        "WHERE live.tableoid IS NULL OR built.tableoid IS NULL OR {distinct} "
        "ORDER BY {key}",  # so that the cut-over goes through index and table once, and not here and there
        unlogged=unlogged(staging.schema),
        diff=diff,
        kind=name(KIND),
        # What the rows should be, side by side: the cut-over reads them from end to end, and looks nothing up.
        values=ident.SQL("").join(ident.SQL(", {}").format(name("built", one)) for one in others),
        key=names(target.key),
        built_key=ident.SQL(", ").join(
            ident.SQL("coalesce({}, {}) AS {}").format(name("built", one), name("live", one), name(one))
            for one in target.key
        ),
        other_key=distinct(target.inexact_key, "live", "built"),
        different_key=ident.Literal(DIFFERENT_KEY),
        live=live,
        built=built,
        distinct=distinct(differing(target, columns), "live", "built"),
    )
    run(
        connection,
        "CREATE {unlogged} TABLE {touched} AS SELECT {key} FROM {live} WITH NO DATA",
        unlogged=unlogged(staging.schema),
        touched=name(*staging.touched(target)),
        key=names(target.key),
        live=live,
    )
    run(
        connection,
        "CREATE UNIQUE INDEX ON {diff} ({key})",
        diff=diff,
        key=names(target.key),
    )
    _keep_seen(connection, staging, target)
    if target.handled_as:
        watch(connection, staging, target)
    run(connection, "ANALYZE {diff}", diff=diff)
    return _counted(tx, staging, target, columns)


def _keep_seen(connection: Connection, staging: Staging, target: Target) -> None:
    """Keep which transactions' rows are in this snapshot, of those that began when another one was open already.

    By these, and not by the snapshot's oldest open transaction, a later look knows what was written since: that one
    may be in another database, and open for hours. A row's subtransaction is in no snapshot's list; here it is.
    """
    seen = name(*staging.seen(target))
    run(
        connection,
        "CREATE {unlogged} TABLE {seen} AS SELECT DISTINCT live.xmin::text::bigint AS xid FROM {live} AS live "
        "WHERE age(live.xmin) <= age(pg_snapshot_xmin(pg_current_snapshot())::xid)",
        unlogged=unlogged(staging.schema),
        seen=seen,
        live=name(*target.path),
    )
    run(connection, "CREATE UNIQUE INDEX ON {seen} (xid)", seen=seen)
    run(connection, "ANALYZE {seen}", seen=seen)


def recall(driver: Driver, found: Sequence[Target]) -> Report:
    """What the comparison of this run has found, for a later driver; samples and offsets are those of now."""
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        tables = tuple(_counted(tx, staging, target, compared(tx, staging, target)) for target in found)
        offsets = {f"{at.group} {at.partition}": at.next_offset for at in tx.positions()}
        return Report(tables, offsets, _dead_letters(tx, staging))


def _dead_letters(tx: Tx, staging: Staging) -> int:
    return int(rows(tx.connection, "SELECT count(*) FROM {t}", t=name(staging.schema, "dead_letter"))[0][0])


def _counted(tx: Tx, staging: Staging, target: Target, columns: Sequence[str]) -> Difference:
    counts = dict(
        rows(
            tx.connection,
            "SELECT {kind}, count(*) FROM {diff} GROUP BY 1",
            diff=name(*staging.diff(target)),
            kind=name(KIND),
        )
    )
    total = rows(tx.connection, "SELECT count(*) FROM {built}", built=name(*staging.table(target)))[0][0]
    missing, different = counts.get("missing", 0), counts.get("different", 0) + counts.get(DIFFERENT_KEY, 0)
    return Difference(
        target.name,
        total - missing - different,
        missing,
        counts.get("extra", 0),
        different,
        _samples(tx, staging, target, columns) if counts else (),
    )


def _samples(tx: Tx, staging: Staging, target: Target, columns: Sequence[str]) -> tuple[Sample, ...]:
    picked = ident.SQL(
        "(SELECT *, row_number() OVER (PARTITION BY {kind} ORDER BY {key}) AS {n} FROM "
        "(SELECT {key}, replace({kind}, {different_key}, 'different') AS {kind} FROM {diff}) AS diff)"
    ).format(
        kind=name(KIND),
        different_key=ident.Literal(DIFFERENT_KEY),
        n=name("seekpoint n"),
        key=names(target.key),
        diff=name(*staging.diff(target)),
    )

    def side(alias: str) -> Composable:
        return ident.SQL("CASE WHEN {0}.tableoid IS NOT NULL THEN to_jsonb({0}) END").format(name(alias))

    def texts(alias: str) -> Composable:
        return ident.SQL(", ").join(ident.SQL("{}::text").format(name(alias, one)) for one in columns)

    keys = ident.SQL(", ").join(ident.SQL("{}, {}").format(ident.Literal(k), name("diff", k)) for k in target.key)
    found = rows(
        tx.connection,
        "SELECT diff.{kind}, jsonb_build_object({keys}), {live_row}, {built_row}, ARRAY[{live_texts}], "
        "ARRAY[{built_texts}] FROM {picked} AS diff "
        "LEFT JOIN {live} AS live USING ({key}) LEFT JOIN {built} AS built USING ({key}) "
        "WHERE diff.{n} <= {most} ORDER BY diff.{kind}, {ordered}",
        kind=name(KIND),
        n=name("seekpoint n"),
        keys=keys,
        live_row=side("live"),
        built_row=side("built"),
        live_texts=texts("live"),
        built_texts=texts("built"),
        picked=picked,
        live=name(*target.path),
        built=name(*staging.table(target)),
        key=names(target.key),
        ordered=names(target.key, "diff"),
        most=ident.Literal(SAMPLES),
    )
    return tuple(Sample(kind, key, *_sides(columns, *sides)) for kind, key, *sides in found)


def _sides(
    columns: Sequence[str],
    live: Mapping[str, Any] | None,
    built: Mapping[str, Any] | None,
    live_texts: Sequence[str | None],
    built_texts: Sequence[str | None],
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Both rows as JSON has them; as text where JSON takes two values for one (1.0 and 1.00)."""
    if live is None or built is None:
        return ({one: row[one] for one in columns} if row is not None else None for row in (live, built))  # type: ignore[return-value]
    alike = {
        one
        for one, left, right in zip(columns, live_texts, built_texts, strict=True)
        if left != right and live[one] == built[one]
    }
    left, right = (
        {one: text if one in alike else row[one] for one, text in zip(columns, texts, strict=True)}
        for row, texts in ((live, live_texts), (built, built_texts))
    )
    return left, right
