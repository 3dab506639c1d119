"""Queries over the staged rows of the chosen attempts, with checks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.staging.stage import Staged
from seekpoint.jobs.tables.sql_templates import Composable, name, names, rows, run
from seekpoint.jobs.tables.staging_schema import KEY, LINE, OFFSET, PLACE, Staging, remembered_columns
from seekpoint.jobs.tables.targets import Feed, Path, PipelineSource, Target
from seekpoint.records import Partition
from seekpoint.sinks.catalog import DELETED
from seekpoint.sinks.upsert.upsert import Upsert

_UNION = ident.SQL(" UNION ALL ")


class StagedRows:
    """The rows of the attempts that count. ``places`` are their partitions, by the numbers that rows have of them."""

    def __init__(
        self, connection: Connection, staging: Staging, sources: Sequence[PipelineSource], chosen: Sequence[Staged]
    ):
        self._connection, self._staging, self._sources, self._chosen = connection, staging, sources, chosen
        self.places = list(dict.fromkeys(one.place for one in chosen))

    def columns(self, target: Target) -> tuple[str, ...] | None:
        """The columns that tasks wrote; None where they wrote no row. Raises ReloadRefused where they differ."""
        known = (remembered_columns(self._connection, kept) for _, _, kept, _ in self._of(target))
        found = {frozenset(columns): columns for columns in known if columns is not None}
        if len(found) > 1:
            which = " and ".join(", ".join(columns) for columns in found.values())
            raise ReloadRefused(
                [f"{target.name}: tasks or sinks wrote different columns, {which}: name them with columns=[...]"]
            )
        return next(iter(found.values()), None)

    def insert(self, target: Target, table: Path) -> None:
        """Put what counts into this table."""
        columns = self.columns(target) or target.all_columns
        if branches := self._branches(target, columns, placed=target.dedupes):
            run(
                self._connection,
                "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE {query}",
                table=table,
                columns=names(columns),
                query=_kept(target, columns, branches) if target.dedupes else _UNION.join(branches),
            )

    def placed(self, target: Target) -> Composable:
        """A query of the rows that count, with their places."""
        columns = self.columns(target) or target.all_columns
        branches = self._branches(target, columns, placed=True)
        if target.dedupes:
            return _kept(target, columns, branches, (PLACE, OFFSET, LINE))
        return _UNION.join(branches)

    def newest(self, target: Target) -> tuple[tuple[str, ...], Composable]:
        """The columns of an Upsert's rows, and a query of each key's newest row or tombstone (``DELETED``)."""
        columns = self.columns(target) or target.all_columns
        return columns, _newest(target, columns, self._branches(target, columns, placed=True))

    def check_counts(self, target: Target) -> None:
        """Raise ReloadRefused where an attempt's tables have not the rows that it reported."""
        for attempt, feed, *tables in self._of(target):
            counted = sum(
                rows(self._connection, "SELECT count(*) FROM {table}", table=table)[0][0]
                for table in tables[: 1 + isinstance(feed.sink, Upsert)]
            )
            if counted != attempt.rows[feed.number]:
                raise ReloadRefused(
                    [f"{'.'.join(tables[0])} has {counted} rows, and its task reported {attempt.rows[feed.number]}"]
                )

    def check_keys(self, target: Target) -> None:
        """Raise ReloadRefused where a record's key is not one row's key, though compaction goes by the record's."""
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
            if branches and (found := self._first_pair(branches, these, others)):
                first, second = (f"{self.places[place][1]} offset {offset}" for place, offset in found)
                why = (
                    f"{target.name}: the records at {first} and at {second} {what}, and the sink is declared with "
                    "compacted=True: compaction keeps the newest record of each key, which is not every row then; "
                    "rebuild the table from a topic that has every record"
                )
                raise ReloadRefused([why])

    def _first_pair(
        self, branches: Sequence[Composable], these: Composable, others: Composable
    ) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Places and offsets of two records that agree in ``these`` columns, and not in the ``others``."""
        found = rows(
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
        return ((found[0][0], found[0][1]), (found[0][2], found[0][3])) if found else None

    def remove(self, bad: Collection[tuple[tuple[str, Partition], int]]) -> None:
        """Delete every row that these records made, whatever the table."""
        pipelines = {source.group: source.pipeline for source in self._sources}
        for attempt in self._chosen:
            offsets = sorted(at for place, at in bad if place == attempt.place and attempt.start <= at < attempt.end)
            for number, sink in enumerate(pipelines[attempt.group].sinks if offsets else ()):
                for table in self._tables(attempt, number)[: 1 + isinstance(sink, Upsert)]:
                    run(
                        self._connection,
                        "DELETE FROM {table} WHERE {at} = ANY ({offsets}::bigint[])",
                        table=table,
                        at=name(OFFSET),
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
        """Queries of an attempt's rows; ``placed`` ones have ``PLACE, OFFSET, LINE``, of an Upsert ``DELETED`` too."""
        branches: list[Composable] = []
        for attempt, feed, kept, gone in self._of(target):
            if not placed:
                branches.append(ident.SQL("SELECT {} FROM {}").format(names(columns), name(*kept)))
                continue
            place = ident.SQL("{} AS {}, {}").format(
                ident.Literal(self.places.index(attempt.place)), name(PLACE), names((OFFSET, LINE))
            )
            if not isinstance(feed.sink, Upsert):
                branches.append(ident.SQL("SELECT {}, {} FROM {}").format(names(columns), place, name(*kept)))
                continue
            has = set(feed.sink.target.deletes)
            nulls = ident.SQL(", ").join(name(one) if one in has else ident.NULL for one in columns)
            for values, deleted, table in ((names(columns), "false", kept), (nulls, "true", gone)):
                statement = ident.SQL("SELECT {}, {}, {} FROM {}")
                branches.append(statement.format(values, place, ident.SQL(deleted), name(*table)))
        return branches


def _kept(
    target: Target, columns: Sequence[str], branches: Sequence[Composable], also: Sequence[str] = ()
) -> Composable:
    """The newest row of each key, or none where that is a tombstone; with the columns ``also`` of its place."""
    return ident.SQL("SELECT {} FROM ({}) AS newest WHERE NOT {}").format(
        names([*columns, *also]), _newest(target, columns, branches), name(DELETED)
    )


def _newest(target: Target, columns: Sequence[str], branches: Sequence[Composable]) -> Composable:
    """The newest row or tombstone of each key: as a worker's one transaction would have it.

    Newest is what the sink says: by its column, else by offset. Offsets of different partitions say nothing about each
    other; a key that lives in several has no newest row without such a column, in the live table neither. None of the
    columns that order is NULL: an Upsert sets a record aside whose order is null.
    """
    order = [*([target.order_by] if target.order_by else []), OFFSET, PLACE, LINE]
    return ident.SQL("SELECT DISTINCT ON ({key}) * FROM ({all}) AS given ({columns}) ORDER BY {key}, {order}").format(
        key=names(target.key),
        all=_UNION.join(branches),
        columns=names([*columns, PLACE, OFFSET, LINE, DELETED]),
        order=ident.SQL(", ").join(ident.SQL("{} DESC").format(name(one)) for one in order),
    )
