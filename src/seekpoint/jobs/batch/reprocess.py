"""Reprocess: applies a given range again that the group has applied. It claims nothing and moves no position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint.admin.groups import known_group, within
from seekpoint.errors import BatchRefused, ClusterChanged, TopicRecreated
from seekpoint.jobs.batch.open import Brokers, insert_batch
from seekpoint.jobs.tables.sql_templates import names
from seekpoint.jobs.tables.sql_templates import run as execute
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.ledger.positions import positions_of
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import BATCH, GROUPS, RELOAD_RUN
from seekpoint.ledger.tables import dead_letter, reprocess_dead_letter
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import Partition
from seekpoint.runs.run import StagedPosition, Step, Tx
from seekpoint.sinks.upsert.upsert import Upsert
from seekpoint.worker.replay.preconditions import check_group

SHOWN = 100  # most dead letters listed in a result
_ACCEPT = "accept it with accept_repeats=True (--accept-repeats)"


@dataclass(frozen=True, slots=True)
class RunDeadLetter:
    """A record that a reprocess could not apply; the ledger stores the complete record."""

    offset: int
    key: bytes | None
    state: str
    cause: str
    error: str
    sqlstate: str | None


def require_no_repeats(pipeline: Pipeline, topic: str, *, accepted: bool) -> None:
    """Raise BatchRefused if applying records again would change a table.

    ``accepted`` permits duplicate rows and older values, but no sums that count records twice.
    """
    reasons = []
    for sink in pipeline.sinks:
        table = f"{', '.join(sink.tables)} ({type(sink).__name__})"
        if not sink.takes(topic):
            continue
        if sink.aggregates:
            reasons.append(f"sums in {table} would count these records twice: rebuild the table by a reload")
        elif accepted:
            continue
        elif not isinstance(sink, Upsert):
            reasons.append(f"{table} would get the rows of these records twice: {_ACCEPT}")
        elif sink.keeps_first:
            continue
        elif not sink.guarded:
            reasons.append(
                f"{table} cannot tell which row is newer, and may get older values: give it offset_column=, or "
                f"{_ACCEPT}"
            )
        elif sink.deletes:
            reasons.append(
                f"{table} deletes rows: one that was deleted since would be inserted again, because nothing is left to "
                f"compare with; {_ACCEPT}"
            )
    if reasons:
        raise BatchRefused(reasons)


def open_range(
    tx: Tx, source: PipelineSource, brokers: Brokers, range_: tuple[Partition, int, int], run: UUID, *, restart: bool,
    actor: str, reason: str,
) -> UUID:  # fmt: skip
    """Return the open run over exactly this range, or open ``run``; ``restart`` replaces the open run.

    Concurrent callers get the same run.

    Raises BatchRefused unless log start <= from < to <= the group's position, and without ``restart`` for a range that
    a run has applied; ConfigError for an unknown partition; HandlerOutdated if the group is at a newer handler version,
    GroupPaused if it is paused; ClusterChanged if the brokers belong to another cluster; TopicRecreated if the topic
    was created again.
    """
    partition, start, end = range_
    scope = GroupConnection(tx.connection, tx.schema, source.group)
    group = known_group(scope)
    if group.cluster_id not in {None, brokers.cluster_id}:
        raise ClusterChanged(
            f"the brokers belong to cluster {brokers.cluster_id}, the positions of group {source.group!r} to "
            f"{group.cluster_id}: name the brokers of that cluster"
        )
    check_group(scope.execute(GROUPS["share"]).one(), source.pipeline, while_paused=False)
    stored = positions_of(scope, [partition], locked=True)
    position = within(source.group, stored.values(), {partition.topic: [partition.number]})[partition]
    if (topic_id := brokers.ids[partition.topic]) != position.topic_id:
        raise TopicRecreated.of(
            source.group, partition, position.next_offset, stored=position.topic_id, topic_id=topic_id
        )
    _require_range(start, end, position.next_offset, brokers.log_start(partition), partition)
    values = {"topic": partition.topic, "partition": partition.number, "topic_id": position.topic_id}
    last = scope.execute(BATCH["last_reprocess"], from_offset=start, to_offset=end, **values).one_or_none()
    if last is not None and not restart:
        if last.state != "cut_over":
            return UUID(str(last.id))
        raise BatchRefused([f"run {last.id} has applied this range already: restart=True (--restart) applies it again"])
    if last is not None:  # no effect on a run that has ended
        tx.execute(RELOAD_RUN["close"], run=last.id, state="aborted", error=f"replaced by run {run}")
    insert_batch(tx, run, source, [group.version], "reprocess", actor=actor, reason=reason)
    resets = _resets(tx.execute(RELOAD_RUN["offsets"], groups=[source.group]).all(), partition)
    tx.add_positions(
        run, [StagedPosition(source.group, partition, position.topic_id, start, end, start, position.epoch, resets)]
    )
    return run


def _require_range(start: int, end: int, position: int, log_start: int, partition: Partition) -> None:
    reasons = [f"FROM {start} must be before TO {end}"] if start >= end else []
    if start < log_start:
        reasons.append(
            f"the log of {partition} begins at {log_start}, after {start}: retention has removed the records before it"
        )
    if end > position:
        reasons.append(
            f"{partition} is at offset {position}, before {end}: only workers apply records for the first time; end "
            f"at {position} or before"
        )
    if reasons:
        raise BatchRefused(reasons)


def _resets(offsets: Sequence[Row[Any]], partition: Partition) -> int:
    return int(next(row.resets for row in offsets if (row.topic, row.partition) == partition))


def lock_range(tx: Step, scope: GroupConnection, pipeline: Pipeline) -> None:
    """Lock the partition: a worker's batch, a reset or a replay commits before the rows are written, or waits.

    Raises BatchRefused if the position was reset since the run was opened; HandlerOutdated if the group is at a newer
    handler version; GroupPaused if it is paused.
    """
    check_group(scope.execute(GROUPS["share"]).one(), pipeline, while_paused=False)
    [position] = tx.positions()
    partition = position.partition
    row = positions_of(scope, [partition], locked=True).get(partition)
    if row is None or row.topic_id != position.topic_id or _resets(tx.offsets(), partition) != position.resets:
        raise BatchRefused(
            [f"{partition} was reset, or its topic was recreated, since the range was staged: run another one"]
        )


def keep_run_dead_letters(tx: Step) -> None:
    """Store the failed records, complete, as dead letters of the run: the group's position is already past them."""
    columns = [column.name for column in reprocess_dead_letter.c if column.name not in {"run", "dead_lettered_at"}]
    execute(
        tx.connection,
        "INSERT INTO {kept} (run, {columns}) SELECT {run}::uuid, {columns} FROM {staged}",
        kept=(tx.schema, reprocess_dead_letter.name),
        columns=names(columns),
        run=str(tx.run.id),
        staged=(tx.run.staging_schema, dead_letter.name),
    )


def dead_letters_of(tx: Step) -> tuple[RunDeadLetter, ...]:
    """The first ``SHOWN`` dead letters of a reprocess."""
    rows = tx.execute(BATCH["reprocess_dead_letters"], run=tx.run.id, most=SHOWN)
    return tuple(RunDeadLetter(*tuple(row)) for row in rows)
