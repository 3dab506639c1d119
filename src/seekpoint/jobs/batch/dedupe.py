"""From what the tasks staged to what is written: one attempt per offset, and of an Upsert the newest row of each key.

All of this happens beside the live tables, before any of their locks is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from psycopg import sql as ident

from seekpoint.errors import BatchRefused, TooManyDeadLetters
from seekpoint.jobs.run.run import Driver, Tx
from seekpoint.jobs.staging.consolidate import Coverage, check_dead_letters, coverage, newest_first
from seekpoint.jobs.tables.compose import Composable, name, names, rows, run
from seekpoint.jobs.tables.staging_schema import (
    LINE,
    OFFSET,
    PLACE,
    Staging,
    remember_columns,
    remembered_columns,
    unlogged,
)
from seekpoint.jobs.tables.targets import Path
from seekpoint.ledger.tables import dead_letter
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.sinks.catalog import DELETED
from seekpoint.sinks.catalog import LINE as PLACE_IN_STAGE
from seekpoint.sinks.dedupe import Target
from seekpoint.sinks.upsert.upsert import Upsert


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one sink in one attempt's tables; ``place`` numbers the partitions in their order."""

    attempt_rows: Path
    attempt_deletes: Path
    place: int
    columns: tuple[str, ...] | None


def folded_path(staging: Staging, number: int) -> Path:
    """Where the newest rows of an Upsert are."""
    return staging.schema, f"folded_{number}"


def parts_of(tx: Tx, staging: Staging, number: int, done: Coverage) -> list[Part]:
    """The chosen attempts' tables of one sink, in the order of the log."""
    found: list[Part] = []
    places = groupby(done.chosen, lambda row: (row.topic, row.partition))
    for place, (_, attempts) in enumerate(places):
        for attempt in attempts:
            raw = staging.attempt_rows(attempt.table_name, number)
            gone = staging.attempt_deletes(attempt.table_name, number)
            found.append(Part(raw, gone, place, remembered_columns(tx.connection, raw)))
    return found


def columns_of(sink: Any, parts: Sequence[Part]) -> tuple[str, ...] | None:
    """The columns that the tasks wrote; None where no row was. Raises BatchRefused where they are not of one mind."""
    found = {frozenset(part.columns): part.columns for part in parts if part.columns is not None}
    if len(found) > 1:
        told = " and ".join(", ".join(columns) for columns in found.values())
        raise BatchRefused([f"{sink!r}: tasks wrote different columns, {told}: name them with columns=[...]"])
    return next(iter(found.values()), sink.written)


def target_of(sink: Upsert, columns: tuple[str, ...] | None) -> Target:
    """What the sink writes, where only the tasks have learned its columns."""
    return replace(sink.target, columns=columns)


def fold(driver: Driver, pipeline: Pipeline) -> None:
    """Check that every range is staged once, and fold what Upserts are to write: one transaction, nothing live touched.

    Leaves the run as it is where a range is missing: late attempts of a driver before, in other pieces, may count in
    the place of ours. Raises BatchRefused where rows are missing, TooManyDeadLetters.
    """
    with driver.step("staging") as tx:
        staging = Staging(tx.run.staging_schema)
        done = coverage(tx)
        if done.missing:
            return
        check_dead_letters(tx, staging, done)
        check_limits(tx, staging, pipeline, done)
        for number, sink in enumerate(pipeline.sinks):
            parts = parts_of(tx, staging, number, done)
            _check_counts(tx, sink, number, parts, done)
            if isinstance(sink, Upsert):
                _fold(tx, folded_path(staging, number), target_of(sink, columns_of(sink, parts)), parts)
        tx.advance({(at.group, at.partition): at.end_offset for at in tx.positions()})
        driver.transition(tx, "staged")


def _check_counts(tx: Tx, sink: Any, number: int, parts: Sequence[Part], done: Coverage) -> None:
    for part, attempt in zip(parts, done.chosen, strict=True):
        tables = [part.attempt_rows, part.attempt_deletes] if isinstance(sink, Upsert) else [part.attempt_rows]
        counted = sum(rows(tx.connection, "SELECT count(*) FROM {t}", t=name(*table))[0][0] for table in tables)
        told = attempt.row_counts[number]
        if counted != told:
            raise BatchRefused([f"{'.'.join(part.attempt_rows)} has {counted} rows, and its task reported {told}"])


def _fold(tx: Tx, path: Path, target: Target, parts: Sequence[Part]) -> None:
    """Into one table: of each key the newest row, or the tombstone that is newer than all of them.

    Newest is what a worker's one transaction would say: by ``order_by``, else what comes last in its partition.
    """
    columns = target.columns or target.deletes
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} AS SELECT DISTINCT ON ({key}) {columns}, 0::bigint AS {line}, {deleted} "
        "FROM ({all}) AS given ORDER BY {key}, {newest}",
        unlogged=unlogged(path[0]),
        table=name(*path),
        key=names(target.key),
        columns=names(columns),
        line=name(PLACE_IN_STAGE),
        deleted=name(DELETED),
        all=ident.SQL(" UNION ALL ").join(_branches(target, columns, parts)),
        newest=newest_first(target.order_by),
    )
    run(tx.connection, "ANALYZE {table}", table=name(*path))
    remember_columns(tx.connection, path, target.columns)


def _branches(target: Target, columns: Sequence[str], parts: Sequence[Part]) -> list[Composable]:
    gone = set(target.deletes)
    branches: list[Composable] = []
    for part in parts:
        where = ident.SQL("{} AS {}, {}, {}").format(ident.Literal(part.place), name(PLACE), name(OFFSET), name(LINE))
        kept = "SELECT {}, {}, false AS {} FROM {}"
        branches.append(ident.SQL(kept).format(names(columns), where, name(DELETED), name(*part.attempt_rows)))
        nulls = ident.SQL(", ").join(
            name(one) if one in gone else ident.SQL("NULL AS {}").format(name(one)) for one in columns
        )
        branches.append(ident.SQL("SELECT {}, {}, true FROM {}").format(nulls, where, name(*part.attempt_deletes)))
    return branches


def check_limits(tx: Tx, staging: Staging, pipeline: Pipeline, done: Coverage) -> None:
    """As a worker would stop: instead of draining a topic into the dead letters. Raises TooManyDeadLetters."""
    limits = pipeline.dead_letter_limits
    failed = sum(row.dead_letters for row in done.chosen)
    passed = failed + sum(row.records for row in done.chosen)
    if not failed:
        return
    if limits.ratio is not None and passed >= limits.window and failed > limits.ratio * passed:
        raise _too_many(f"{failed} of {passed} records failed, the limit is {limits.ratio:.0%}", "ratio")
    found = rows(
        tx.connection,
        "SELECT topic, partition, min(record_offset), count(*) FROM (SELECT topic, partition, record_offset, "
        "record_offset - row_number() OVER (PARTITION BY topic, partition ORDER BY record_offset) AS island "
        "FROM {letters}) AS islands GROUP BY topic, partition, island ORDER BY count(*) DESC LIMIT 1",
        letters=name(staging.schema, dead_letter.name),
    )
    for topic, partition, offset, count in found:
        if limits.consecutive is not None and count > limits.consecutive:
            what = f"{count} records in a row failed, from {topic}/{partition} offset {offset} on"
            raise _too_many(f"{what}; the limit is {limits.consecutive}", "consecutive")


def _too_many(what: str, limit: str) -> TooManyDeadLetters:
    return TooManyDeadLetters(
        f"{what}: nothing of the batch is written. Mend the codec, row= or the table and run it again; or raise "
        f"DeadLetterLimits({limit}=...)"
    )
