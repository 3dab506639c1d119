"""The rebuilt table beside the live one, at the same offsets: which rows are missing, extra or different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import sql as ident

from seekpoint.reload import statements as sql
from seekpoint.reload.handlers.copies import watch
from seekpoint.reload.layout import KIND, Composable, Staging, name, names, remembered_columns, rows, run
from seekpoint.reload.rounds import Rounds
from seekpoint.reload.run import SERIALIZABLE_ENOUGH, Driver, Tx
from seekpoint.reload.targets import Target

SAMPLES = 20  # rows of each kind that are shown


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
        """For JSON."""
        return asdict(self) | {"is_empty": self.is_empty}


def prepare(driver: Driver, rounds: Rounds) -> Report:
    """Take the rebuilt tables to the ledger's positions and compare, in one snapshot; keep the keys that differ.

    No lock is taken on anything live: workers go on.
    """
    with driver.step("following", "diffed", isolation=SERIALIZABLE_ENOUGH) as tx:
        staging = Staging(driver.run.staging_schema)
        offsets = tx.execute(sql.OFFSETS, groups=list(driver.run.groups)).all()
        rounds.apply(tx, offsets)
        found = tuple(_compare(tx, staging, target) for target in rounds.targets)
        letters = rows(tx.connection, "SELECT count(*) FROM {t}", t=name(staging.schema, "dead_letter"))
        tx.execute(sql.DIFFED, its_run=driver.run.id)
    return Report(
        found, {f"{r.consumer_group} {r.topic}/{r.partition}": r.next_offset for r in offsets}, int(letters[0][0])
    )


def compared(tx: Tx, staging: Staging, target: Target) -> tuple[str, ...]:
    """The columns that the pipelines own."""
    return remembered_columns(tx.connection, staging.table(target)) or target.all_columns


def distinct(target: Target, columns: Sequence[str], left: str, right: str) -> Composable:
    """Whether two rows differ in these columns; what has no equality of its own is compared as text."""
    plain = {column.name for column in target.columns if column.is_comparable}

    def side(alias: str) -> Composable:
        return ident.SQL(", ").join(
            name(alias, one) if one in plain else ident.SQL("{}::text").format(name(alias, one)) for one in columns
        )

    return ident.SQL("ROW({}) IS DISTINCT FROM ROW({})").format(side(left), side(right))


def _compare(tx: Tx, staging: Staging, target: Target) -> Difference:
    connection, columns = tx.connection, compared(tx, staging, target)
    live, built, diff = name(*target.path), name(*staging.table(target)), name(*staging.diff(target))
    others = [column for column in columns if column not in target.key]
    for table in (staging.diff(target), staging.touched(target)):
        run(connection, "DROP TABLE IF EXISTS {table}", table=name(*table))
    run(
        connection,
        "CREATE TABLE {diff} AS SELECT {key}, CASE WHEN live.tableoid IS NULL THEN 'missing' "
        "WHEN built.tableoid IS NULL THEN 'extra' ELSE 'different' END AS {kind}{values} "
        "FROM {live} AS live FULL JOIN {built} AS built USING ({key}) "
        "WHERE live.tableoid IS NULL OR built.tableoid IS NULL OR {distinct} "
        "ORDER BY {key}",  # so that the cut-over goes through index and table once, and not here and there
        diff=diff,
        kind=name(KIND),
        # What the rows should be, side by side: the cut-over reads them from end to end, and looks nothing up.
        values=ident.SQL("").join(ident.SQL(", {}").format(name("built", one)) for one in others),
        key=names(target.key),
        live=live,
        built=built,
        distinct=distinct(target, columns, "live", "built"),
    )
    run(
        connection,
        "CREATE TABLE {touched} AS SELECT {key} FROM {live} WITH NO DATA",
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
    if target.handled_as:
        watch(connection, staging, target)
    run(connection, "ANALYZE {diff}", diff=diff)
    counts = dict(rows(connection, "SELECT {kind}, count(*) FROM {diff} GROUP BY 1", diff=diff, kind=name(KIND)))
    total = rows(connection, "SELECT count(*) FROM {built}", built=built)[0][0]
    missing, different = counts.get("missing", 0), counts.get("different", 0)
    return Difference(
        target.name,
        total - missing - different,
        missing,
        counts.get("extra", 0),
        different,
        _samples(tx, staging, target, columns) if counts else (),
    )


def _samples(tx: Tx, staging: Staging, target: Target, columns: Sequence[str]) -> tuple[Sample, ...]:
    picked = ident.SQL("(SELECT *, row_number() OVER (PARTITION BY {kind} ORDER BY {key}) AS {n} FROM {diff})").format(
        kind=name(KIND), n=name("seekpoint n"), key=names(target.key), diff=name(*staging.diff(target))
    )

    def side(alias: str) -> Composable:
        return ident.SQL("CASE WHEN {0}.tableoid IS NOT NULL THEN to_jsonb({0}) END").format(name(alias))

    def owned(row: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if row is None else {column: row[column] for column in columns}

    keys = ident.SQL(", ").join(ident.SQL("{}, {}").format(ident.Literal(k), name("diff", k)) for k in target.key)
    found = rows(
        tx.connection,
        "SELECT diff.{kind}, jsonb_build_object({keys}), {live_row}, {built_row} FROM {picked} AS diff "
        "LEFT JOIN {live} AS live USING ({key}) LEFT JOIN {built} AS built USING ({key}) "
        "WHERE diff.{n} <= {most} ORDER BY diff.{kind}, {ordered}",
        kind=name(KIND),
        n=name("seekpoint n"),
        keys=keys,
        live_row=side("live"),
        built_row=side("built"),
        picked=picked,
        live=name(*target.path),
        built=name(*staging.table(target)),
        key=names(target.key),
        ordered=names(target.key, "diff"),
        most=ident.Literal(SAMPLES),
    )
    return tuple(Sample(kind, key, owned(live), owned(built)) for kind, key, live, built in found)
