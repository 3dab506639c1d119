"""Queries over the staged rows of the chosen attempts, with checks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.staging.stage import Staged
from seekpoint.jobs.tables.sql_templates import Composable, name, names, rows, run
from seekpoint.jobs.tables.staging_schema import KEY, LINE, OFFSET, PLACE, ROWS, Staging, remembered_columns
from seekpoint.jobs.tables.sums import aggregated
from seekpoint.jobs.tables.targets import Feed, Path, PipelineSource, Target
from seekpoint.records import Partition
from seekpoint.sinks.catalog import DELETED
from seekpoint.sinks.upsert.upsert import Upsert

_UNION = ident.SQL(" UNION ALL ")


class StagedRows:
    """The rows of the chosen attempts. A row's partition is stored as an index into ``places``."""

    def __init__(
        self, connection: Connection, staging: Staging, sources: Sequence[PipelineSource], chosen: Sequence[Staged]
    ):
        self._connection, self._staging, self._sources, self._chosen = connection, staging, sources, chosen
        self.places = list(dict.fromkeys(attempt.place for attempt in chosen))

    def columns(self, target: Target) -> tuple[str, ...] | None:
        """The columns that tasks wrote; None if they wrote no row. Raises ReloadRefused if tasks differ."""
        known = (remembered_columns(self._connection, rows_table) for _, _, rows_table, _ in self._of(target))
        variants = {frozenset(columns): columns for columns in known if columns is not None}
        if len(variants) > 1:
            which = " and ".join(", ".join(columns) for columns in variants.values())
            raise ReloadRefused(
                [f"{target.name}: tasks or sinks wrote different columns, {which}: name them with columns=[...]"]
            )
        return next(iter(variants.values()), None)

    def insert(self, target: Target, table: Path) -> None:
        """Insert the rows into this table: all of them, or one row per key."""
        columns = self.columns(target) or target.all_columns
        if branches := self._branches(target, columns, placed=target.dedupes):
            run(
                self._connection,
                "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE {query}",
                table=table,
                columns=names(columns),
                query=_merged(target, columns, branches),
            )

    def placed(self, target: Target) -> Composable:
        """A query of the rows to insert, with partition, offset and line."""
        columns = self.columns(target) or target.all_columns
        branches = self._branches(target, columns, placed=True)
        if target.dedupes:
            return _kept(target, columns, branches, (PLACE, OFFSET, LINE))
        return _UNION.join(branches)

    def aggregated(self, target: Target) -> tuple[tuple[str, ...], Composable] | None:
        """The columns of an Accumulate, and a query of the addends by key; None if there are none."""
        columns = self.columns(target) or target.all_columns
        branches = self._branches(target, columns, placed=False)
        return (columns, aggregated(target, _UNION.join(branches))) if branches else None

    def newest(self, target: Target) -> tuple[tuple[str, ...], Composable]:
        """The columns of an Upsert's rows, and a query of each key's newest row or tombstone (``DELETED``)."""
        columns = self.columns(target) or target.all_columns
        if branches := self._branches(target, columns, placed=True):
            return columns, _newest(target, columns, branches)
        nothing = ident.SQL("SELECT {}, false AS {} FROM {} WHERE false")
        return columns, nothing.format(names(columns), name(DELETED), name(*target.path))

    def check_counts(self, target: Target) -> None:
        """Raise ReloadRefused if an attempt's tables do not have the rows that it reported."""
        for attempt, feed, *tables in self._of(target):
            count = ident.SQL("count(*)" if target.sums is None else "coalesce(sum({}), 0)").format(name(ROWS))
            counted = sum(
                rows(self._connection, "SELECT {count} FROM {table}", table=table, count=count)[0][0]
                for table in tables[: 1 + isinstance(feed.sink, Upsert)]
            )
            if counted != attempt.rows[feed.number]:
                raise ReloadRefused(
                    [f"{'.'.join(tables[0])} has {counted} rows, and its task reported {attempt.rows[feed.number]}"]
                )

    def check_order(self, target: Target) -> None:
        """Raise ReloadRefused if rows of one key have no order. Does nothing here: rows of sinks have line numbers."""

    def shown(self, target: Target) -> str:
        """The target's name in messages."""
        return target.name

    def counts(self, target: Target) -> int:
        """The number of rows that the attempts reported for the target's first sink."""
        return sum(attempt.rows[target.feeds[0].number] for attempt in self._chosen)

    def check_keys(self, target: Target) -> None:
        """Raise ReloadRefused if records' keys and rows' keys do not match one to one, in a compacted topic."""
        branches = [
            ident.SQL("SELECT {}, {}, {}, {} AS {} FROM {}").format(
                names(target.key),
                name(KEY),
                name(OFFSET),
                ident.Literal(self.places.index(attempt.place)),
                name(PLACE),
                name(*table),
            )
            for attempt, feed, *tables in self._of(target)
            if isinstance(feed.sink, Upsert) and feed.sink.compacted
            for table in tables
        ]
        by_row, by_record = names(target.key), names((PLACE, KEY))
        for these, others, what in (
            (by_row, by_record, "have different keys (or partitions), and one row"),
            (by_record, by_row, "have one key, and different rows"),
        ):
            if branches and (pair := self._first_pair(branches, these, others)):
                first, second = (f"{self.places[place][1]} offset {offset}" for place, offset in pair)
                why = (
                    f"{target.name}: the records at {first} and at {second} {what}, and the sink is declared with "
                    "compacted=True: compaction keeps only the newest record of each key, so rows would be missing; "
                    "rebuild the table from a topic that has every record"
                )
                raise ReloadRefused([why])

    def _first_pair(
        self, branches: Sequence[Composable], these: Composable, others: Composable
    ) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Places and offsets of two records that agree in ``these`` columns and differ in the ``others``."""
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
        """Delete every row of these records from all tables."""
        pipelines = {source.group: source.pipeline for source in self._sources}
        for attempt in self._chosen:
            offsets = sorted(
                offset for place, offset in bad if place == attempt.place and attempt.start <= offset < attempt.end
            )
            for number, sink in enumerate(pipelines[attempt.group].sinks if offsets else ()):
                for table in self._tables(attempt, number)[: 1 + isinstance(sink, Upsert)]:
                    run(
                        self._connection,
                        "DELETE FROM {table} WHERE {offset} = ANY ({offsets}::bigint[])",
                        table=table,
                        offset=name(OFFSET),
                        offsets=offsets,
                    )

    def _of(self, target: Target) -> Iterator[tuple[Staged, Feed, Path, Path]]:
        """The attempts that have rows of the target, with the sink and its tables of rows and of tombstones."""
        for attempt in self._chosen:
            for feed in target.feeds:
                if self._sources[feed.source].group == attempt.group and feed.sink.takes(attempt.partition.topic):
                    yield attempt, feed, *self._tables(attempt, feed.number)

    def _tables(self, attempt: Staged, number: int) -> tuple[Path, Path]:
        staging, name = self._staging, attempt.attempt
        return staging.attempt_rows(name, number), staging.attempt_deletes(name, number)

    def _branches(self, target: Target, columns: Sequence[str], *, placed: bool) -> list[Composable]:
        """A query per attempt; ``placed`` adds ``PLACE, OFFSET, LINE``, and ``DELETED`` for an Upsert."""
        branches: list[Composable] = []
        for attempt, feed, rows_table, tombstones in self._of(target):
            if not placed:
                branches.append(ident.SQL("SELECT {} FROM {}").format(names(columns), name(*rows_table)))
                continue
            place = ident.SQL("{} AS {}, {}").format(
                ident.Literal(self.places.index(attempt.place)), name(PLACE), names((OFFSET, LINE))
            )
            if not isinstance(feed.sink, Upsert):
                branches.append(ident.SQL("SELECT {}, {} FROM {}").format(names(columns), place, name(*rows_table)))
                continue
            has = set(feed.sink.target.deletes)
            nulls = ident.SQL(", ").join(name(column) if column in has else ident.NULL for column in columns)
            for values, deleted, table in ((names(columns), "false", rows_table), (nulls, "true", tombstones)):
                statement = ident.SQL("SELECT {}, {}, {} FROM {}")
                branches.append(statement.format(values, place, ident.SQL(deleted), name(*table)))
        return branches


def _merged(target: Target, columns: Sequence[str], branches: Sequence[Composable]) -> Composable:
    """A query of the rows to insert: the newest of each key, the sums of each key, or all of them."""
    if target.dedupes:
        return _kept(target, columns, branches)
    return _UNION.join(branches) if target.sums is None else aggregated(target, _UNION.join(branches))


class RowsOf(Protocol):
    """Makes the StagedRows of the attempts that were chosen for a run."""

    def __call__(
        self, connection: Connection, staging: Staging, sources: Sequence[PipelineSource], chosen: Sequence[Staged], /
    ) -> StagedRows: ...


def _kept(
    target: Target, columns: Sequence[str], branches: Sequence[Composable], also: Sequence[str] = ()
) -> Composable:
    """A query of each key's newest row, without keys whose newest row is a tombstone; with the columns ``also``."""
    return ident.SQL("SELECT {} FROM ({}) AS newest WHERE NOT {}").format(
        names([*columns, *also]), _newest(target, columns, branches), name(DELETED)
    )


def _newest(target: Target, columns: Sequence[str], branches: Sequence[Composable]) -> Composable:
    """A query of each key's newest row or tombstone, or of its first row if the sink keeps the first.

    The newest row has the highest ``order_by=`` value, or else the highest offset. Offsets of different partitions are
    not comparable: without ``order_by=``, a key in several partitions has no defined newest row, neither here nor in
    the live table. The order's columns are never NULL: an Upsert dead-letters a record whose order is null.
    """
    order = [*([target.order_by] if target.order_by else []), OFFSET, PLACE, LINE]
    which = "{}" if target.keeps_first else "{} DESC"
    return ident.SQL("SELECT DISTINCT ON ({key}) * FROM ({all}) AS given ({columns}) ORDER BY {key}, {order}").format(
        key=names(target.key),
        all=_UNION.join(branches),
        columns=names([*columns, PLACE, OFFSET, LINE, DELETED]),
        order=ident.SQL(", ").join(ident.SQL(which).format(name(column)) for column in order),
    )
