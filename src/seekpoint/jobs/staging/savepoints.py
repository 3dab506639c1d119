"""Writes records to tables in parts, each under a savepoint: records that the database refuses are dead-lettered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.staging.attempt_tables import AttemptSink
from seekpoint.kafka.ranges import Piece
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import OnPoison
from seekpoint.pipeline.sink import Row
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.sqlstates import Fault
from seekpoint.records import BLOCKED_BY_KEY, AnyRecord, Cause, Failure, NewDeadLetter, RawRecord, State
from seekpoint.worker.bisect import PartFailure, Strides, bisect
from seekpoint.worker.decode import DecodedRecord, decode_record
from seekpoint.worker.failed import Failed
from seekpoint.worker.write import write

PART = 5_000  # records per savepoint: enough to make its cost negligible, few enough to bisect quickly

LeftOut = Callable[[RawRecord], bool]


def nothing_left_out(_: RawRecord) -> bool:
    """Omit no record."""
    return False


@dataclass(slots=True)
class WriteResult:
    """The number of ``applied`` records, each sink's number of ``rows``, and the ``dead_letters`` by offset."""

    rows: list[int]
    applied: int = 0
    dead_letters: list[NewDeadLetter] = field(default_factory=list)


class RecordWriter:
    """Writes one pipeline's records to the tables to which its sinks are redirected.

    ``seen`` is called after each savepoint with the written records and their rows. ``held`` maps a topic and key to
    the offset of the key's first dead letter, after which the key's records are blocked; records must be in log order.
    ``blocks_later``: such records are blocked after all ranges are staged.
    """

    def __init__(
        self,
        tx: HandlerConnection,
        writers: PipelineWriters,
        seen: Callable[[Sequence[DecodedRecord]], None] | None = None,
        *,
        held: dict[tuple[str, bytes], int] | None = None,
        blocks_later: bool = False,
    ) -> None:
        self._tx, self._writers, self._seen, self._held = tx, writers, seen, held
        self._pipeline = writers.pipeline
        self._is_ordered = held is not None or blocks_later
        self._waiting: list[DecodedRecord] = []
        self._strides = Strides()
        self.result = WriteResult([0] * len(writers.sinks))

    def stream(self, pieces: Iterable[Piece], left_out: LeftOut) -> WriteResult:
        """Stream all records through the only sink; raises RowRefused if the database refuses a row."""
        [sink] = self._writers.sinks
        with sink.open(self._tx) as writer:
            for piece in pieces:
                _, rows = self._decode(piece, left_out)
                if rows is None:
                    records, self._waiting = self._waiting, []
                    rows = [row for record in records for row in record.rows[0]]
                    self.result.applied += len(records)
                else:
                    self.result.applied += len(rows)
                writer.write(rows)
                self.result.rows[0] += len(rows)
        return self.result

    def write(self, pieces: Iterable[Piece], left_out: LeftOut = nothing_left_out) -> WriteResult:
        """Write all records in parts; those that cannot be written are dead-lettered."""
        for piece in pieces:
            self._take(piece, left_out)
        return self._flush()

    def _take(self, piece: Piece, left_out: LeftOut) -> None:
        """Decode these records, and write them once enough are waiting."""
        records, rows = self._decode(piece, left_out)
        if rows is not None:
            self._waiting += [DecodedRecord(raw, raw, ((row,),)) for raw, row in zip(records, rows, strict=True)]
        if len(self._waiting) >= PART:
            self._flush()

    def _decode(self, piece: Piece, left_out: LeftOut) -> tuple[Sequence[RawRecord], Sequence[Row] | None]:
        """The records to apply and a row for each; None for the rows if the records were added to the waiting ones."""
        records = piece.records if left_out is nothing_left_out else [raw for raw in piece.records if not left_out(raw)]
        if self._held:
            records = [raw for raw in records if not self._holds(raw)]
        rows = None if piece.unreadable else self._writers.rows_at_once(records)
        if rows is None:
            unread = {(raw.topic, raw.partition, raw.offset): error for raw, error in piece.unreadable}
            for raw in records:
                try:
                    record = decode_record(self._writers, raw, unread.get((raw.topic, raw.partition, raw.offset)))
                except Failed as failed:
                    self._add_dead_letter(raw, failed)
                else:
                    self._waiting.append(self._keyed(record))
        return records, rows

    def _keyed(self, record: DecodedRecord) -> DecodedRecord:
        """The record with a digest of its key in the rows of sinks that need it."""
        rows_of_sinks = [
            tuple(sink.keyed(rows, record.raw))
            if isinstance(sink, AttemptSink) and sink.takes(record.raw.topic)
            else rows
            for sink, rows in zip(self._pipeline.sinks, record.rows, strict=True)
        ]
        return record._replace(rows=rows_of_sinks)

    def _flush(self) -> WriteResult:
        """Write the waiting records; those that cannot be written are dead-lettered."""
        waiting, self._waiting = self._waiting, []
        failed: set[int] = set()

        def admitted(part: range, _again: bool) -> Sequence[int]:
            failed.update(n for n in part if n not in failed and self._held and self._holds(waiting[n].raw))
            return [n for n in part if n not in failed]

        for failure in bisect(len(waiting), partial(self._try, waiting), self._strides, admitted):
            failed.update(failure.indexes)
            for n in failure.indexes:
                self._add_dead_letter(waiting[n].raw, failure.error)
        self.result.dead_letters.sort(key=lambda dead_letter: _place(dead_letter.record))
        return self.result

    def _try(self, waiting: Sequence[DecodedRecord], indexes: Sequence[int]) -> PartFailure[Failed] | None:
        """Write the records at these indexes under one savepoint; returns the failure that rolled it back."""
        part = [waiting[n] for n in indexes]
        try:
            with self._tx.begin_nested():
                write(self._tx, self._writers, part, ())  # no spans: only handlers use them
        except Failed as failed:
            if failed.fault is not Fault.DATA:
                raise failed.error from failed  # not caused by a record
            named = {_place(raw) for raw in failed.named}
            return PartFailure(failed, tuple(n for n in indexes if _place(waiting[n].raw) in named))
        self.result.applied += len(part)
        for number in range(len(self.result.rows)):
            self.result.rows[number] += sum(len(record.rows[number]) for record in part)
        if self._seen is not None:
            self._seen(part)
        return None

    def _add_dead_letter(self, raw: RawRecord, failed: Failed) -> None:
        dead_letter = dead_letter_of(self._pipeline, raw, failed, is_ordered=self._is_ordered)
        self.result.dead_letters.append(dead_letter)
        if self._held is not None and self._pipeline.keep_key_order and raw.key is not None:
            self._held.setdefault((raw.topic, raw.key), raw.offset)

    def _holds(self, raw: RawRecord) -> bool:
        """Whether the record is blocked behind its key; if so, adds it to the dead letters."""
        assert self._held is not None
        if raw.key is None or self._held.get((raw.topic, raw.key), raw.offset) >= raw.offset:
            return False
        self.result.dead_letters.append(NewDeadLetter(raw, BLOCKED_BY_KEY, State.BLOCKED))
        return True


def dead_letter_of(pipeline: Pipeline, raw: RawRecord, failed: Failed, *, is_ordered: bool = False) -> NewDeadLetter:
    """A dead letter of the failed record, without retries. Raises ReloadRefused if the policy is to stop.

    ``is_ordered``: later records of its key are not applied. Otherwise refuses a record with a key if order matters.
    """
    failure = Failure.of(failed.error, failed.cause)
    if failed.cause is Cause.ORDER:
        why = "a worker stops there with choices"
    elif pipeline.on_poison is OnPoison.STOP:
        why = (
            "and on_poison is 'stop'. Fix the pipeline, or dead-letter such records (on_poison='dead_letter'), and "
            "start another run"
        )
    elif pipeline.keep_key_order and raw.key is not None and not is_ordered:
        why = (
            "and later records of its key would have to be blocked behind it, which a batch does not do. "
            f"on_poison={pipeline.on_poison.value!r} is set already; give offset_column= or order_by= to the Upsert, "
            "so that rows need no order of records, or let a worker apply these records; and start another run"
        )
    else:
        return NewDeadLetter(
            raw, failure, State.SKIPPED if pipeline.on_poison is OnPoison.SKIP else State.DEAD_LETTERED
        )
    reason = f"{raw.topic}/{raw.partition} offset {raw.offset}: {failure.cause.value}: {failure.summary}; {why}"
    raise ReloadRefused([reason]) from failed.error


def _place(record: AnyRecord) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset
