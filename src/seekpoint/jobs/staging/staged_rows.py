"""Queries over the staged rows of the chosen attempts, with checks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.staging.attempt_tables import different_columns
from seekpoint.jobs.staging.stage import Staged
from seekpoint.jobs.tables.sql_templates import Composable, composed, name, names, rows, run
from seekpoint.jobs.tables.staging_schema import (
    KEY,
    LINE,
    MISSING,
    OFFSET,
    PLACE,
    ROWS,
    Staging,
    is_there,
    remembered_columns,
)
from seekpoint.jobs.tables.sums import aggregated
from seekpoint.jobs.tables.targets import Feed, Path, PipelineSource, Target
from seekpoint.records import Partition
from seekpoint.sinks.catalog import DELETED
from seekpoint.sinks.upsert.upsert import Upsert

_UNION = ident.SQL(" UNION ALL ")
AFTER_DELETE = "seekpoint after delete"  # the row lacks values, and the previous row of its key was deleted
NO_VALUES = (
    "has no values for columns that it did not change, and {} has no row of its key with these values: give the "
    "source's table REPLICA IDENTITY FULL, and rebuild from a Debezium snapshot that is made after that"
)


class StagedRows:
    """The rows of the chosen attempts. A row's partition is stored as an index into ``places``."""

    def __init__(
        self, connection: Connection, staging: Staging, sources: Sequence[PipelineSource], chosen: Sequence[Staged]
    ):
        self._connection, self._staging, self._sources, self._chosen = connection, staging, sources, chosen
        self.places = list(dict.fromkeys(attempt.place for attempt in chosen))

    def columns(self, target: Target) -> tuple[str, ...] | None:
        """The columns that tasks wrote; None if they wrote no row. Raises ReloadRefused if tasks differ."""
        column_lists = (remembered_columns(self._connection, tables[0]) for _, _, tables in self._of(target))
        variants = {frozenset(columns): columns for columns in column_lists if columns is not None}
        if len(variants) > 1:
            raise different_columns(target, variants.values())
        return next(iter(variants.values()), None)

    def insert(self, target: Target, table: Path) -> None:
        """Insert the rows into this table: all of them, or one row per key.

        Raises ReloadRefused for a row with missing values that no earlier row of its key has.
        """
        columns = self.columns(target) or target.all_columns
        if branches := self._branches(target, columns, placed=target.dedupes):
            self.check_missing(target)
            run(
                self._connection,
                "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE {query}",
                table=table,
                columns=names(columns),
                query=self._merged(target, columns, branches),
            )

    def placed(self, target: Target) -> Composable:
        """A query of the rows to insert, with partition, offset and line.

        Raises ReloadRefused if tasks have written the rebuilt table directly.
        """
        for _, feed, tables in self._of(target):
            self._require_own(feed.sink, tables[0])
        columns = self.columns(target) or target.all_columns
        branches = self._branches(target, columns, placed=True)
        if target.dedupes:
            return self._kept(target, columns, branches, (PLACE, OFFSET, LINE))
        return _UNION.join(branches)

    def aggregated(self, target: Target) -> tuple[tuple[str, ...], Composable] | None:
        """The columns of an Accumulate, and a query of the amounts by key; None if there are none."""
        columns = self.columns(target) or target.all_columns
        branches = self._branches(target, columns, placed=False)
        return (columns, aggregated(target, _UNION.join(branches))) if branches else None

    def newest(self, target: Target) -> tuple[tuple[str, ...], Composable]:
        """The columns of an Upsert's rows, and a query of each key's newest row or tombstone (``DELETED``).

        ``MISSING`` names the columns whose values no row of the key has.
        """
        columns = self.columns(target) or target.all_columns
        if branches := self._branches(target, columns, placed=True):
            return columns, self._newest(target, columns, branches)
        nothing = ident.SQL("SELECT {}, false AS {}, NULL::text[] AS {} FROM {} WHERE false")
        return columns, nothing.format(names(columns), name(DELETED), name(MISSING), name(*target.path))

    def truncated(self, target: Target) -> tuple[int, Sequence[str | None]] | None:
        """The last truncate: its offset, and the columns ``target.deletes`` as text. None if there was none."""
        if not any(feed.sink.empties for feed in target.feeds):
            return None
        truncates = [
            composed(
                "SELECT {offset}, {values} FROM {table} WHERE {key} IS NULL",
                offset=name(OFFSET),
                values=ident.SQL(", ").join(
                    composed("{column}::text", column=name(c)) for c in feed.sink.target.deletes
                ),
                table=tables[1],
                key=name(target.key[0]),
            )
            for _, feed, tables in self._of(target)
            if isinstance(feed.sink, Upsert)
        ]
        last = "SELECT * FROM ({all}) AS truncates ORDER BY {offset} DESC LIMIT 1"
        newest = rows(self._connection, last, all=_UNION.join(truncates), offset=name(OFFSET)) if truncates else []
        return next(((offset, values) for offset, *values in newest), None)

    def check_missing(self, target: Target, *, is_rebuilt: bool = True) -> None:
        """Raise ReloadRefused if a key's newest row lacks values, and no earlier row of the key has them.

        Unless ``is_rebuilt``, the live table may have those values, if no tombstone has deleted the row.
        """
        columns = self.columns(target) or target.all_columns
        if not self._missing(target):
            return
        refused = rows(
            self._connection,
            "SELECT {place}, {offset} FROM ({newest}) AS newest WHERE {after_delete} "
            "OR {is_rebuilt} AND {missing} IS NOT NULL ORDER BY {place}, {offset} LIMIT 1",
            place=name(PLACE),
            offset=name(OFFSET),
            newest=self._newest(target, columns, self._branches(target, columns, placed=True)),
            after_delete=name(AFTER_DELETE),
            is_rebuilt=is_rebuilt,
            missing=name(MISSING),
        )
        for place, offset in refused:
            raise ReloadRefused([f"{self.places[place][1]} offset {offset} {NO_VALUES.format(target.name)}"])

    def check(self, target: Target) -> None:
        """Raise ReloadRefused if an attempt's tables do not have the reported rows."""
        for attempt, feed, tables in self._of(target):
            count = ident.SQL("count(*)" if target.sums is None else "coalesce(sum({}), 0)").format(name(ROWS))
            counted = sum(
                rows(self._connection, "SELECT {count} FROM {table}", table=table, count=count)[0][0]
                for table in tables
            )
            if counted != attempt.rows[feed.number]:
                raise ReloadRefused(
                    [f"{'.'.join(tables[0])} has {counted} rows, and its task reported {attempt.rows[feed.number]}"]
                )

    def check_direct(self, target: Target, table: Path) -> None:
        """Raise ReloadRefused if a table that tasks have written directly does not have the reported rows."""
        reported = sum(attempt.rows[feed.number] for attempt, feed, _ in self._of(target))
        [(counted,)] = rows(self._connection, "SELECT count(*) FROM {table}", table=table)
        if counted != reported:
            raise ReloadRefused([f"{'.'.join(table)} has {counted} rows, and its tasks reported {reported}"])

    def shown(self, target: Target) -> str:
        """The target's name in messages."""
        return target.name

    def counts(self, target: Target) -> int:
        """The number of rows that the attempts reported for the target's first sink."""
        return sum(attempt.rows[target.feeds[0].number] for attempt in self._chosen)

    def check_keys(self, target: Target) -> None:
        """Raise ReloadRefused if the keys of a compacted topic's records and of the rows do not match one to one."""
        branches = [
            ident.SQL("SELECT {}, {}, {}, {} AS {} FROM {}").format(
                names(target.key),
                name(KEY),
                name(OFFSET),
                ident.Literal(self.places.index(attempt.place)),
                name(PLACE),
                name(*table),
            )
            for attempt, feed, tables in self._of(target)
            if isinstance(feed.sink, Upsert) and feed.sink.compacted
            for table in tables[:2]
        ]
        by_row, by_record = names(target.key), names((PLACE, KEY))
        for these, others, problem in (
            (by_row, by_record, "have different keys (or partitions), and one row"),
            (by_record, by_row, "have one key, and different rows"),
        ):
            if branches and (pair := self._first_pair(branches, these, others)):
                first, second = (f"{self.places[place][1]} offset {offset}" for place, offset in pair)
                why = (
                    f"{target.name}: the records at {first} and at {second} {problem}, and the sink is declared with "
                    "compacted=True: compaction keeps only the newest record of each key, so rows would be missing; "
                    "rebuild the table from a topic that has every record"
                )
                raise ReloadRefused([why])

    def _first_pair(
        self, branches: Sequence[Composable], these: Composable, others: Composable
    ) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Places and offsets of two records that are equal in ``these`` columns and different in the ``others``."""
        pairs = rows(
            self._connection,
            "SELECT first_place, first_offset, {place}, {offset} FROM "
            "(SELECT {place}, {offset}, ROW({others}) AS other, "
            "first_value(ROW({others})) OVER same AS first_other, first_value({place}) OVER same AS first_place, "
            "first_value({offset}) OVER same AS first_offset FROM ({all}) AS staged "
            "WINDOW same AS (PARTITION BY {these} ORDER BY {place}, {offset})) AS pairs "
            "WHERE other IS DISTINCT FROM first_other ORDER BY {place}, {offset} LIMIT 1",
            all=_UNION.join(branches),
            these=these,
            others=others,
            place=name(PLACE),
            offset=name(OFFSET),
        )
        return ((pairs[0][0], pairs[0][1]), (pairs[0][2], pairs[0][3])) if pairs else None

    def remove(self, bad: Collection[tuple[tuple[str, Partition], int]]) -> None:
        """Delete every row of these records from all tables.

        Raises ReloadRefused if tasks have written one of the rebuilt tables directly.
        """
        pipelines = {source.group: source.pipeline for source in self._sources}
        for attempt in self._chosen:
            offsets = sorted(
                offset for place, offset in bad if place == attempt.place and attempt.start <= offset < attempt.end
            )
            for number, sink in enumerate(pipelines[attempt.group].sinks if offsets else ()):
                self._require_own(sink, self._tables(attempt, number, sink)[0])
                for table in self._tables(attempt, number, sink):
                    run(
                        self._connection,
                        "DELETE FROM {table} WHERE {offset} = ANY ({offsets}::bigint[])",
                        table=table,
                        offset=name(OFFSET),
                        offsets=offsets,
                    )

    def _require_own(self, sink: object, table: Path) -> None:
        """Raise ReloadRefused if an attempt has no table of this sink, because it wrote to the rebuilt one."""
        if not is_there(self._connection, table):
            why = (
                f"{sink!r}: a unique index, a foreign key or keep_key_order that came since the staging began refuses "
                "a row, and tasks have written the rebuilt table without their rows' offsets: abort this run and open "
                "another one"
            )
            raise ReloadRefused([why])

    def _of(self, target: Target) -> Iterator[tuple[Staged, Feed, Sequence[Path]]]:
        """The attempts that have rows of the target, with sink and tables: of rows, tombstones and partial rows."""
        for attempt in self._chosen:
            for feed in target.feeds:
                if self._sources[feed.source].group == attempt.group and feed.sink.takes(attempt.partition.topic):
                    yield attempt, feed, self._tables(attempt, feed.number, feed.sink)

    def _tables(self, attempt: Staged, number: int, sink: object) -> Sequence[Path]:
        staging, name = self._staging, attempt.attempt
        tables = (
            staging.attempt_rows(name, number),
            staging.attempt_deletes(name, number),
            staging.attempt_partials(name, number),
        )
        return tables[: 1 + isinstance(sink, Upsert) + (isinstance(sink, Upsert) and sink.changes)]

    def _missing(self, target: Target) -> tuple[str, ...]:
        """The columns that some row lacks."""
        lacking = [
            ident.SQL("SELECT {} FROM {}").format(name(MISSING), name(*table))
            for _, _, tables in self._of(target)
            for table in tables[2:]
        ]
        query = "SELECT DISTINCT unnest({missing}) FROM ({all}) AS partials ORDER BY 1"
        lacked = rows(self._connection, query, missing=name(MISSING), all=_UNION.join(lacking)) if lacking else []
        return tuple(column for (column,) in lacked)

    def _branches(self, target: Target, columns: Sequence[str], *, placed: bool) -> list[Composable]:
        """A query per attempt; ``placed`` adds ``PLACE, OFFSET, LINE``, and ``DELETED, MISSING`` for an Upsert."""
        branches: list[Composable] = []
        truncated = self.truncated(target) if placed else None
        later: Composable = ident.SQL("")
        if truncated is not None:
            later = composed(" WHERE {offset} > {truncated}", offset=name(OFFSET), truncated=truncated[0])
        for attempt, feed, tables in self._of(target):
            if not placed:
                branches.append(ident.SQL("SELECT {} FROM {}").format(names(columns), name(*tables[0])))
                continue
            place = ident.SQL("{} AS {}, {}").format(
                ident.Literal(self.places.index(attempt.place)), name(PLACE), names((OFFSET, LINE))
            )
            if not isinstance(feed.sink, Upsert):
                branches.append(ident.SQL("SELECT {}, {} FROM {}").format(names(columns), place, name(*tables[0])))
                continue
            has = set(feed.sink.target.deletes)
            nulls = ident.SQL(", ").join(name(column) if column in has else ident.NULL for column in columns)
            nothing = ident.SQL("NULL::text[]")
            kinds = ((names(columns), False, nothing), (nulls, True, nothing), (names(columns), False, name(MISSING)))
            for (values, is_deleted, missing), table in zip(kinds, tables, strict=False):
                branches.append(
                    ident.SQL("SELECT {}, {}, {}, {} FROM {}{}").format(
                        values, place, ident.Literal(is_deleted), missing, name(*table), later
                    )
                )
        return branches

    def _merged(self, target: Target, columns: Sequence[str], branches: Sequence[Composable]) -> Composable:
        """A query of the rows to insert: each key's newest row, each key's sums, or all rows."""
        if target.dedupes:
            return self._kept(target, columns, branches)
        return _UNION.join(branches) if target.sums is None else aggregated(target, _UNION.join(branches))

    def _kept(
        self, target: Target, columns: Sequence[str], branches: Sequence[Composable], also: Sequence[str] = ()
    ) -> Composable:
        """A query of each key's newest row, unless that is a tombstone; with the columns ``also``."""
        return ident.SQL("SELECT {} FROM ({}) AS newest WHERE NOT {}").format(
            names([*columns, *also]), self._newest(target, columns, branches), name(DELETED)
        )

    def _newest(self, target: Target, columns: Sequence[str], branches: Sequence[Composable]) -> Composable:
        return _newest(target, columns, branches, self._missing(target))


class RowsOf(Protocol):
    """Makes the StagedRows of a run's chosen attempts."""

    def __call__(
        self, connection: Connection, staging: Staging, sources: Sequence[PipelineSource], chosen: Sequence[Staged], /
    ) -> StagedRows: ...


def _newest(
    target: Target, columns: Sequence[str], branches: Sequence[Composable], missing: Sequence[str]
) -> Composable:
    """A query of each key's newest row or tombstone, or of its first row if the sink keeps the first.

    The newest row has the highest ``order_by=`` value, or else the highest offset. Offsets of different partitions are
    not comparable: without ``order_by=``, a key in several partitions has no defined newest row, neither here nor in
    the live table. Columns that order rows are never NULL, because an Upsert dead-letters a record whose order is null.
    The exception are tombstones of changes, which have no ``order_by`` and get that of earlier rows in their partition.
    """
    has_position = target.changes and target.order_by is not None
    order = [*([target.order_by] if target.order_by and not has_position else []), OFFSET, PLACE, LINE]
    which = "{}" if target.keeps_first else "{} DESC"
    staged = ident.SQL("SELECT * FROM ({}) AS staged ({})").format(
        _UNION.join(branches), names([*columns, PLACE, OFFSET, LINE, DELETED, *([MISSING] if target.dedupes else [])])
    )
    so_far = composed(
        "max({position}) OVER (PARTITION BY {key}, {place} ORDER BY {offset}, {line}) DESC NULLS LAST",
        position=name(target.order_by or ""),
        key=names(target.key),
        place=name(PLACE),
        offset=name(OFFSET),
        line=name(LINE),
    )
    newest = [*([so_far] if has_position else []), *(ident.SQL(which).format(name(column)) for column in order)]
    return ident.SQL("SELECT DISTINCT ON ({key}) * FROM ({staged}) AS staged ORDER BY {key}, {order}").format(
        key=names(target.key),
        staged=_filled(target, columns, staged, missing, names(order)) if missing else staged,
        order=ident.SQL(", ").join(newest),
    )


def _filled(
    target: Target, columns: Sequence[str], staged: Composable, missing: Sequence[str], order: Composable
) -> Composable:
    """The staged rows; ``missing`` columns get the value of the key's last row that has one.

    ``MISSING`` is NULL if an earlier row is complete; otherwise it has the columns that no earlier row has.
    AFTER_DELETE says whether the last earlier row that is not partial is a tombstone.
    """
    key = names(target.key)
    has = "count(*) FILTER (WHERE {missing} IS NULL OR {column} <> ALL ({missing})) OVER rows_so_far AS {count}"
    so_far = {column: name(f"seekpoint so far {n}") for n, column in enumerate(missing)}
    counts = [composed(has, missing=name(MISSING), column=column, count=count) for column, count in so_far.items()]
    value = "first_value({column}) OVER (PARTITION BY {key}, {count} ORDER BY {order}) AS {column}"
    values = [
        composed(value, column=name(column), key=key, count=so_far[column], order=order)
        if column in so_far
        else name(column)
        for column in columns
    ]
    lacks = [composed("CASE {n} WHEN 0 THEN {column} END", n=count, column=column) for column, count in so_far.items()]
    return composed(
        "SELECT {values}, {places}, {deleted}, CASE complete WHEN 0 THEN array_remove(ARRAY[{lacks}], NULL) END AS "
        "{missing}, {missing} IS NOT NULL AND first_value({deleted}) OVER (PARTITION BY {key}, complete ORDER BY "
        "{order}) AS {after_delete} FROM (SELECT *, {counts}, count(*) FILTER (WHERE {missing} IS NULL) OVER "
        "rows_so_far AS complete FROM ({staged}) AS staged WINDOW rows_so_far AS (PARTITION BY {key} ORDER BY "
        "{order})) AS counted",
        values=ident.SQL(", ").join(values),
        places=names((PLACE, OFFSET, LINE)),
        deleted=name(DELETED),
        lacks=ident.SQL(", ").join(lacks),
        missing=name(MISSING),
        key=key,
        order=order,
        after_delete=name(AFTER_DELETE),
        counts=ident.SQL(", ").join(counts),
        staged=staged,
    )
