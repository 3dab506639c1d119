"""Rows that the live table's constraints refuse because of other rows: their records become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import psycopg
from psycopg import sql as ident
from sqlalchemy import Engine, select

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.export import ArchivedReader
from seekpoint.jobs.run import StagedPosition, Step, Tx
from seekpoint.jobs.staging.savepoints import dead_letter_of
from seekpoint.jobs.staging.stage import keep_dead_letters, left_out_of
from seekpoint.jobs.tables.constraints import ForeignKey, breaks, references, uniques
from seekpoint.jobs.tables.sql_templates import Composable, Statements, name, names, rows, run
from seekpoint.jobs.tables.staging_schema import LINE, OFFSET, PLACE, Staging, of_partition, unlogged
from seekpoint.jobs.tables.targets import Path, PipelineSource, Target
from seekpoint.kafka.ranges import Range
from seekpoint.records import BLOCKED_BY_KEY, Cause, NewDeadLetter, Partition, RawRecord, State
from seekpoint.worker.failed import Failed

BLOCKED_AT_ONCE = 1_000  # records that are inserted at a time
MOST = 1_000  # records of one run that are dead-lettered in this way; more are a mistake in the pipeline or the table

Place = tuple[str, Partition]  # group and partition
_Key = tuple[int, int]  # the number of the place, and the offset


def refused_records(
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
    try:
        with tx.connection.begin_nested():
            make()
    except psycopg.errors.UniqueViolation:
        return False
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
    """Dead-letters records after their ranges were staged, as the pipeline's policy says.

    Where the order of keys is kept, records after a dead letter of their key are blocked, as by a worker.
    """

    def __init__(self, engine: Engine, sources: Sequence[PipelineSource], kafka: Mapping[str, object]) -> None:
        self._engine, self._kafka = engine, kafka
        self._pipelines = {source.group: source.pipeline for source in sources}
        self._dead_letters: set[tuple[Place, int]] = set()

    def put(self, tx: Step, staging: Staging, bad: Mapping[tuple[Place, int], psycopg.Error]) -> set[tuple[Place, int]]:
        """Keep them as the run's dead letters; returns them, and what they block. Raises ReloadRefused for too many.

        Also where the policy stops.
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
            asides = []
            for offset in sorted(offset for its, offset in bad if its == place):
                raw = self._read_one(tx, position, offset)
                failed = Failed(bad[place, offset], Cause.DATABASE, [raw])
                asides.append(dead_letter_of(pipeline, raw, failed, is_ordered=True))
            keep_dead_letters(tx, staging, pipeline, asides, {position.partition.topic: position.topic_id})
        return {*bad, *self.block(tx, staging)}

    def block(self, tx: Step, staging: Staging) -> set[tuple[Place, int]]:
        """Dead-letter what was staged after a dead letter of its key; returns these records."""
        blocked: set[tuple[Place, int]] = set()
        for at in tx.positions():
            if (pipeline := self._pipelines[at.group]).keep_key_order:
                records = self._behind(tx, staging, at)
                while part := list(islice(records, BLOCKED_AT_ONCE)):
                    asides = [NewDeadLetter(record, BLOCKED_BY_KEY, State.BLOCKED) for record in part]
                    keep_dead_letters(tx, staging, pipeline, asides, {at.partition.topic: at.topic_id})
                    blocked |= {((at.group, at.partition), record.offset) for record in part}
        return blocked

    def _behind(self, tx: Step, staging: Staging, at: StagedPosition) -> Iterator[RawRecord]:
        """The staged records of a partition that follow the run's first dead letter of their key."""
        its = staging.dead_letters.c
        here = select(its.record_offset, its.key).where(*of_partition(its, at.group, at.partition))
        dead = {row.record_offset: row.key for row in tx.connection.execute(here)}
        first: dict[bytes, int] = {}
        for offset, key in sorted(dead.items()):
            if key is not None:
                first.setdefault(key, offset)
        start = min(first.values(), default=at.end_offset) + 1
        if start >= at.end_offset:
            return
        rest = Range(at.partition, at.topic_id, start, at.end_offset)
        left_out = left_out_of(tx.connection, staging, at.group, rest)
        for record in self._read(tx, rest):
            is_behind = record.key is not None and first.get(record.key, record.offset) < record.offset
            if is_behind and record.offset not in dead and not left_out(record):
                yield record

    def _read(self, tx: Step, range_: Range) -> Iterator[RawRecord]:
        reader = ArchivedReader.of(self._kafka, tx.run.archive, self._engine)
        return (record for piece in reader.read(range_) for record in piece)

    def _read_one(self, tx: Step, at: StagedPosition, offset: int) -> RawRecord:
        for record in self._read(tx, Range(at.partition, at.topic_id, offset, offset + 1)):
            return record
        why = f"{at.partition} offset {offset}: its row is refused by the live table, and the record is gone"
        raise ReloadRefused([why])
