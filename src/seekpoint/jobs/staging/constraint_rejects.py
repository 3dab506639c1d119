"""Dead-letters records whose rows the live table's constraints refuse because of other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import psycopg
from psycopg import sql as ident
from sqlalchemy import Engine, select

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.export import ArchivedReader
from seekpoint.jobs.staging.savepoints import dead_letter_of
from seekpoint.jobs.staging.stage import keep_dead_letters, left_out_of
from seekpoint.jobs.tables.constraints import ForeignKey, breaks, references, uniques
from seekpoint.jobs.tables.sql_templates import Composable, Statements, name, names, rows, run
from seekpoint.jobs.tables.staging_schema import LINE, OFFSET, PLACE, Staging, of_partition, unlogged
from seekpoint.jobs.tables.targets import Path, PipelineSource, Target
from seekpoint.kafka.ranges import Range
from seekpoint.records import BLOCKED_BY_KEY, Cause, NewDeadLetter, Partition, RawRecord, State
from seekpoint.runs.run import StagedPosition, Step, Tx
from seekpoint.worker.failed import Failed

BLOCKED_AT_ONCE = 1_000  # records inserted at a time
MOST = 1_000  # most rejects per run: more mean a mistake in the pipeline or the table

Place = tuple[str, Partition]  # group and partition
_Key = tuple[int, int]  # index into StagedRows.places, and offset


def refused_records(
    tx: Tx,
    staging: Staging,
    target: Target,
    targets: Sequence[Target],
    *,
    placed: Callable[[], Composable],
    make: Callable[[], None] | None,
) -> dict[_Key, psycopg.Error]:
    """The records whose rows the live table's constraints refuse, with the error.

    Of two rows with one key, the later is refused. ``placed`` returns a query of the chosen rows with partition, offset
    and line. ``make`` creates the rebuilt table's indexes; by default only the unique ones are created.
    """
    table = staging.table(target)
    broken = [key for key in references(tx.connection, staging, target, targets) if breaks(tx.connection, table, key)]
    unique = _unique(tx, target)
    repeats = not _made(tx, make or partial(make_unique_indexes, tx, staging, target))
    if not broken and not repeats:
        return {}
    placed_rows = (staging.schema, f"placed_{target.staged}")
    create = "CREATE {unlogged} TABLE {placed_rows} AS {placed}"
    run(tx.connection, create, unlogged=unlogged(staging.schema), placed_rows=placed_rows, placed=placed())
    bad: dict[_Key, psycopg.Error] = {}
    for key in broken:
        bad |= _dangling(tx, placed_rows, key)
    if repeats and target.sums is not None:
        why = f"{target.name}: sums of two keys are equal in a unique index: drop the index, or rebuild other sums"
        raise ReloadRefused([why])
    if repeats:
        bad |= _repeated(tx, target, placed_rows, unique)
    run(tx.connection, "DROP TABLE {placed_rows}", placed_rows=placed_rows)
    return bad


def _made(tx: Tx, make: Callable[[], None]) -> bool:
    """Create the indexes; returns False if rows violate them."""
    try:
        with tx.connection.begin_nested():
            make()
    except psycopg.errors.UniqueViolation:
        return False
    return True


def _unique(tx: Tx, target: Target) -> list[Composable]:
    """The definitions of the rebuilt table's unique indexes: one on the rows' key, and those of the live table."""
    keys = [ident.SQL("({})").format(names(target.key))] if target.key else []
    return [*keys, *uniques(tx.connection, target)]


def make_unique_indexes(tx: Tx, staging: Staging, target: Target) -> None:
    """Create the rebuilt table's index on its key, and the live table's unique indexes."""
    table = staging.table(target)
    for n, definition in enumerate(_unique(tx, target)):
        index = name(f"{target.staged}_{'key' if target.key and not n else f'u{n}'}")
        run(tx.connection, "CREATE UNIQUE INDEX {name} ON {table} {rest}", name=index, table=table, rest=definition)


def _dangling(tx: Tx, placed_rows: Path, key: ForeignKey) -> dict[_Key, psycopg.Error]:
    records = rows(
        tx.connection,
        "SELECT DISTINCT child.{place}, child.{offset} FROM {placed_rows} AS child WHERE {broken} LIMIT {most}",
        place=name(PLACE),
        offset=name(OFFSET),
        placed_rows=placed_rows,
        broken=key.is_broken("child"),
        most=MOST + 1,
    )
    return {(place, offset): psycopg.errors.ForeignKeyViolation(key.violation) for place, offset in records}


def _repeated(tx: Tx, target: Target, placed_rows: Path, unique: Sequence[Composable]) -> dict[_Key, psycopg.Error]:
    """The records whose key an earlier row has.

    Rows are inserted in log order into a table with these indexes, so that Postgres decides which keys are equal.
    """
    sieve = Statements(
        tx.connection,
        unlogged=unlogged(placed_rows[0]),
        sieve=(placed_rows[0], f"sieve_{target.staged}"),
        placed_rows=placed_rows,
        place=names((PLACE, OFFSET, LINE)),
        ordered=names((OFFSET, PLACE, LINE)),
        most=MOST + 1,
    )
    sieve.run("CREATE {unlogged} TABLE {sieve} AS TABLE {placed_rows} WITH NO DATA")
    for definition in unique:
        sieve.run("CREATE UNIQUE INDEX ON {sieve} {rest}", rest=definition)
    sieve.run("INSERT INTO {sieve} SELECT * FROM {placed_rows} ORDER BY {ordered} ON CONFLICT DO NOTHING")
    records = sieve.rows("SELECT {place} FROM {placed_rows} EXCEPT SELECT {place} FROM {sieve} LIMIT {most}")
    sieve.run("DROP TABLE {sieve}")
    message = (
        f'duplicate key value violates a unique index of "{target.name}": an earlier record has a row with that key'
    )
    return {(place, offset): psycopg.errors.UniqueViolation(message) for place, offset, _ in records}


class Rejects:
    """Dead-letters records after their ranges were staged, as the pipeline's policy says.

    With ``keep_key_order``, records after a dead letter of their key are blocked, as by a worker.
    """

    def __init__(self, engine: Engine, sources: Sequence[PipelineSource], kafka: Mapping[str, object]) -> None:
        self._engine, self._kafka = engine, kafka
        self._pipelines = {source.group: source.pipeline for source in sources}
        self._dead_letters: set[tuple[Place, int]] = set()

    def put(self, tx: Step, staging: Staging, bad: Mapping[tuple[Place, int], psycopg.Error]) -> set[tuple[Place, int]]:
        """Store these records as the run's dead letters; returns them and the records that they block.

        Raises ReloadRefused for too many records, or if the policy is to stop.
        """
        self._dead_letters |= bad.keys()
        if len(self._dead_letters) > MOST:
            ((_, partition), offset), error = next(iter(bad.items()))
            why = (
                f"more than {MOST} records make rows that a constraint of the live table refuses, e.g. {partition} "
                f"offset {offset}: {error}; correct the pipeline or the table, and start another run"
            )
            raise ReloadRefused([why])
        positions = {(position.group, position.partition): position for position in tx.positions()}
        for place in sorted({place for place, _ in bad}, key=str):
            position, pipeline = positions[place], self._pipelines[place[0]]
            dead_letters = []
            for offset in sorted(offset for bad_place, offset in bad if bad_place == place):
                raw = self._read_one(tx, position, offset)
                failed = Failed(bad[place, offset], Cause.DATABASE, [raw])
                dead_letters.append(dead_letter_of(pipeline, raw, failed, is_ordered=True))
            keep_dead_letters(tx, staging, pipeline, dead_letters, {position.partition.topic: position.topic_id})
        return {*bad, *self.block(tx, staging)}

    def block(self, tx: Step, staging: Staging) -> set[tuple[Place, int]]:
        """Dead-letter the staged records that follow a dead letter of their key; returns them."""
        blocked: set[tuple[Place, int]] = set()
        for position in tx.positions():
            if (pipeline := self._pipelines[position.group]).keep_key_order:
                records = self._behind(tx, staging, position)
                while part := list(islice(records, BLOCKED_AT_ONCE)):
                    dead_letters = [NewDeadLetter(record, BLOCKED_BY_KEY, State.BLOCKED) for record in part]
                    keep_dead_letters(
                        tx, staging, pipeline, dead_letters, {position.partition.topic: position.topic_id}
                    )
                    blocked |= {((position.group, position.partition), record.offset) for record in part}
        return blocked

    def _behind(self, tx: Step, staging: Staging, position: StagedPosition) -> Iterator[RawRecord]:
        """The staged records of a partition that follow the run's first dead letter of their key."""
        columns = staging.dead_letters.c
        statement = select(columns.record_offset, columns.key).where(
            *of_partition(columns, position.group, position.partition)
        )
        dead = {row.record_offset: row.key for row in tx.connection.execute(statement)}
        first: dict[bytes, int] = {}
        for offset, key in sorted(dead.items()):
            if key is not None:
                first.setdefault(key, offset)
        start = min(first.values(), default=position.end_offset) + 1
        if start >= position.end_offset:
            return
        range_ = Range(position.partition, position.topic_id, start, position.end_offset)
        left_out = left_out_of(tx.connection, staging, position.group, range_)
        for record in self._read(tx, range_):
            is_behind = record.key is not None and first.get(record.key, record.offset) < record.offset
            if is_behind and record.offset not in dead and not left_out(record):
                yield record

    def _read(self, tx: Step, range_: Range) -> Iterator[RawRecord]:
        reader = ArchivedReader.of(self._kafka, tx.run.archive, self._engine)
        return (record for piece in reader.read(range_) for record in piece)

    def _read_one(self, tx: Step, position: StagedPosition, offset: int) -> RawRecord:
        for record in self._read(tx, Range(position.partition, position.topic_id, offset, offset + 1)):
            return record
        where = f"{position.partition} offset {offset}"
        why = f"{where}: the live table refuses its row, and the log no longer has the record"
        raise ReloadRefused([why])
