"""Compares the rebuilt tables with the live ones at the same offsets: rows that are missing, extra or different."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from psycopg import sql as ident
from psycopg.types.json import Jsonb
from sqlalchemy import Row, func, select

from seekpoint.jobs.tables.sql_templates import Composable, composed, names
from seekpoint.jobs.tables.staging_schema import Staging, StagingTables
from seekpoint.jobs.tables.sums import different
from seekpoint.jobs.tables.targets import Target
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.runs.run import REPEATABLE_READ, Driver, Step, Tx

SAMPLES = 20  # sample rows of each kind
VALUE = 1_000  # characters of a value in a sample
DIFFERENT_KEY = "different key"  # a kind of difference: the keys are equal (=) but differ in their bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """A differing row: its key, and its written columns in the live and the rebuilt table, as Postgres' text.

    A value of more than 1,000 characters is cut, with its length and MD5 appended.
    """

    kind: str
    key: Mapping[str, Any]
    live: Mapping[str, str | None] | None
    rebuilt: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One table's comparison. ``missing`` rows are only in the rebuilt table, ``extra`` rows only in the live one.

    ``inputs`` are the tables that its frames join: rebuilt rows contain the inputs' present values, live rows the
    values at the time of each micro-batch.
    """

    table: str
    equal: int
    missing: int
    extra: int
    different: int
    samples: tuple[Sample, ...]
    inputs: tuple[str, ...] = ()

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
        """The table and its counts, without rows' values, as stored in the run's row."""
        return {name: getattr(self, name) for name in ("table", "equal", "missing", "extra", "different")}


@dataclass(frozen=True, slots=True)
class Report:
    """A comparison of all tables of a run; ``offsets`` maps ``group topic/partition`` to the compared position."""

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


class Passes(Protocol):
    """Brings the rebuilt tables to the groups' positions."""

    @property
    def targets(self) -> Sequence[Target]:
        """The tables to compare."""

    def offsets(self, tx: Step, /) -> Sequence[Row[Any]]:
        """The rows of the groups' positions."""

    def apply(self, tx: Step, offsets: Sequence[Row[Any]], /) -> int:
        """Apply the records up to these positions, in this transaction; returns how many."""


def prepare(
    driver: Driver,
    passes: Passes,
    states: Sequence[str] = ("catching_up", "compared"),
    *,
    then: Callable[[StagingTables], object] | None = None,
) -> Report:
    """Catch up to the stored positions and compare, in one database snapshot; stores the keys that differ.

    Locks no live table, so workers continue. The run must be in one of these ``states``. ``then`` is called with the
    tables of each comparison, in the same snapshot.
    """
    with driver.step(*states, isolation=REPEATABLE_READ) as tx:
        staging = Staging(tx.run.staging_schema)
        offsets = passes.offsets(tx)
        passes.apply(tx, offsets)
        is_exact = tx.run.strategy != "verify"
        compared = [StagingTables(tx.connection, staging, target) for target in passes.targets]
        differences = tuple(_compare(tables, is_exact=is_exact) for tables in compared)
        if then is not None:
            for tables in compared:
                then(tables)
        dead_letters = _dead_letters(tx, staging)
        counts = Jsonb([difference.counts for difference in differences])
        tx.execute(RELOAD_RUN["diffed"], run=driver.run.id, differences=counts)
    offset_of = {f"{row.consumer_group} {row.topic}/{row.partition}": row.next_offset for row in offsets}
    return Report(differences, offset_of, dead_letters)


def distinct(columns: Sequence[str], left: str, right: str) -> Composable:
    """A condition: two rows differ in the bytes of these columns.

    ``=`` considers some different values equal, and some types (json, point, xml) have no ``=``.
    """
    if not columns:
        return ident.SQL("false")
    return ident.SQL("ROW({})::record *<> ROW({})::record").format(names(columns, left), names(columns, right))


def is_different(target: Target, columns: Sequence[str], *, is_exact: bool) -> Composable:
    """A condition: the live and the rebuilt row of one key differ in these columns.

    ``is_exact`` compares every digit of sums of floats, so that exactly the rebuilt rows are published.
    """
    if target.sums is not None:
        return different(target, columns, "live", "built", is_exact=is_exact)
    return distinct(differing(target, columns), "live", "built")


def differing(target: Target, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns in which two rows of one key can differ."""
    exact = set(target.key) - set(target.inexact_key)
    return tuple(column for column in columns if column not in exact)


def _compare(tables: StagingTables, *, is_exact: bool) -> Difference:
    target = tables.target
    tables.run("DROP TABLE IF EXISTS {diff}, {touched}, {seen}")
    tables.run(
        "CREATE {unlogged} TABLE {diff} AS SELECT {key}, CASE WHEN live.tableoid IS NULL THEN 'missing' "
        "WHEN built.tableoid IS NULL THEN 'extra' WHEN {other_key} THEN {different_key} ELSE 'different' END AS {kind}"
        "{values} "
        # The rebuilt row first: its spelling of the key is used.
        "FROM {built} AS built FULL JOIN {live} AS live USING ({key}) "
        "WHERE live.tableoid IS NULL OR built.tableoid IS NULL OR {distinct} "
        "ORDER BY {key}",  # sorted, so that the cut-over reads index and table in order
        # The rebuilt values without the key: the cut-over reads them sequentially, without look-ups.
        values=ident.SQL("").join(composed(", {column}", column=("built", column)) for column in tables.others),
        other_key=distinct(target.inexact_key, "live", "built"),
        different_key=DIFFERENT_KEY,
        distinct=is_different(target, tables.columns, is_exact=is_exact),
    )
    tables.run("CREATE {unlogged} TABLE {touched} AS SELECT {key} FROM {live} WITH NO DATA")
    tables.run("CREATE UNIQUE INDEX ON {diff} ({key})")
    _keep_seen(tables)
    tables.run("ANALYZE {diff}")
    return _counted(tables)


def _keep_seen(tables: StagingTables) -> None:
    """Store the transactions whose rows this snapshot sees, from the snapshot's oldest open transaction on.

    The merge uses them to find rows that were written after the comparison. The oldest open transaction alone is not
    enough: it may be in another database and open for hours. Rows' xmin is used, because a snapshot does not list
    subtransactions.
    """
    tables.run(
        "CREATE {unlogged} TABLE {seen} AS SELECT DISTINCT live.xmin::text::bigint AS xid FROM {live} AS live "
        "WHERE age(live.xmin) <= age(pg_snapshot_xmin(pg_current_snapshot())::xid)"
    )
    tables.run("CREATE UNIQUE INDEX ON {seen} (xid)")
    tables.run("ANALYZE {seen}")


def recall(driver: Driver, targets: Sequence[Target]) -> Report:
    """The report of a comparison that an earlier driver of this run stored, with current samples and offsets."""
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        tables = tuple(_counted(StagingTables(tx.connection, staging, target)) for target in targets)
        offsets = {f"{position.group} {position.partition}": position.next_offset for position in tx.positions()}
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


# Samples are cut because values may have megabytes. concat() is used because a cast to text drops the trailing blanks
# of a char(n).
_CUT = (
    "CASE WHEN num_nulls({column}) = 0 THEN CASE WHEN length(concat({column})) > {most} THEN left(concat({column}), "
    "{most}) || '… (' || length(concat({column})) || ' characters, MD5 ' || md5(concat({column})) || ')' "
    "ELSE concat({column}) END END AS {its}"
)


def row_texts(columns: Sequence[str], alias: str, column_text: str) -> Composable:
    """These columns of a row, each through this expression, as one jsonb value; NULL if there is no row."""
    return composed(
        "CASE WHEN {its} IS NOT NULL THEN (SELECT to_jsonb(v) FROM (SELECT {columns}) AS v) END",
        its=(alias, "tableoid"),
        columns=ident.SQL(", ").join(
            composed(column_text, column=(alias, column), its=(column,), most=VALUE) for column in columns
        ),
    )


def _samples(tables: StagingTables) -> tuple[Sample, ...]:
    samples = tables.rows(
        "SELECT diff.{kind}, (SELECT to_jsonb(k) FROM (SELECT {diff_key}) AS k), {live_values}, {built_values} "
        "FROM (SELECT *, row_number() OVER (PARTITION BY {kind} ORDER BY {key}) AS {n} FROM "
        "(SELECT {key}, replace({kind}, {different_key}, 'different') AS {kind} FROM {diff}) AS kinds) AS diff "
        "LEFT JOIN {live} AS live USING ({key}) LEFT JOIN {built} AS built USING ({key}) "
        "WHERE diff.{n} <= {most} ORDER BY diff.{kind}, {diff_key}",
        n=("seekpoint n",),
        diff_key=names(tables.target.key, "diff"),
        live_values=row_texts(tables.columns, "live", _CUT),
        built_values=row_texts(tables.columns, "built", _CUT),
        different_key=DIFFERENT_KEY,
        most=SAMPLES,
    )
    return tuple(
        Sample(kind, key, *(row and {column: row[column] for column in tables.columns} for row in rows))
        for kind, key, *rows in samples
    )
