"""Rows that the live table's constraints refuse because of other rows: their records become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import psycopg
from psycopg import sql as ident
from sqlalchemy import Engine

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.export import ArchivedReader
from seekpoint.jobs.run import StagedPosition, Step, Tx
from seekpoint.jobs.staging.savepoints import dead_letter_of
from seekpoint.jobs.staging.stage import keep_dead_letters, left_out_of
from seekpoint.jobs.tables.constraints import ForeignKey, breaks, references, uniques
from seekpoint.jobs.tables.sql_templates import Composable, Statements, name, names, rows, run
from seekpoint.jobs.tables.staging_schema import LINE, OFFSET, PLACE, Staging, unlogged
from seekpoint.jobs.tables.targets import Path, PipelineSource, Target
from seekpoint.kafka.ranges import Range
from seekpoint.records import Cause, Partition, RawRecord
from seekpoint.worker.apply import Failed

MOST = 1_000  # records of one run that are dead-lettered in this way; more are a mistake in the pipeline or the table

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
    table = staging.table(target)
    its = [one for one in references(tx.connection, staging, target, found) if breaks(tx.connection, table, one)]
    keys = [ident.SQL("({})").format(names(target.key))] if target.key else []
    unique = [*keys, *uniques(tx.connection, target)]
    repeats = not _made(tx, make or partial(_index, tx, table, target, unique))
    if not its and not repeats:
        return {}
    known = (staging.schema, f"placed_{target.staged}")
    create = "CREATE {unlogged} TABLE {known} AS {placed}"
    run(tx.connection, create, unlogged=unlogged(staging.schema), known=known, placed=placed())
    bad: dict[_Key, psycopg.Error] = {}
    for one in its:
        bad |= _dangling(tx, known, one)
    if repeats:
        bad |= _repeated(tx, target, known, unique)
    run(tx.connection, "DROP TABLE {known}", known=known)
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


def _index(tx: Tx, table: Path, target: Target, unique: Sequence[Composable]) -> None:
    for n, rest in enumerate(unique):
        index = name(f"{target.staged}_{'key' if target.key and not n else f'u{n}'}")
        run(tx.connection, "CREATE UNIQUE INDEX {name} ON {table} {rest}", name=index, table=table, rest=rest)


def _dangling(tx: Tx, known: Path, one: ForeignKey) -> dict[_Key, psycopg.Error]:
    found = rows(
        tx.connection,
        "SELECT DISTINCT child.{place}, child.{at} FROM {known} AS child WHERE {broken} LIMIT {most}",
        place=name(PLACE),
        at=name(OFFSET),
        known=known,
        broken=one.is_broken("child"),
        most=MOST + 1,
    )
    return {(place, at): psycopg.errors.ForeignKeyViolation(one.violation) for place, at in found}


def _repeated(tx: Tx, target: Target, known: Path, unique: Sequence[Composable]) -> dict[_Key, psycopg.Error]:
    """What Postgres itself takes for the same: into a table with these indexes, in the order of the log."""
    its = Statements(
        tx.connection,
        unlogged=unlogged(known[0]),
        sieve=(known[0], f"sieve_{target.staged}"),
        known=known,
        place=names((PLACE, OFFSET, LINE)),
        ordered=names((OFFSET, PLACE, LINE)),
        most=MOST + 1,
    )
    its.run("CREATE {unlogged} TABLE {sieve} AS TABLE {known} WITH NO DATA")
    for rest in unique:
        its.run("CREATE UNIQUE INDEX ON {sieve} {rest}", rest=rest)
    its.run("INSERT INTO {sieve} SELECT * FROM {known} ORDER BY {ordered} ON CONFLICT DO NOTHING")
    found = its.rows("SELECT {place} FROM {known} EXCEPT SELECT {place} FROM {sieve} LIMIT {most}")
    its.run("DROP TABLE {sieve}")
    said = f'duplicate key value violates a unique index of "{target.name}": an earlier record has a row with that key'
    return {(place, at): psycopg.errors.UniqueViolation(said) for place, at, _ in found}


class Rejects:
    """Dead-letters records after their ranges were staged, as the pipeline's policy says."""

    def __init__(self, engine: Engine, sources: Sequence[PipelineSource], kafka: Mapping[str, object]) -> None:
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
            raws = [self._read_one(tx, position, offset) for offset in offsets]
            newest = self._newest(tx, staging, position, raws) if pipeline.keep_key_order else {}
            for raw in raws:
                failed = Failed(bad[place, raw.offset], Cause.DATABASE, [raw])
                aside = dead_letter_of(pipeline, raw, failed, is_newest=newest.get(raw.key, -1) < raw.offset)
                keep_dead_letters(tx, staging, pipeline, [aside], {raw.topic: position.topic_id})

    def _newest(
        self, tx: Step, staging: Staging, at: StagedPosition, raws: Sequence[RawRecord]
    ) -> dict[bytes | None, int]:
        """The offset of the newest record of each of these records' keys that was staged and not dead-lettered."""
        keys = {raw.key for raw in raws if raw.key is not None}
        rest = Range(at.partition, at.topic_id, raws[0].offset + 1, at.end_offset)
        if not keys or rest.start >= rest.end:
            return {}
        left_out = left_out_of(tx.connection, staging, at.group, rest)
        place = (at.group, at.partition)
        return {
            record.key: record.offset
            for record in self._read(tx, rest)
            if record.key in keys and not left_out(record) and (place, record.offset) not in self._dead_letters
        }

    def _read(self, tx: Step, range_: Range) -> Iterator[RawRecord]:
        reader = ArchivedReader.of(self._kafka, tx.run.archive, self._engine)
        return (record for piece in reader.read(range_) for record in piece)

    def _read_one(self, tx: Step, at: StagedPosition, offset: int) -> RawRecord:
        for record in self._read(tx, Range(at.partition, at.topic_id, offset, offset + 1)):
            return record
        why = f"{at.partition} offset {offset}: its row is refused by the live table, and the record is gone"
        raise ReloadRefused([why])
