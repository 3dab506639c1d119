"""From what the tasks staged to one table each: choose one attempt per offset, check, fold, index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from psycopg import sql as ident
from sqlalchemy import Connection, Row, text

from seekpoint.errors import ConfigError, ReloadRefused
from seekpoint.kafka.ranges import Range, topic_ids
from seekpoint.reload import statements as sql
from seekpoint.reload.generations import leaves
from seekpoint.reload.handlers.copies import make_copy
from seekpoint.reload.layout import (
    LINE,
    OFFSET,
    Composable,
    Staging,
    name,
    names,
    remember_columns,
    remembered_columns,
    rows,
    run,
)
from seekpoint.reload.likeness import Numbers, make_like
from seekpoint.reload.run import Driver, StagedPosition, Tx
from seekpoint.reload.staging import Task
from seekpoint.reload.targets import Source, Target, targets
from seekpoint.sinks.layout import DELETED, quoted
from seekpoint.sinks.upsert import Upsert
from seekpoint.tables import dead_letter

PLACE = "seekpoint place"  # which partition a row is from, as a number
REPLACING = ("swap", "generation")  # strategies that put the rebuilt table in the place of the live one
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


def coverage(tx: Tx, driver: Driver, width: int = RANGE, *, without: Collection[str] = ()) -> Coverage:
    """One attempt for each offset of ``[first, E0)``, and tasks of this width for the offsets that have none.

    Of several attempts at one range, the first by name counts; one that overlaps what is covered does not. Groups
    ``without`` tasks are left to the driver's own rounds.
    """
    found = tx.execute(sql.STAGED, its_run=driver.run.id)
    staged = {key: list(rows) for key, rows in groupby(found, lambda r: (r.consumer_group, r.topic, r.partition))}
    chosen: list[Row[object]] = []
    missing: list[Task] = []
    for at in tx.positions(driver.run.id):
        if at.group in without:
            continue
        cursor = at.first_offset
        for attempt in staged.get((at.group, *at.partition), ()):
            if attempt.from_offset < cursor or attempt.to_offset > at.end_offset:
                continue
            missing += _tasks(at, cursor, attempt.from_offset, width)
            chosen.append(attempt)
            cursor = attempt.to_offset
        missing += _tasks(at, cursor, at.end_offset, width)
    return Coverage(tuple(chosen), tuple(missing))


def _tasks(at: StagedPosition, start: int, end: int, width: int) -> Iterable[Task]:
    if start < end:
        for part in Range(at.partition, at.topic_id, start, end).cut(width):
            yield Task(at.group, part)


def consolidate(driver: Driver, sources: Sequence[Source]) -> None:
    """Put what was staged into one table per target, and the rebuild's position to E0: one transaction.

    Raises ReloadRefused where an attempt's table has not the rows that it reported, or a range is missing.
    """
    with driver.step("staging") as tx:
        staging = Staging(driver.run.staging_schema)
        handled = {source.group for source in sources if source.has_handler}
        done = coverage(tx, driver, without=handled)
        if done.missing:
            raise ReloadRefused([f"{done.missing[0].range} was not staged: stage it, then go on"])
        check_letters(tx, staging, done)
        groups = [source.group for source in sources]
        replaces = driver.run.strategy in REPLACING
        for target in targets(tx.connection, sources):
            if target.handled_as:
                make_copy(tx.connection, staging, target, Numbers.CONTINUED if replaces else Numbers.OWN)
            else:
                numbers = Numbers.CONTINUED if replaces else Numbers.IGNORED
                make_like(tx.connection, staging.table(target), target.path, numbers, prefix=staging.sequences(target))
            if staging.is_generation:
                leaves.make(tx, staging, target)
            _fill(tx.connection, staging, target, done.chosen, groups)
        ends = {(at.group, at.partition): at.end_offset for at in tx.positions(driver.run.id)
                if at.group not in handled}  # fmt: skip
        tx.advance(driver.run.id, ends)
        driver.turn(tx, "staged")


def check_letters(tx: Tx, staging: Staging, done: Coverage) -> None:
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


def _fill(
    connection: Connection, staging: Staging, target: Target, chosen: Sequence[Row[object]], groups: Sequence[str]
) -> None:
    order = {(r.consumer_group, r.topic, r.partition): None for r in chosen}
    places = {place: n for n, place in enumerate(order)}
    branches: list[Composable] = []
    columns: tuple[str, ...] | None = None
    for attempt in chosen:
        for feed in target.feeds:
            if groups[feed.source] != attempt.consumer_group or not feed.sink.takes(attempt.topic):
                continue
            raw, gone = staging.raw(attempt.table_name, feed.number), staging.gone(attempt.table_name, feed.number)
            known = remembered_columns(connection, raw)
            place = places[attempt.consumer_group, attempt.topic, attempt.partition]
            counted = _count(connection, raw)
            if isinstance(feed.sink, Upsert):
                counted += _count(connection, gone)
            if counted != attempt.row_counts[feed.number]:
                raise ReloadRefused(
                    [f"{'.'.join(raw)} has {counted} rows, and its task reported {attempt.row_counts[feed.number]}"]
                )
            if known is None:
                known = columns or (target.all_columns if isinstance(feed.sink, Upsert) else None)
                if known is None or not counted:
                    continue
            elif columns is not None and set(known) != set(columns):
                raise ReloadRefused(
                    [f"{target.name}: {', '.join(columns)} are written by one sink, {', '.join(known)} by another"]
                )
            else:
                columns = columns or known
            branches += _branches(feed.sink, raw, gone, columns or known, place)
    if branches:
        written = columns or target.all_columns
        run(
            connection,
            "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE {query}",
            table=name(*staging.table(target)),
            columns=names(written),
            query=_folded(target, written, branches) if target.folds else ident.SQL(" UNION ALL ").join(branches),
        )
    remember_columns(connection, staging.table(target), columns)


def _count(connection: Connection, path: tuple[str, str]) -> int:
    return int(rows(connection, "SELECT count(*) FROM {table}", table=name(*path))[0][0])


def _branches(
    sink: object, raw: tuple[str, str], gone: tuple[str, str], columns: Sequence[str], place: int
) -> list[Composable]:
    if not isinstance(sink, Upsert):
        return [ident.SQL("SELECT {} FROM {}").format(names(columns), name(*raw))]
    where = ident.SQL("{}, {}, {}").format(name(OFFSET), ident.Literal(place), name(LINE))
    kept = ident.SQL("SELECT {}, {}, false FROM {}").format(names(columns), where, name(*raw))
    has = set(sink.target.gone)
    nulls = ident.SQL(", ").join(name(one) if one in has else ident.SQL("NULL") for one in columns)
    return [kept, ident.SQL("SELECT {}, {}, true FROM {}").format(nulls, where, name(*gone))]


def _folded(target: Target, columns: Sequence[str], branches: Sequence[Composable]) -> Composable:
    """The newest row of each key, or none where that is a tombstone.

    Newest is what the sink says: by its column, else by offset. Offsets of different partitions say nothing about each
    other; a key that lives in several has no newest row without such a column, in the live table neither.
    """
    key = names(target.key)
    return ident.SQL(
        "SELECT {columns} FROM (SELECT DISTINCT ON ({key}) * FROM ({all}) "
        "AS given ({columns}, {at}, {place}, {line}, {gone}) ORDER BY {key}, {order}) AS newest WHERE NOT {gone}"
    ).format(
        at=name(OFFSET),
        place=name(PLACE),
        line=name(LINE),
        gone=name(DELETED),
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
    """Give the rebuilt tables their key, and where they will stand in for the live ones all their indexes.

    Raises ReloadRefused where two rebuilt rows have one key, and where a topic was recreated meanwhile.
    """
    check_topics(kafka, driver)
    with driver.step("staged") as tx:
        staging = Staging(driver.run.staging_schema)
        for target in targets(tx.connection, sources):
            if target.handled_as:
                pass  # its copy was made with all of them
            elif driver.run.strategy in REPLACING:
                _all_indexes(tx.connection, staging, target)
            elif target.key:
                run(
                    tx.connection,
                    "CREATE UNIQUE INDEX IF NOT EXISTS {name} ON {table} ({key})",
                    name=name(f"{target.staged}_key"),
                    table=name(*staging.table(target)),
                    key=names(target.key),
                )
            run(tx.connection, "ANALYZE {table}", table=name(*staging.table(target)))
        driver.turn(tx, "indexed")


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
    """The topics still are those that the run was opened on. Raises ReloadRefused, KafkaAway."""
    with driver.step("staging", "staged", "indexed", "following", "diffed") as tx:
        wanted = {at.partition: at.topic_id for at in tx.positions(driver.run.id)}
    now = topic_ids(kafka, sorted({at.topic for at in wanted}))
    strange = sorted({at.topic for at, topic_id in wanted.items() if now[at.topic] != topic_id})
    if strange:
        raise ReloadRefused([f"topic {topic!r} was deleted or created anew: end this run" for topic in strange])
