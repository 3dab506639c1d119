"""Reprocess: a batch over a stated range that the group has applied. It claims nothing, and no position moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint.admin.groups import known_group, within
from seekpoint.errors import BatchRefused, ClusterChanged, TopicRecreated
from seekpoint.jobs.batch.open import Brokers, insert_batch
from seekpoint.jobs.run import StagedPosition, Step, Tx
from seekpoint.jobs.tables.sql_templates import names
from seekpoint.jobs.tables.sql_templates import run as execute
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.ledger.positions import positions_of
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import BATCH, GROUPS, RELOAD_RUN
from seekpoint.ledger.tables import dead_letter, reprocess_dead_letter
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import Partition
from seekpoint.sinks.upsert.upsert import Upsert
from seekpoint.worker.replay.preconditions import check_group

SHOWN = 100  # dead letters that a result lists
_ACCEPT = "accept it with accept_repeats=True (--accept-repeats)"


@dataclass(frozen=True, slots=True)
class RunDeadLetter:
    """A record that a reprocess could not apply; the ledger has it whole."""

    offset: int
    key: bytes | None
    state: str
    cause: str
    error: str
    sqlstate: str | None


def require_no_repeats(pipeline: Pipeline, topic: str) -> None:
    """Raise BatchRefused where records that are applied again leave a table other than it is."""
    reasons = []
    for sink in pipeline.sinks:
        table = f"{', '.join(sink.tables)} ({type(sink).__name__})"
        if not sink.takes(topic):
            continue
        if not isinstance(sink, Upsert):
            reasons.append(f"{table} gets the rows of these records twice: {_ACCEPT}")
        elif not sink.guarded:
            reasons.append(
                f"{table} does not know which row is newer, and may get older values: give it offset_column=, or "
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
    """The open run over exactly this range, or ``run``, which is opened. Two callers get the same one.

    Raises BatchRefused unless log start <= from < to <= the group's position, and for a range that a run has applied,
    unless ``restart``; ConfigError for an unknown partition; HandlerOutdated, GroupPaused, ClusterChanged,
    TopicRecreated.
    """
    at, start, end = range_
    scope = GroupConnection(tx.connection, tx.schema, source.group)
    group = known_group(scope)
    if group.cluster_id not in {None, brokers.cluster_id}:
        raise ClusterChanged(
            f"the brokers belong to cluster {brokers.cluster_id}, the positions of group {source.group!r} to "
            f"{group.cluster_id}: name the brokers of that cluster"
        )
    check_group(scope.execute(GROUPS["share"]).one(), source.pipeline, while_paused=False)
    stored = positions_of(scope, [at], locked=True)
    position = within(source.group, stored.values(), {at.topic: [at.number]})[at]
    if (now := brokers.ids[at.topic]) != position.topic_id:
        raise TopicRecreated.of(source.group, at, position.next_offset, stored=position.topic_id, topic_id=now)
    _require_range(start, end, position.next_offset, brokers.log_start(at), at)
    values = {"topic": at.topic, "partition": at.number, "topic_id": position.topic_id}
    last = scope.execute(BATCH["last_reprocess"], from_offset=start, to_offset=end, **values).one_or_none()
    if last is not None and not restart:
        if last.state != "cut_over":
            return UUID(str(last.id))
        raise BatchRefused([f"run {last.id} has applied this range already: restart=True (--restart) applies it again"])
    if last is not None:  # of one that is done, this changes nothing
        tx.execute(RELOAD_RUN["close"], run=last.id, state="aborted", error=f"run {run} began again")
    insert_batch(tx, run, source, [group.version], "reprocess", actor=actor, reason=reason)
    resets = _resets(tx.execute(RELOAD_RUN["offsets"], groups=[source.group]).all(), at)
    tx.add_positions(
        run, [StagedPosition(source.group, at, position.topic_id, start, end, start, position.epoch, resets)]
    )
    return run


def _require_range(start: int, end: int, position: int, log_start: int, at: Partition) -> None:
    reasons = [f"FROM {start} must be before TO {end}"] if start >= end else []
    if start < log_start:
        reasons.append(f"the log of {at} begins at {log_start}, after {start}: retention has removed what is before it")
    if end > position:
        reasons.append(
            f"{at} is at offset {position}, before {end}: what a worker has not applied yet is applied by workers "
            f"alone; end at {position} or before"
        )
    if reasons:
        raise BatchRefused(reasons)


def _resets(offsets: Sequence[Row[Any]], at: Partition) -> int:
    return int(next(row.resets for row in offsets if (row.topic, row.partition) == at))


def lock_range(tx: Step, scope: GroupConnection, pipeline: Pipeline) -> None:
    """Lock the partition: a worker's batch, a reset and a replay come before the rows are written, or after.

    Raises BatchRefused where the position was reset since the run was opened, HandlerOutdated, GroupPaused.
    """
    check_group(scope.execute(GROUPS["share"]).one(), pipeline, while_paused=False)
    [position] = tx.positions()
    at = position.partition
    row = positions_of(scope, [at], locked=True).get(at)
    if row is None or row.topic_id != position.topic_id or _resets(tx.offsets(), at) != position.resets:
        raise BatchRefused([f"{at} was reset, or is of another topic, since the range was staged: run another one"])


def keep_run_dead_letters(tx: Step) -> None:
    """Store what could not be applied, whole: it is the run's, because the group's position is past it."""
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
    """The first dead letters of a reprocess."""
    found = tx.execute(BATCH["reprocess_dead_letters"], run=tx.run.id, most=SHOWN)
    return tuple(RunDeadLetter(*tuple(row)) for row in found)
