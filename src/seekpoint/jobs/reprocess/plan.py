"""The plan of a run over a bounded range: what is read, where it begins or resumes, and what follows for the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import Connection, Row

from seekpoint.errors import ReprocessRefused
from seekpoint.jobs.tables.sql_templates import rows
from seekpoint.kafka.ranges import Range
from seekpoint.ledger import Position
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import REPROCESS, RESETS
from seekpoint.pipeline.pipeline import Pipeline, shown_handler
from seekpoint.pipeline.sink import Sink
from seekpoint.records import Partition, State
from seekpoint.sinks.base import ORIGINS, TableSink
from seekpoint.sinks.upsert.upsert import Upsert

_GIVEN_UP = {State.DISCARDED, State.SKIPPED}
COUNTING = "5s"  # how long the plan may count rows


@dataclass(frozen=True, slots=True)
class ReprocessPlan:
    """A range ``[from_offset, to_offset)`` of a partition, for :meth:`Reprocess.apply`; ``consequences`` in words.

    ``position`` is the group's and ``log_start`` the log's, as they were read. ``run`` is the id of the run: of an open
    one (``is_resumed``), which continues at ``next_offset``, or of the new one. ``last_run`` is the newest over this
    range, as it is on record.
    """

    group: str
    topic: str
    partition: int
    topic_id: UUID
    from_offset: int
    to_offset: int
    next_offset: int
    position: int
    log_start: int
    run: UUID
    is_resumed: bool
    last_run: UUID | None
    consequences: tuple[str, ...]
    accept_old_values: bool = False

    @property
    def at(self) -> Partition:
        """The partition that is applied again."""
        return Partition(self.topic, self.partition)

    @property
    def range(self) -> Range:
        """The whole range, of the topic of this id."""
        return Range(self.at, self.topic_id, self.from_offset, self.to_offset)


def require_range(start: int, end: int, position: int, log_start: int, at: Partition) -> None:
    """Raise ReprocessRefused unless ``log_start <= start < end <= position``."""
    why = [f"FROM {start} must be before TO {end}"] if start >= end else []
    if start < log_start:
        why.append(f"the log of {at} begins at {log_start}, after {start}: retention has removed what is before it")
    if end > position:
        why.append(
            f"{at} is at offset {position}, before {end}: what a worker has not applied yet is applied by workers "
            f"alone; end at {position} or before"
        )
    if why:
        raise ReprocessRefused(why)


def require_old_values(pipeline: Pipeline, topic: str) -> None:
    """Raise ReprocessRefused where a record that is applied again may put an older value in place of a newer one."""
    why = []
    if pipeline.handle is not None:
        why.append(
            f"{shown_handler(pipeline.handle)} runs again for records whose followers are applied: its tables may get "
            "older values. Accept it with --accept-old-values, or run the handler as a second group beside it "
            "(`seekpoint groups replace`)"
        )
    why += [
        f"{', '.join(sink.tables)} ({type(sink).__name__}) does not know which row is newer: give it offset_column=, "
        "or accept older values with --accept-old-values"
        for sink in pipeline.sinks
        if sink.takes(topic) and getattr(sink, "guarded", None) is False
    ]
    why += [
        f"{', '.join(sink.tables)} (Upsert) deletes rows: one that was deleted since would be made again: nothing is "
        "left to compare with. Accept it with --accept-old-values"
        for sink in pipeline.sinks
        if sink.takes(topic) and getattr(sink, "guarded", None) and _deletes(sink)
    ]
    if why:
        raise ReprocessRefused(why)


def last_run(tx: GroupConnection, range_: Range) -> Row[Any] | None:
    """The newest run over exactly this range; None where there is none."""
    return tx.execute(
        REPROCESS["last_run"],
        topic=range_.partition.topic,
        partition=range_.partition.number,
        topic_id=range_.topic_id,
        from_offset=range_.start,
        to_offset=range_.end,
    ).one_or_none()


def require_not_done(run: Row[Any] | None, *, restart: bool) -> None:
    """Raise ReprocessRefused where the run has applied its range, unless that is to be done once more."""
    if run is not None and run.state == "done" and not restart:
        raise ReprocessRefused(
            [f"run {run.id} has applied this range already: restart=True (--restart) applies it once more"]
        )


def require_version(run: Row[Any], pipeline: Pipeline) -> None:
    """Raise ReprocessRefused where the run was opened by another handler version."""
    if run.version != pipeline.version:
        why = (
            f"run {run.id} over this range was opened by handler version {run.version}, this pipeline is version "
            f"{pipeline.version}: resume it with that version, or begin again with --restart"
        )
        raise ReprocessRefused([why])


def consequences(tx: GroupConnection, pipeline: Pipeline, position: Position, range_: Range) -> tuple[str, ...]:
    """What applying the range again does to the tables, one sentence each."""
    many, at = range_.records_at_most, position.partition
    found = [f"up to {many:,} records of {at} are applied again; the group stays at offset {position.next_offset}"]
    found += [_of_sink(tx.connection, sink, range_) for sink in pipeline.sinks if sink.takes(at.topic)]
    if pipeline.handle is not None:
        found.append(f"{shown_handler(pipeline.handle)} runs again for these records")
    return (*found, *_of_group(tx, range_))


def _of_sink(connection: Connection, sink: Sink, range_: Range) -> str:
    guarded = getattr(sink, "guarded", None)
    who = f"{', '.join(sink.tables)} ({type(sink).__name__})"
    if guarded is False:
        return f"{who} may get older values"
    if guarded is not None:
        comes_back = "; a row that was deleted since is made again" if _deletes(sink) else ""
        return f"{who} keeps the newest row of each key{comes_back}"
    many = _rows_of(connection, sink, range_)
    said = f"the rows of up to {range_.records_at_most:,} records" if many is None else f"{many:,} rows"
    return f"{who}: {said} come twice"


def _deletes(sink: Sink) -> bool:
    return isinstance(sink, Upsert) and sink.deletes


def _rows_of(connection: Connection, sink: Sink, range_: Range) -> int | None:
    """How many rows of the range the table has; None where it does not say, or takes too long to count."""
    if not isinstance(sink, TableSink) or not sink.provenance.keys() >= {*ORIGINS}:
        return None
    columns = {name: (sink.provenance[name],) for name in ORIGINS}
    probe = connection.begin_nested()
    try:
        rows(connection, "SELECT set_config('statement_timeout', {longest}, true)", longest=COUNTING)
        [(many,)] = rows(
            connection,
            "SELECT count(*) FROM {table} WHERE {topic} = {its_topic} AND {partition} = {its_partition} "
            "AND {offset} >= {start} AND {offset} < {end}",
            table=sink.path,
            its_topic=range_.partition.topic,
            its_partition=range_.partition.number,
            start=range_.start,
            end=range_.end,
            **columns,
        )
    except psycopg.Error:
        many = None
    probe.rollback()
    return None if many is None else int(many)


def _of_group(tx: GroupConnection, range_: Range) -> list[str]:
    states = list(left_out(tx, range_).values())
    given_up = sum(state in _GIVEN_UP for state in states)
    found = []
    if dead := len(states) - given_up:
        found.append(f"open dead letters in the range: {dead:,}; their records are left out, a replay applies them")
    if given_up:
        found.append(
            f"records in the range that were discarded or skipped: {given_up:,}; they are left out, only a reset reads "
            "them again"
        )
    return found + [
        f"{run.strategy} run {run.id} ({run.state}) is open: what it has staged does not get these rows"
        for run in tx.execute(RESETS["open_runs_of_group"])
    ]


def left_out(tx: GroupConnection, range_: Range) -> dict[int, State]:
    """The offsets in the range whose records are not applied, by the state of the group's own dead letters."""
    at = range_.partition
    found = tx.execute(
        REPROCESS["left_out"],
        topic=at.topic,
        partition=at.number,
        topic_id=range_.topic_id,
        from_offset=range_.start,
        to_offset=range_.end,
    )
    return {row.record_offset: State(row.state) for row in found}
