"""Catch-up passes: each applies records to the rebuilt tables and advances the run's positions, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self
from uuid import UUID

from sqlalchemy import Row, delete

from seekpoint.jobs.run import Driver, StagedPosition, Step
from seekpoint.jobs.staging.distance import Key, add_positions, key_of, require_no_resets
from seekpoint.jobs.staging.savepoints import RecordWriter
from seekpoint.jobs.staging.stage import keep_dead_letters, leave_out
from seekpoint.jobs.tables.sql_templates import rows
from seekpoint.jobs.tables.staging_schema import Staging, remember_columns, remembered_columns
from seekpoint.jobs.tables.targets import PipelineSource, Target, aimed, aimed_pipeline, targets
from seekpoint.kafka.ranges import IDLE, Piece, RangeFollower
from seekpoint.ledger.dead_letters import dead_letter_of
from seekpoint.ledger.sql import DEAD_LETTERS
from seekpoint.ledger.tables import LARGEST_BIGINT, dead_letter
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Partition, RawRecord, State
from seekpoint.sinks.copy import open_copy
from seekpoint.sinks.dedupe import Deleted
from seekpoint.sinks.table_writer import TableWriter
from seekpoint.worker.decode import DecodedRecord


class CatchUp:
    """A driver's open consumers, and the sinks that write the rebuilt tables. Close it, or use ``with``."""

    def __init__(self, driver: Driver, sources: Sequence[PipelineSource], kafka: Mapping[str, Any]) -> None:
        self._kafka = kafka
        self._sources = {source.group: source for source in sources}
        self._followers: dict[str, RangeFollower] = {}
        with driver.step("indexed", "catching_up", "compared") as tx:
            self._staging = Staging(tx.run.staging_schema)
            self.targets = targets(tx.connection, sources)
            known = {t.path: remembered_columns(tx.connection, self._staging.table(t)) for t in self.targets}
        self._writers: dict[str, PipelineWriters] = {}
        self._of_tables: dict[str, list[tuple[Target, TableWriter[Any]]]] = {}
        for n, source in enumerate(sources):
            feeds = {feed.number: (target, aimed(feed.sink, self._staging.table(target)))
                     for target in self.targets for feed in target.feeds if feed.source == n}  # fmt: skip
            sinks = [feeds[number] for number in range(len(feeds))]
            writers = PipelineWriters(aimed_pipeline(source.pipeline, [sink for _, sink in sinks]))
            self._writers[source.group], self._of_tables[source.group] = writers, []
            for (target, sink), writer in zip(sinks, writers.sinks, strict=True):
                assert isinstance(writer, TableWriter)
                if writer.written is None and (columns := known[target.path]) is not None:
                    writer.know(tuple(one for one in columns if one not in sink.provenance.values()))
                self._of_tables[source.group].append((target, writer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumers."""
        for follower in self._followers.values():
            follower.close()
        self._followers.clear()

    def apply(self, tx: Step, offsets: Sequence[Row[Any]], *, idle: float = IDLE, at_most: int = LARGEST_BIGINT) -> int:
        """Apply the records up to these rows of ``partition_offset`` to the rebuilt tables; returns how many.

        All of it is in this transaction. ``idle`` is how many seconds the brokers may send nothing; ``at_most`` is how
        many offsets of each partition are passed.

        Raises ReloadRefused where an operator has reset a position since the run was opened, or a topic was recreated:
        then the run cannot be used any more. After any error the consumers continue at the run's stored positions.
        """
        positions = self._positions(tx, offsets)
        ends = {key_of(row): row.next_offset for row in offsets}
        ends = {key: min(end, positions[key].next_offset + at_most) for key, end in ends.items()}
        read = 0
        try:
            for group in self._sources:
                mine = {at: p for (of, at), p in positions.items() if of == group}
                read += self._group(tx, group, mine, {at: ends[group, at] for at in mine}, idle)
        except BaseException:
            self.close()  # they may have read ahead of the run's positions, which are rolled back
            raise
        tx.advance(ends)
        for target in self.targets:
            remember_columns(tx.connection, self._staging.table(target), self._written(target))
        return read

    def _written(self, target: Target) -> tuple[str, ...] | None:
        """The columns that the pipelines write; None where that is not known."""
        writers = (w for of_group in self._of_tables.values() for t, w in of_group if t == target)
        return next((writer.written for writer in writers), None)

    def _positions(self, tx: Step, offsets: Sequence[Row[Any]]) -> dict[Key, StagedPosition]:
        """The run's positions; raises ReloadRefused where the rebuilt tables cannot catch up to these offsets."""
        positions = {(at.group, at.partition): at for at in tx.positions()}
        # Partitions that the groups have got since the run was opened.
        if new := [row for row in offsets if key_of(row) not in positions]:
            add_positions(tx, new)
            positions = {(at.group, at.partition): at for at in tx.positions()}
        require_no_resets(positions, offsets, {name: one.pipeline.topics for name, one in self._sources.items()})
        return positions

    def _group(
        self, tx: Step, group: str, mine: Mapping[Partition, StagedPosition], ends: Mapping[Partition, int], idle: float
    ) -> int:
        writers = self._writers[group]
        ids = {at.topic: p.topic_id for at, p in mine.items()}
        writer = RecordWriter(tx.connection, writers, self._seen(tx, group), held=self._held(tx, group))
        writer.write(Piece([record]) for record in self._replayed(tx, group, ids))
        behind = {at: end for at, end in ends.items() if end > mine[at].next_offset}
        if behind:
            spans = {at: (mine[at].topic_id, mine[at].next_offset, end) for at, end in behind.items()}
            dead = leave_out(tx, self._staging, group, spans)
            follower = self._follower(group, mine, ids)
            writer.write(follower.read_to(behind, idle=idle), lambda r: (r.topic, r.partition, r.offset) in dead)
        keep_dead_letters(tx, self._staging, writers.pipeline, writer.result.dead_letters, ids)
        return writer.result.applied + len(writer.result.dead_letters)

    def _held(self, tx: Step, group: str) -> dict[tuple[str, bytes], int]:
        """The keys of the run's own dead letters with their first offsets, if the pipeline keeps the order of keys."""
        if not self._writers[group].pipeline.keep_key_order:
            return {}
        found = rows(
            tx.connection,
            "SELECT topic, key, min(record_offset) FROM {letters} WHERE consumer_group = {group} AND key IS NOT NULL "
            "GROUP BY topic, key",
            letters=(self._staging.schema, dead_letter.name),
            group=group,
        )
        return {(topic, bytes(key)): offset for topic, key, offset in found}

    def _follower(self, group: str, mine: Mapping[Partition, StagedPosition], ids: Mapping[str, UUID]) -> RangeFollower:
        """The open consumer of a group; a new one where its partitions have changed, or after an error."""
        wanted = {at: p.next_offset for at, p in mine.items()}
        follower = self._followers.get(group)
        if follower is not None and follower.positions == wanted:
            return follower
        if follower is not None and follower.positions.keys() == wanted.keys():
            follower.reassign(wanted)  # what it has read was rolled back
            return follower
        if follower is not None:
            follower.close()
        self._followers[group] = follower = RangeFollower(self._kafka, ids, wanted)
        return follower

    def _replayed(self, tx: Step, group: str, ids: Mapping[str, UUID]) -> list[RawRecord]:
        """Records that were left out as dead letters, and have been replayed since: they have rows now.

        They come before the pass's own records: a replay is applied at the position of that moment, and where the order
        of keys is kept, no record of its key was applied in between.
        """
        out, live = self._staging.left_out, dead_letter.c
        is_same = [live[each] == out.c[each] for each in ("consumer_group", "topic", "partition", "record_offset")]
        is_replayed = [
            live.consumer_group == group,
            live.state == State.REPLAYED.value,
            live.topic_id.in_(ids.values()),  # not those of an earlier topic of the name, at the same offsets
        ]
        found = tx.execute(delete(out).where(*is_same, *is_replayed).returning(live.id)).scalars().all()
        records = [dead_letter_of(tx.execute(DEAD_LETTERS["get"], group=group, id=id_).one()).record for id_ in found]
        return sorted(records, key=lambda record: (record.topic, record.partition, record.offset))

    def _seen(self, tx: Step, group: str) -> Callable[[Sequence[DecodedRecord]], None] | None:
        """After the comparison: store which keys a pass has written since."""
        if tx.run.state != "compared":
            return None

        def seen(part: Sequence[DecodedRecord]) -> None:
            for number, (target, writer) in enumerate(self._of_tables[group]):
                touched = (self._staging.schema, f"touched_{target.staged}")
                with open_copy(tx.connection, touched, partial(tuple, target.key)) as copy:
                    copy.write(_keys(part, number, target, writer.written))

        return seen


def _keys(
    part: Sequence[DecodedRecord], number: int, target: Target, written: Sequence[str] | None
) -> Sequence[tuple[Any, ...]]:
    width = len(target.key)
    places = None if written is None else [written.index(one) for one in target.key]
    found = []
    for made in part:
        for row in made.rows[number]:
            if type(row) is Deleted:
                found.append(tuple(row[:width]))
            else:
                assert places is not None
                found.append(tuple(row[place] for place in places))
    return found
