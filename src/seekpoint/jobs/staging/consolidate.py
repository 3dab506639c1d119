"""From what the tasks staged to one table each: choose one attempt per offset, check, fold, index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import psycopg
from psycopg import sql as ident
from sqlalchemy import Connection, Row, text

from seekpoint.errors import ConfigError, ReloadRefused
from seekpoint.jobs.run import statements as sql
from seekpoint.jobs.run.run import Driver, StagedPosition, Step, Tx
from seekpoint.jobs.staging.constraint_rejects import Rejects, refused
from seekpoint.jobs.staging.stage import Task
from seekpoint.jobs.tables.compose import Composable, name, names, rows, run
from seekpoint.jobs.tables.constraints import check_references, references
from seekpoint.jobs.tables.copies import make_copy
from seekpoint.jobs.tables.create_like import Sequences, make_like
from seekpoint.jobs.tables.generations import tables as leaves
from seekpoint.jobs.tables.staging_schema import KEY, LINE, OFFSET, PLACE, Staging, remember_columns, remembered_columns
from seekpoint.jobs.tables.targets import REPLACING, Feed, Path, Source, Target, targets
from seekpoint.kafka.ranges import Range, topic_ids
from seekpoint.ledger.tables import dead_letter
from seekpoint.records import Partition
from seekpoint.sinks.catalog import DELETED, quoted
from seekpoint.sinks.upsert.upsert import Upsert

RANGE = 300_000  # records of one task: fewer cost more in connections than they gain in balance


def require_width(range_records: int) -> None:
    """Before a run is opened that no task could stage. Raises ConfigError."""
    if range_records < 1:
        raise ConfigError(f"range_records is the number of offsets of a task, at least 1, and not {range_records}")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The attempts that count, and what nobody has staged yet."""

    chosen: tuple[Row[object], ...]
    missing: tuple[Task, ...]


def coverage(tx: Step, width: int = RANGE, *, without: Collection[str] = ()) -> Coverage:
    """One attempt for each offset of ``[first, E0)``, and tasks of this width for the offsets that have none.

    Of attempts that overlap (of another width, of a task that was late) those count that leave the fewest offsets
    without any. Groups ``without`` tasks are left to the driver's own rounds.
    """
    found = tx.execute(sql.STAGED, its_run=tx.run.id)
    staged = {key: list(rows) for key, rows in groupby(found, lambda r: (r.consumer_group, r.topic, r.partition))}
    chosen: list[Row[object]] = []
    missing: list[Task] = []
    for at in tx.positions():
        if at.group in without:
            continue
        cursor = at.first_offset
        for attempt in _tiling(at.first_offset, at.end_offset, staged.get((at.group, *at.partition), ())):
            missing += _tasks(at, cursor, attempt.from_offset, width)
            chosen.append(attempt)
            cursor = attempt.to_offset
        missing += _tasks(at, cursor, at.end_offset, width)
    return Coverage(tuple(chosen), tuple(missing))


def _tiling(first: int, end: int, attempts: Sequence[Row[Any]]) -> list[Row[Any]]:
    """Attempts within ``[first, end)`` that do not overlap and miss the fewest offsets; of those the fewest."""
    within = [one for one in attempts if first <= one.from_offset < one.to_offset <= end]
    ends = sorted({first, end, *(at for one in within for at in (one.from_offset, one.to_offset))})
    begins: dict[int, list[Row[Any]]] = {}
    for one in within:
        begins.setdefault(one.from_offset, []).append(one)
    best: dict[int, tuple[int, int]] = {first: (0, 0)}  # missed offsets, and attempts, up to an offset
    came: dict[int, tuple[int, Row[Any] | None]] = {}
    for here, there in pairwise([*ends, end]):
        missed, count = best[here]
        steps = [(there, (missed + there - here, count), None)] if there > here else []
        for to, cost, by in [*steps, *((one.to_offset, (missed, count + 1), one) for one in begins.get(here, ()))]:
            if to not in best or cost < best[to]:
                best[to], came[to] = cost, (here, by)
    found: list[Row[Any]] = []
    at = end
    while at > first:
        at, attempt = came[at]
        found += [attempt] if attempt is not None else []
    return found[::-1]


def _tasks(at: StagedPosition, start: int, end: int, width: int) -> Iterable[Task]:
    if start < end:
        for part in Range(at.partition, at.topic_id, start, end).cut(width):
            yield Task(at.group, part)


def consolidate(driver: Driver, sources: Sequence[Source]) -> None:
    """Put what was staged into one table per target, and the rebuild's position to E0: one transaction.

    Raises ReloadRefused where an attempt's table has not the rows that it reported, or a range is missing.
    """
    with driver.step("staging") as tx:
        staging = Staging(tx.run.staging_schema)
        handled = {source.group for source in sources if source.has_handler}
        done = coverage(tx, without=handled)
        if done.missing:
            raise ReloadRefused([f"{done.missing[0].range} was not staged: stage it, then go on"])
        check_dead_letters(tx, staging, done)
        groups = [source.group for source in sources]
        staged = _Staged(tx.connection, staging, done.chosen, groups)
        replaces = tx.run.strategy in REPLACING
        for target in targets(tx.connection, sources):
            if target.handled_as:
                make_copy(tx.connection, staging, target, Sequences.CONTINUED if replaces else Sequences.OWN)
            else:
                numbers = Sequences.CONTINUED if replaces else Sequences.IGNORED
                make_like(tx.connection, staging.table(target), target.path, numbers, prefix=staging.sequences(target))
            if staging.is_generation:
                leaves.make(tx, staging, target)
            staged.check_counts(target)
            staged.check_keys(target)
            staged.fill(target)
        ends = {(at.group, at.partition): at.end_offset for at in tx.positions()
                if at.group not in handled}  # fmt: skip
        tx.advance(ends)
        driver.transition(tx, "staged")


def check_dead_letters(tx: Tx, staging: Staging, done: Coverage) -> None:
    """A record that failed in one attempt, and in the one that counts did not, would be a row and a dead letter.

    Raises ReloadRefused.
    """
    counted = rows(tx.connection, "SELECT count(*) FROM {t}", t=name(staging.schema, dead_letter.name))[0][0]
    told = sum(row.dead_letters for row in done.chosen)
    if counted != told:
        why = (
            f"{counted} records failed in some attempt at their range, and {told} in those that count: codecs and row= "
            "do not say the same each time. Run another one"
        )
        raise ReloadRefused([why])


@dataclass(frozen=True, slots=True)
class _Rows:
    """What was staged for one target: the columns that were written, and queries of rows with their places."""

    columns: tuple[str, ...] | None
    branches: tuple[Composable, ...]

    def written(self, target: Target) -> tuple[str, ...]:
        return self.columns or target.all_columns


class _Staged:
    """The chosen attempts' tables. ``places`` are the partitions by the numbers that rows have of them."""

    def __init__(self, connection: Connection, staging: Staging, chosen: Sequence[Row[Any]], groups: Sequence[str]):
        self._connection, self._staging, self._chosen, self._groups = connection, staging, chosen, groups
        self.places = list(dict.fromkeys((r.consumer_group, Partition(r.topic, r.partition)) for r in chosen))

    def rows(self, target: Target, *, placed: bool = False) -> _Rows:
        """What counts for this target; ``placed``: with the places of rows that are not folded, too.

        Raises ReloadRefused where sinks or tasks wrote different columns.
        """
        branches: list[Composable] = []
        columns: tuple[str, ...] | None = None
        for attempt, feed in self._of(target):
            raw, gone = self._tables(attempt, feed.number)
            known = remembered_columns(self._connection, raw)
            if known is None:
                known = columns or (target.all_columns if isinstance(feed.sink, Upsert) else None)
                if known is None:
                    continue
            elif columns is not None and set(known) != set(columns):
                raise ReloadRefused(
                    [f"{target.name}: {', '.join(columns)} are written by one sink, {', '.join(known)} by another"]
                )
            else:
                columns = columns or known
            place = self.places.index((attempt.consumer_group, Partition(attempt.topic, attempt.partition)))
            branches += _branches(feed.sink, raw, gone, columns or known, place if placed or target.dedupes else None)
        return _Rows(columns, tuple(branches))

    def fill(self, target: Target) -> None:
        """Put what counts into the rebuilt table."""
        its = self.rows(target)
        if its.branches:
            written = its.written(target)
            query = ident.SQL(" UNION ALL ").join(its.branches)
            run(
                self._connection,
                "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE {query}",
                table=name(*self._staging.table(target)),
                columns=names(written),
                query=_folded(target, written, its.branches) if target.dedupes else query,
            )
        remember_columns(self._connection, self._staging.table(target), its.columns)

    def placed(self, target: Target) -> Composable:
        """A query of the rows that count, with their places."""
        its = self.rows(target, placed=True)
        if target.dedupes:
            return _folded(target, its.written(target), its.branches, (PLACE, OFFSET, LINE))
        return ident.SQL(" UNION ALL ").join(its.branches)

    def check_counts(self, target: Target) -> None:
        """Raise ReloadRefused where an attempt's tables have not the rows that it reported."""
        for attempt, feed in self._of(target):
            raw, gone = self._tables(attempt, feed.number)
            counted = _count(self._connection, raw)
            if isinstance(feed.sink, Upsert):
                counted += _count(self._connection, gone)
            if counted != attempt.row_counts[feed.number]:
                raise ReloadRefused(
                    [f"{'.'.join(raw)} has {counted} rows, and its task reported {attempt.row_counts[feed.number]}"]
                )

    def check_keys(self, target: Target) -> None:
        """Raise ReloadRefused where a record's key is not one row's key, though compaction goes by the record's."""
        branches = [
            ident.SQL("SELECT {}, {}, {}, {} AS {} FROM {}").format(
                names(target.key), name(KEY), name(OFFSET), ident.Literal(place), name(PLACE), name(*table)
            )
            for attempt, feed in self._of(target)
            if isinstance(feed.sink, Upsert) and feed.sink.compacted
            for place in [self.places.index((attempt.consumer_group, Partition(attempt.topic, attempt.partition)))]
            for table in self._tables(attempt, feed.number)
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
            all=ident.SQL(" UNION ALL ").join(branches),
            these=these,
            others=others,
            place=name(PLACE),
            offset=name(OFFSET),
        )
        return ((found[0][0], found[0][1]), (found[0][2], found[0][3])) if found else None

    def remove(self, sources: Sequence[Source], bad: Collection[tuple[tuple[str, Partition], int]]) -> None:
        """Delete every row that these records made, whatever the table."""
        for attempt in self._chosen:
            place = attempt.consumer_group, Partition(attempt.topic, attempt.partition)
            offsets = sorted(at for of, at in bad if of == place and attempt.from_offset <= at < attempt.to_offset)
            pipeline = sources[self._groups.index(attempt.consumer_group)].pipeline
            for number, sink in enumerate(pipeline.sinks if offsets else ()):
                raw, gone = self._tables(attempt, number)
                for table in (raw, gone) if isinstance(sink, Upsert) else (raw,):
                    run(
                        self._connection,
                        "DELETE FROM {table} WHERE {at} = ANY ({offsets}::bigint[])",
                        table=name(*table),
                        at=name(OFFSET),
                        offsets=ident.Literal(offsets),
                    )

    def _of(self, target: Target) -> Iterator[tuple[Row[Any], Feed]]:
        for attempt in self._chosen:
            for feed in target.feeds:
                if self._groups[feed.source] == attempt.consumer_group and feed.sink.takes(attempt.topic):
                    yield attempt, feed

    def _tables(self, attempt: Row[Any], number: int) -> tuple[Path, Path]:
        return self._staging.attempt_rows(attempt.table_name, number), self._staging.attempt_deletes(
            attempt.table_name, number
        )


def _count(connection: Connection, path: tuple[str, str]) -> int:
    return int(rows(connection, "SELECT count(*) FROM {table}", table=name(*path))[0][0])


def _branches(sink: object, raw: Path, gone: Path, columns: Sequence[str], place: int | None) -> list[Composable]:
    if place is None:
        return [ident.SQL("SELECT {} FROM {}").format(names(columns), name(*raw))]
    if not isinstance(sink, Upsert):
        where = ident.SQL("{} AS {}, {}, {}").format(ident.Literal(place), name(PLACE), name(OFFSET), name(LINE))
        return [ident.SQL("SELECT {}, {} FROM {}").format(names(columns), where, name(*raw))]
    where = ident.SQL("{}, {}, {}").format(name(OFFSET), ident.Literal(place), name(LINE))
    kept = ident.SQL("SELECT {}, {}, false FROM {}").format(names(columns), where, name(*raw))
    has = set(sink.target.deletes)
    nulls = ident.SQL(", ").join(name(one) if one in has else ident.SQL("NULL") for one in columns)
    return [kept, ident.SQL("SELECT {}, {}, true FROM {}").format(nulls, where, name(*gone))]


def _folded(
    target: Target, columns: Sequence[str], branches: Sequence[Composable], also: Sequence[str] = ()
) -> Composable:
    """The newest row of each key, or none where that is a tombstone; with the columns ``also`` of its place.

    Newest is what the sink says: by its column, else by offset. Offsets of different partitions say nothing about each
    other; a key that lives in several has no newest row without such a column, in the live table neither.
    """
    key = names(target.key)
    return ident.SQL(
        "SELECT {wanted} FROM (SELECT DISTINCT ON ({key}) * FROM ({all}) "
        "AS given ({columns}, {at}, {place}, {line}, {gone}) ORDER BY {key}, {order}) AS newest WHERE NOT {gone}"
    ).format(
        at=name(OFFSET),
        place=name(PLACE),
        line=name(LINE),
        gone=name(DELETED),
        wanted=names([*columns, *also]),
        columns=names(columns),
        key=key,
        all=ident.SQL(" UNION ALL ").join(branches),
        order=newest_first(target.order_by),
    )


def newest_first(order_by: str | None) -> Composable:
    """How staged rows and tombstones of one key are sorted: as a worker's one transaction would have it.

    None of these columns is NULL there: an Upsert sets a record aside whose order is null.
    """
    columns = [*([order_by] if order_by else []), OFFSET, PLACE, LINE]
    return ident.SQL(", ").join(ident.SQL("{} DESC").format(name(one)) for one in columns)


# -- indexes ---------------------------------------------------------------------------------------------------

_INDEXES = text(
    """
    SELECT pg_get_indexdef(i.indexrelid) AS definition, i.indisprimary AS is_primary, i.indisunique AS is_unique,
           quote_ident(c.relname) AS name, format('%I.%I', n.nspname, t.relname) AS on_table,
           CAST(k.contype AS text) AS kind
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace
    LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')
    WHERE i.indrelid = to_regclass(:name) ORDER BY i.indisprimary DESC, c.relname
    """
)


def index(driver: Driver, sources: Sequence[Source], kafka: Mapping[str, object]) -> None:
    """Give the rebuilt tables their key, and where they will replace the live ones all their indexes.

    A record whose row the live table's foreign keys and unique indexes refuse is set aside, as a worker would. Raises
    ReloadRefused where the policy stops at one, and where a topic was recreated meanwhile.
    """
    check_topics(kafka, driver)
    with driver.step("staged") as tx:
        staging = Staging(tx.run.staging_schema)
        found = targets(tx.connection, sources)
        handled = {source.group for source in sources if source.has_handler}
        groups = [source.group for source in sources]
        staged = _Staged(tx.connection, staging, coverage(tx, without=handled).chosen, groups)
        rejects = Rejects(driver.engine, sources, kafka)
        while bad := _refused(tx, staging, found, staged):
            rejects.put(tx, staging, bad)
            staged.remove(sources, bad)
            for target in (one for one in found if not one.handled_as):
                run(tx.connection, "TRUNCATE {table}", table=name(*staging.table(target)))
                staged.fill(target)
        for target in found:
            if tx.run.strategy not in REPLACING:
                its = references(tx.connection, staging, target, found)
                check_references(tx.connection, staging, target, its)
            run(tx.connection, "ANALYZE {table}", table=name(*staging.table(target)))
        driver.transition(tx, "indexed")


def _refused(
    tx: Step, staging: Staging, found: Sequence[Target], staged: _Staged
) -> dict[tuple[tuple[str, Partition], int], psycopg.Error]:
    """The records whose rows are refused, of all tables; none: the tables have their indexes."""
    bad: dict[tuple[tuple[str, Partition], int], psycopg.Error] = {}
    savepoint = tx.connection.begin_nested()
    for target in (one for one in found if not one.handled_as):  # a copy was made with all of them
        replaces = tx.run.strategy in REPLACING
        make = partial(_all_indexes, tx.connection, staging, target) if replaces else None
        refused_ = refused(tx, staging, target, found, placed=partial(staged.placed, target), make=make)
        bad |= {(staged.places[place], at): error for (place, at), error in refused_.items()}
    if bad:
        savepoint.rollback()
    else:
        savepoint.commit()
    return bad


def _all_indexes(connection: Connection, staging: Staging, target: Target) -> None:
    for n, row in enumerate(connection.execute(_INDEXES, {"name": quoted(*target.path)})):
        head = f"CREATE {'UNIQUE ' if row.is_unique else ''}INDEX {row.name} ON {row.on_table} "
        if not row.definition.startswith(head):
            raise ReloadRefused([f"{target.name}: index {row.name} is not understood: use strategy 'merge'"])
        run(
            connection,
            "CREATE {unique} INDEX {name} ON {table} {rest}",
            unique=ident.SQL("UNIQUE" if row.is_unique else ""),
            name=name(staging.index(target, n)),
            table=name(*staging.table(target)),
            rest=ident.SQL(row.definition[len(head) :]),
        )
        if row.kind in {"p", "u"}:
            run(
                connection,
                "ALTER TABLE {table} ADD CONSTRAINT {name} {kind} USING INDEX {name}",
                table=name(*staging.table(target)),
                name=name(staging.index(target, n)),
                kind=ident.SQL("PRIMARY KEY" if row.kind == "p" else "UNIQUE"),
            )


def check_topics(kafka: Mapping[str, object], driver: Driver) -> None:
    """The topics still are those that the run was opened on. Raises ReloadRefused, KafkaUnavailable."""
    with driver.step("staging", "staged", "indexed", "catching_up", "compared") as tx:
        wanted = {at.partition: at.topic_id for at in tx.positions()}
    now = topic_ids(kafka, sorted({at.topic for at in wanted}))
    strange = sorted({at.topic for at, topic_id in wanted.items() if now[at.topic] != topic_id})
    if strange:
        raise ReloadRefused([f"topic {topic!r} was deleted or created again: end this run" for topic in strange])
