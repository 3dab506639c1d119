"""Compares the rebuilt tables with the live ones at the same offsets: rows that are missing, extra or different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import sql as ident
from psycopg.types.json import Jsonb
from sqlalchemy import func, select

from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.run import SERIALIZABLE_ENOUGH, Driver, Tx
from seekpoint.jobs.tables.sql_templates import Composable, composed, names
from seekpoint.jobs.tables.staging_schema import Staging, StagingTables
from seekpoint.jobs.tables.targets import Target
from seekpoint.ledger.sql import RELOAD_RUN

SAMPLES = 20  # rows of each kind that are shown
VALUE = 1_000  # characters of a value in them
DIFFERENT_KEY = "different key"  # a kind: the keys are equal (=), and not the same bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """One row that differs: its key, and its written columns in the live and in the rebuilt table, as Postgres' text.

    Of a value of more than 1,000 characters its beginning is there, with its length and its MD5.
    """

    kind: str
    key: Mapping[str, Any]
    live: Mapping[str, str | None] | None
    rebuilt: Mapping[str, str | None] | None


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
    def changes(self) -> int:
        """The rows that a merge changes."""
        return self.missing + self.extra + self.different

    @property
    def is_empty(self) -> bool:
        """Whether the live and the rebuilt rows are equal."""
        return not self.changes

    @property
    def counts(self) -> dict[str, Any]:
        """The table and its counts, as the run's row has them: without any value of a row."""
        return {name: getattr(self, name) for name in ("table", "equal", "missing", "extra", "different")}


@dataclass(frozen=True, slots=True)
class Report:
    """A comparison of all tables of a run, at ``offsets``: ``group topic/partition`` to the position it was made at."""

    tables: tuple[Difference, ...]
    offsets: Mapping[str, int]
    dead_letters: int

    @property
    def is_empty(self) -> bool:
        """Whether the live and the rebuilt rows of all tables are equal."""
        return all(table.is_empty for table in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self) | {"is_empty": self.is_empty}


def prepare(driver: Driver, passes: CatchUp) -> Report:
    """Catch up to the stored positions and compare, in one database snapshot; stores the keys that differ.

    No lock is taken on anything live: workers continue.
    """
    with driver.step("catching_up", "compared", isolation=SERIALIZABLE_ENOUGH) as tx:
        staging = Staging(tx.run.staging_schema)
        offsets = tx.offsets()
        passes.apply(tx, offsets)
        found = tuple(_compare(StagingTables(tx.connection, staging, target)) for target in passes.targets)
        dead_letters = _dead_letters(tx, staging)
        tx.execute(RELOAD_RUN["diffed"], run=driver.run.id, differences=Jsonb([table.counts for table in found]))
    offset_of = {f"{row.consumer_group} {row.topic}/{row.partition}": row.next_offset for row in offsets}
    return Report(found, offset_of, dead_letters)


def distinct(columns: Sequence[str], left: str, right: str) -> Composable:
    """Whether two rows differ in these columns, byte by byte: ``=`` takes some different values for equal.

    Types that have no equality (json, point, xml) are compared in the same way.
    """
    if not columns:
        return ident.SQL("false")
    return ident.SQL("ROW({})::record *<> ROW({})::record").format(names(columns, left), names(columns, right))


def differing(target: Target, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns by which two rows of one key can differ."""
    exact = set(target.key) - set(target.inexact_key)
    return tuple(column for column in columns if column not in exact)


def _compare(tables: StagingTables) -> Difference:
    target = tables.target
    tables.run("DROP TABLE IF EXISTS {diff}, {touched}, {seen}")
    tables.run(
        "CREATE {unlogged} TABLE {diff} AS SELECT {key}, CASE WHEN live.tableoid IS NULL THEN 'missing' "
        "WHEN built.tableoid IS NULL THEN 'extra' WHEN {other_key} THEN {different_key} ELSE 'different' END AS {kind}"
        "{values} "
        "FROM {built} AS built FULL JOIN {live} AS live USING ({key}) "  # a key is as the rebuilt table has it
        "WHERE live.tableoid IS NULL OR built.tableoid IS NULL OR {distinct} "
        "ORDER BY {key}",  # so that the cut-over goes through index and table in one pass
        # The values that the rows should have, beside the key: the cut-over reads them in sequence, without look-ups.
        values=ident.SQL("").join(composed(", {column}", column=("built", one)) for one in tables.others),
        other_key=distinct(target.inexact_key, "live", "built"),
        different_key=DIFFERENT_KEY,
        distinct=distinct(differing(target, tables.columns), "live", "built"),
    )
    tables.run("CREATE {unlogged} TABLE {touched} AS SELECT {key} FROM {live} WITH NO DATA")
    tables.run("CREATE UNIQUE INDEX ON {diff} ({key})")
    _keep_seen(tables)
    tables.run("ANALYZE {diff}")
    return _counted(tables)


def _keep_seen(tables: StagingTables) -> None:
    """Store which transactions' rows are in this snapshot, of those that began when another one was open already.

    The merge finds by these, and not by the snapshot's oldest open transaction, what was written since: that one may
    be in another database, and open for hours. A snapshot does not list subtransactions; the rows' xmin does.
    """
    tables.run(
        "CREATE {unlogged} TABLE {seen} AS SELECT DISTINCT live.xmin::text::bigint AS xid FROM {live} AS live "
        "WHERE age(live.xmin) <= age(pg_snapshot_xmin(pg_current_snapshot())::xid)"
    )
    tables.run("CREATE UNIQUE INDEX ON {seen} (xid)")
    tables.run("ANALYZE {seen}")


def recall(driver: Driver, found: Sequence[Target]) -> Report:
    """The stored result of this run's comparison, for a later driver; samples and offsets are read now."""
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        tables = tuple(_counted(StagingTables(tx.connection, staging, target)) for target in found)
        offsets = {f"{at.group} {at.partition}": at.next_offset for at in tx.positions()}
        return Report(tables, offsets, _dead_letters(tx, staging))


def _dead_letters(tx: Tx, staging: Staging) -> int:
    return int(tx.execute(select(func.count()).select_from(staging.dead_letters)).scalar_one())


def _counted(tables: StagingTables) -> Difference:
    counts = dict(tables.rows("SELECT {kind}, count(*) FROM {diff} GROUP BY 1"))
    total = tables.value("SELECT count(*) FROM {built}")
    missing, different = counts.get("missing", 0), counts.get("different", 0) + counts.get(DIFFERENT_KEY, 0)
    samples = _samples(tables) if counts else ()
    equal = total - missing - different
    return Difference(tables.target.name, equal, missing, counts.get("extra", 0), different, samples)


# A report has some rows of each kind, and each of them may have values of megabytes.
# By concat(), because a cast to text drops the blanks at the end of a char(n).
_CUT = (
    "CASE WHEN num_nulls({column}) = 0 THEN CASE WHEN length(concat({column})) > {most} THEN left(concat({column}), "
    "{most}) || '… (' || length(concat({column})) || ' characters, MD5 ' || md5(concat({column})) || ')' "
    "ELSE concat({column}) END END AS {its}"
)


def _samples(tables: StagingTables) -> tuple[Sample, ...]:
    def values(alias: str) -> Composable:
        columns = (composed(_CUT, column=(alias, one), its=(one,), most=VALUE) for one in tables.columns)
        return composed(
            "CASE WHEN {its} IS NOT NULL THEN (SELECT to_jsonb(v) FROM (SELECT {columns}) AS v) END",
            its=(alias, "tableoid"),
            columns=ident.SQL(", ").join(columns),
        )

    found = tables.rows(
        "SELECT diff.{kind}, (SELECT to_jsonb(k) FROM (SELECT {diff_key}) AS k), {live_values}, {built_values} "
        "FROM (SELECT *, row_number() OVER (PARTITION BY {kind} ORDER BY {key}) AS {n} FROM "
        "(SELECT {key}, replace({kind}, {different_key}, 'different') AS {kind} FROM {diff}) AS kinds) AS diff "
        "LEFT JOIN {live} AS live USING ({key}) LEFT JOIN {built} AS built USING ({key}) "
        "WHERE diff.{n} <= {most} ORDER BY diff.{kind}, {diff_key}",
        n=("seekpoint n",),
        diff_key=names(tables.target.key, "diff"),
        live_values=values("live"),
        built_values=values("built"),
        different_key=DIFFERENT_KEY,
        most=SAMPLES,
    )
    return tuple(
        Sample(kind, key, *(row and {column: row[column] for column in tables.columns} for row in rows))
        for kind, key, *rows in found
    )
