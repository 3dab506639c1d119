"""Rows that the live table's constraints refuse for what other rows are: their records are the run's dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql as ident
from sqlalchemy import Engine

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.export import chained
from seekpoint.jobs.run.run import StagedPosition, Step, Tx
from seekpoint.jobs.staging.savepoints import dead_letter_of
from seekpoint.jobs.staging.stage import keep_dead_letters, left_out_of
from seekpoint.jobs.tables.compose import Composable, name, names, rows, run
from seekpoint.jobs.tables.constraints import ForeignKey, breaks, references, uniques
from seekpoint.jobs.tables.staging_schema import LINE, OFFSET, PLACE, Staging, unlogged
from seekpoint.jobs.tables.targets import Source, Target
from seekpoint.kafka.ranges import Range
from seekpoint.records import Cause, Partition, RawRecord
from seekpoint.worker.apply import Failed

MOST = 1_000  # records of one run that are set aside in this way; more are no exception, but a mistake

Place = tuple[str, Partition]  # group and partition
_Key = tuple[int, int]  # the number of the place, and the offset


def refused(
    tx: Tx,
    staging: Staging,
    target: Target,
    found: Sequence[Target],
    *,
    placed: Callable[[], Composable],
    make: Callable[[], None] | None,
) -> dict[_Key, psycopg.Error]:
    """The records whose rows the live table's constraints refuse, with the error; of two rows with one key the later.

    ``placed`` is a query of the rows that count, each with its place in the log. ``make`` makes the rebuilt table's
    indexes; by default the unique ones are made.
    """
    its = [one for one in references(tx.connection, staging, target, found)
           if breaks(tx.connection, staging.table(target), one)]  # fmt: skip
    others = uniques(tx.connection, target)
    repeats = not _made(tx, make or partial(_index, tx, staging, target, others))
    if not its and not repeats:
        return {}
    known = (staging.schema, f"placed_{target.staged}")
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {known} AS {placed}",
        unlogged=unlogged(staging.schema),
        known=name(*known),
        placed=placed(),
    )
    bad: dict[_Key, psycopg.Error] = {}
    for one in its:
        bad |= _dangling(tx, known, one)
    if repeats:
        bad |= _repeated(tx, staging, target, known, others)
    run(tx.connection, "DROP TABLE {known}", known=name(*known))
    return bad


def _made(tx: Tx, make: Callable[[], None]) -> bool:
    """Whether the indexes could be made."""
    savepoint = tx.connection.begin_nested()
    try:
        make()
    except psycopg.errors.UniqueViolation:
        savepoint.rollback()
        return False
    savepoint.commit()
    return True


def _index(tx: Tx, staging: Staging, target: Target, others: Sequence[Composable]) -> None:
    key = [ident.SQL("({})").format(names(target.key))] if target.key else []
    for n, rest in enumerate([*key, *others]):
        run(
            tx.connection,
            "CREATE UNIQUE INDEX {name} ON {table} {rest}",
            name=name(f"{target.staged}_{'key' if key and not n else f'u{n}'}"),
            table=name(*staging.table(target)),
            rest=rest,
        )


def _dangling(tx: Tx, known: tuple[str, str], one: ForeignKey) -> dict[_Key, psycopg.Error]:
    found = rows(
        tx.connection,
        "SELECT DISTINCT child.{place}, child.{at} FROM {known} AS child WHERE {broken} LIMIT {most}",
        place=name(PLACE),
        at=name(OFFSET),
        known=name(*known),
        broken=one.is_broken("child"),
        most=ident.Literal(MOST + 1),
    )
    return {(place, at): psycopg.errors.ForeignKeyViolation(one.violation) for place, at in found}


def _repeated(
    tx: Tx, staging: Staging, target: Target, known: tuple[str, str], others: Sequence[Composable]
) -> dict[_Key, psycopg.Error]:
    """What Postgres itself takes for the same: into a table with these indexes, in the order of the log."""
    parts = {
        "unlogged": unlogged(staging.schema),
        "sieve": name(staging.schema, f"sieve_{target.staged}"),
        "known": name(*known),
        "place": ident.SQL(", ").join(map(name, (PLACE, OFFSET, LINE))),
        "ordered": ident.SQL(", ").join(map(name, (OFFSET, PLACE, LINE))),
    }
    run(tx.connection, "CREATE {unlogged} TABLE {sieve} AS TABLE {known} WITH NO DATA", **parts)
    keyed = [ident.SQL("({})").format(names(target.key))] if target.key else []
    for rest in [*keyed, *others]:
        run(tx.connection, "CREATE UNIQUE INDEX ON {sieve} {rest}", rest=rest, **parts)
    run(tx.connection, "INSERT INTO {sieve} SELECT * FROM {known} ORDER BY {ordered} ON CONFLICT DO NOTHING", **parts)
    found = rows(
        tx.connection,
        "SELECT {place} FROM {known} EXCEPT SELECT {place} FROM {sieve} LIMIT {most}",
        most=ident.Literal(MOST + 1),
        **parts,
    )
    run(tx.connection, "DROP TABLE {sieve}", **parts)
    said = f'duplicate key value violates a unique index of "{target.name}": an earlier record has a row with that key'
    return {(place, at): psycopg.errors.UniqueViolation(said) for place, at, _ in found}


class Rejects:
    """Sets records aside after their ranges were staged, as the pipeline's policy says."""

    def __init__(self, engine: Engine, sources: Sequence[Source], kafka: Mapping[str, object]) -> None:
        self._engine, self._kafka = engine, kafka
        self._pipelines = {source.group: source.pipeline for source in sources}
        self._dead_letters: set[tuple[Place, int]] = set()

    def put(self, tx: Step, staging: Staging, bad: Mapping[tuple[Place, int], psycopg.Error]) -> None:
        """Keep them as the run's dead letters. Raises ReloadRefused where the policy stops, and for too many.

        Also where keys are held, and a later record of such a key was staged: a worker would have held that one.
        """
        self._dead_letters |= bad.keys()
        if len(self._dead_letters) > MOST:
            ((_, at), offset), error = next(iter(bad.items()))
            why = (
                f"more than {MOST} records make rows that a constraint of the live table refuses, e.g. {at} offset "
                f"{offset}: {error}; correct the pipeline or the table, and start another run"
            )
            raise ReloadRefused([why])
        positions = {(at.group, at.partition): at for at in tx.positions()}
        for place in sorted({place for place, _ in bad}, key=str):
            position, pipeline = positions[place], self._pipelines[place[0]]
            offsets = sorted(offset for its, offset in bad if its == place)
            raws = [self._read(tx, position.partition, position.topic_id, offset) for offset in offsets]
            newest = self._newest(tx, staging, position, raws) if pipeline.keep_key_order else {}
            for raw in raws:
                failed = Failed(bad[place, raw.offset], Cause.DATABASE, [raw])
                aside = dead_letter_of(pipeline, raw, failed, is_newest=newest.get(raw.key, -1) < raw.offset)
                keep_dead_letters(tx, staging, pipeline, [aside], {raw.topic: position.topic_id})

    def _newest(
        self, tx: Step, staging: Staging, at: StagedPosition, raws: Sequence[RawRecord]
    ) -> dict[bytes | None, int]:
        """The offset of the newest record of each of these records' keys that was staged and not set aside."""
        keys = {raw.key for raw in raws if raw.key is not None}
        rest = Range(at.partition, at.topic_id, raws[0].offset + 1, at.end_offset)
        if not keys or rest.start >= rest.end:
            return {}
        left_out = left_out_of(tx.connection, staging, at.group, rest)
        reader: Any = chained(self._kafka, tx.run.archive, self._engine)
        place = (at.group, at.partition)
        return {
            record.key: record.offset
            for piece in reader.read(rest)
            for record in piece.records
            if record.key in keys and not left_out(record) and (place, record.offset) not in self._dead_letters
        }

    def _read(self, tx: Step, at: Partition, topic_id: UUID, offset: int) -> RawRecord:
        reader: Any = chained(self._kafka, tx.run.archive, self._engine)
        found = [record for piece in reader.read(Range(at, topic_id, offset, offset + 1)) for record in piece.records]
        if not found:
            raise ReloadRefused([f"{at} offset {offset}: its row is refused by the live table, and the record is gone"])
        return found[0]  # type: ignore[no-any-return]
