"""Catch-up passes: each applies records to the rebuilt tables and advances the run's positions, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self
from uuid import UUID

from sqlalchemy import Row, delete

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.reload.other_topics import of_other_topics, of_sources, other_topics
from seekpoint.jobs.reload.rewind import Rewind, ending_at
from seekpoint.jobs.staging.distance import key_of, positions_up_to
from seekpoint.jobs.staging.savepoints import RecordWriter
from seekpoint.jobs.staging.stage import edits_within, keep_dead_letters, leave_out, left_out_of, with_edits
from seekpoint.jobs.tables.sql_templates import rows
from seekpoint.jobs.tables.staging_schema import Staging, remember_columns, remembered_columns
from seekpoint.jobs.tables.targets import PipelineSource, Target, aimed, aimed_pipeline, targets
from seekpoint.kafka.ranges import IDLE, Piece, Range, RangeFollower
from seekpoint.ledger.dead_letters import dead_letter_of
from seekpoint.ledger.sql import DEAD_LETTERS
from seekpoint.ledger.tables import LARGEST_BIGINT, dead_letter
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Partition, RawRecord, State
from seekpoint.runs.run import Driver, StagedPosition, Step
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.copy import open_copy
from seekpoint.sinks.dedupe import Deleted, Truncated
from seekpoint.sinks.table_writer import TableWriter
from seekpoint.worker.decode import DecodedRecord


class CatchUp:
    """A driver's open consumers, and the sinks that write the rebuilt tables. Close it, or use ``with``."""

    def __init__(
        self,
        driver: Driver,
        sources: Sequence[PipelineSource],
        kafka: Mapping[str, Any],
        rewind: Rewind | None = None,
    ) -> None:
        self._kafka, self.rewind = kafka, rewind
        self.sources = sources
        self._sources = {source.group: source for source in sources}
        self._followers: dict[str, RangeFollower] = {}
        with driver.step("indexed", "catching_up", "compared") as tx:
            self._staging = Staging(tx.run.staging_schema)
            self.targets = targets(tx.connection, sources)
            known = {
                target.path: remembered_columns(tx.connection, self._staging.table(target)) for target in self.targets
            }
        self._writers: dict[str, PipelineWriters] = {}
        self._table_writers: dict[str, list[tuple[Target, TableSink[Any, Any], TableWriter[Any]]]] = {}
        for n, source in enumerate(sources):
            feeds = {feed.number: (target, aimed(feed.sink, self._staging.table(target)))
                     for target in self.targets for feed in target.feeds if feed.source == n}  # fmt: skip
            sinks = [feeds[number] for number in range(len(feeds))]
            writers = PipelineWriters(aimed_pipeline(source.pipeline, [sink for _, sink in sinks]))
            self._writers[source.group], self._table_writers[source.group] = writers, []
            for (target, sink), writer in zip(sinks, writers.sinks, strict=True):
                assert isinstance(writer, TableWriter)
                if writer.written is None and (columns := known[target.path]) is not None:
                    writer.know(tuple(column for column in columns if column not in sink.provenance.values()))
                self._table_writers[source.group].append((target, sink, writer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumers."""
        for follower in self._followers.values():
            follower.close()
        self._followers.clear()

    def offsets(self, tx: Step) -> Sequence[Any]:
        """The rows of the groups' positions that the rebuilt tables must reach.

        Raises ReloadRefused for a topic that the group reads but the pipeline does not, and whose rows may be in a
        rebuilt table. Workers may have found such a topic since the run was opened.
        """
        offsets = tx.offsets()
        reasons = [
            reason
            for source in self.sources
            for reason in of_other_topics(
                tx, source, other_topics(source, offsets), self.targets, source.pipeline.version
            )
        ]
        if reasons:
            raise ReloadRefused([*reasons, "abort this run and open another one"])
        offsets = of_sources(offsets, self.sources)
        return offsets if self.rewind is None else ending_at(offsets, self.rewind.ends)

    def apply(self, tx: Step, offsets: Sequence[Row[Any]], *, idle: float = IDLE, at_most: int = LARGEST_BIGINT) -> int:
        """Apply the records up to these rows of ``partition_offset`` to the rebuilt tables; returns how many.

        All writes are in this transaction. ``idle`` is how many seconds the brokers may send nothing; ``at_most`` is
        the maximum number of offsets per partition.

        Raises ReloadRefused if an operator has reset a position since the run was opened, or a topic was recreated: the
        run can then no longer be used. After any error the consumers continue at the run's stored positions.
        """
        positions = positions_up_to(tx, offsets, self.sources)
        ends = {key_of(row): row.next_offset for row in offsets}
        ends = {key: min(end, positions[key].next_offset + at_most) for key, end in ends.items()}
        read = 0
        try:
            for group in self._sources:
                group_positions = {
                    partition: position for (owner, partition), position in positions.items() if owner == group
                }
                group_ends = {partition: ends[group, partition] for partition in group_positions}
                read += self._group(tx, group, group_positions, group_ends, idle)
        except BaseException:
            self.close()  # consumers may be ahead of the run's positions, which were rolled back
            raise
        tx.advance(ends)
        for target in self.targets:
            remember_columns(tx.connection, self._staging.table(target), self._written(target))
        return read

    def _written(self, target: Target) -> tuple[str, ...] | None:
        """The columns that the pipelines write; None if they are not known."""
        writers = (writer for tables in self._table_writers.values() for table, _, writer in tables if table == target)
        # A writer without columns= knows its columns only after its first row, which it may not have had.
        return next((writer.written for writer in writers if writer.written is not None), None)

    def _group(
        self,
        tx: Step,
        group: str,
        positions: Mapping[Partition, StagedPosition],
        ends: Mapping[Partition, int],
        idle: float,
    ) -> int:
        writers = self._writers[group]
        ids = {partition.topic: position.topic_id for partition, position in positions.items()}
        writer = RecordWriter(tx.connection, writers, self._seen(tx, group), held=self._held(tx, group))
        writer.write(Piece([record]) for record in self._replayed(tx, group, ids))
        behind = {partition: end for partition, end in ends.items() if end > positions[partition].next_offset}
        if behind:
            spans = {
                partition: (positions[partition].topic_id, positions[partition].next_offset, end)
                for partition, end in behind.items()
            }
            leave_out(tx, self._staging, group, spans)
            edits = edits_within(tx, group, spans)
            # Also for lost ranges: a run for a reset starts before them, and its driver may have crashed before the
            # reset.
            left_out = {
                partition: left_out_of(tx.connection, self._staging, group, Range(partition, *span))
                for partition, span in spans.items()
            }
            pieces = with_edits(self._follower(group, positions, ids).read_to(behind, idle=idle), edits)
            writer.write(pieces, lambda record: left_out[Partition(record.topic, record.partition)](record))
        keep_dead_letters(tx, self._staging, writers.pipeline, writer.result.dead_letters, ids)
        return writer.result.applied + len(writer.result.dead_letters)

    def _held(self, tx: Step, group: str) -> dict[tuple[str, bytes], int]:
        """The keys of the run's dead letters, with the first offset of each; empty without ``keep_key_order``."""
        if not self._writers[group].pipeline.keep_key_order:
            return {}
        keys = rows(
            tx.connection,
            "SELECT topic, key, min(record_offset) FROM {letters} WHERE consumer_group = {group} AND key IS NOT NULL "
            "GROUP BY topic, key",
            letters=(self._staging.schema, dead_letter.name),
            group=group,
        )
        return {(topic, bytes(key)): offset for topic, key, offset in keys}

    def _follower(
        self, group: str, positions: Mapping[Partition, StagedPosition], ids: Mapping[str, UUID]
    ) -> RangeFollower:
        """A group's open consumer; a new one after a change of its partitions, or an error."""
        next_offsets = {partition: position.next_offset for partition, position in positions.items()}
        follower = self._followers.get(group)
        if follower is not None and follower.positions == next_offsets:
            return follower
        if follower is not None and follower.positions.keys() == next_offsets.keys():
            follower.reassign(next_offsets)  # the records that it has read were rolled back
            return follower
        if follower is not None:
            follower.close()
        self._followers[group] = follower = RangeFollower(self._kafka, ids, next_offsets)
        return follower

    def _replayed(self, tx: Step, group: str, ids: Mapping[str, UUID]) -> list[RawRecord]:
        """Records omitted as dead letters, but replayed afterwards, so that the live tables have their rows.

        They are applied before the pass's records, because they were replayed at earlier positions; with
        ``keep_key_order`` no other record of the key was applied in between.
        """
        out, live = self._staging.left_out, dead_letter.c
        is_same = [
            live[column] == out.c[column] for column in ("consumer_group", "topic", "partition", "record_offset")
        ]
        is_replayed = [
            live.consumer_group == group,
            live.state == State.REPLAYED.value,
            live.topic_id.in_(ids.values()),  # a deleted topic with this name may have dead letters at the same offsets
        ]
        dead_letter_ids = tx.execute(delete(out).where(*is_same, *is_replayed).returning(live.id)).scalars().all()
        records = [
            dead_letter_of(tx.execute(DEAD_LETTERS["get"], group=group, id=id_).one()).record for id_ in dead_letter_ids
        ]
        if (rewind := self.rewind) is not None:  # workers will read later records again
            records = [
                record
                for record in records
                if rewind.is_before_end(group, Partition(record.topic, record.partition), record.offset)
            ]
        return sorted(records, key=lambda record: (record.topic, record.partition, record.offset))

    def _seen(self, tx: Step, group: str) -> Callable[[Sequence[DecodedRecord]], None] | None:
        """A callback that stores the keys written by a pass; None before the comparison."""
        if tx.run.state != "compared":
            return None

        def seen(part: Sequence[DecodedRecord]) -> None:
            for number, (target, sink, writer) in enumerate(self._table_writers[group]):
                touched = (self._staging.schema, f"touched_{target.staged}")
                key = partial(tuple, target.key)
                allowed, event_rules = sink.conversions, sink.event_rules
                with open_copy(tx.connection, touched, key, allowed=allowed, event_rules=event_rules) as copy:
                    copy.write(_keys(part, number, target, writer.written))

        return seen


def _keys(
    part: Sequence[DecodedRecord], number: int, target: Target, written: Sequence[str] | None
) -> Sequence[tuple[Any, ...]]:
    width = len(target.key)
    places = None if written is None else [written.index(column) for column in target.key]
    keys = []
    for record in part:
        for row in record.rows[number]:
            if type(row) is Truncated:
                why = (
                    f"{record.raw.topic}/{record.raw.partition} offset {record.raw.offset} truncates {target.name}, "
                    "after its rows were compared: open another run"
                )
                raise ReloadRefused([why])
            if type(row) is Deleted:
                keys.append(tuple(row[:width]))
            else:
                assert places is not None
                keys.append(tuple(row[place] for place in places))
    return keys
