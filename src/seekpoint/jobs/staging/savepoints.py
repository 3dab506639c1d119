"""Writes records to tables, part by part under savepoints: records that the database refuses are dead-lettered."""

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
from seekpoint.records import BLOCKED_BY_KEY, AnyRecord, Failure, NewDeadLetter, RawRecord, State
from seekpoint.worker.bisect import PartFailure, Strides, bisect
from seekpoint.worker.decode import DecodedRecord, decode_record
from seekpoint.worker.failed import Failed
from seekpoint.worker.write import write

PART = 5_000  # records under one savepoint: enough that it costs nothing, few enough to be halved quickly

LeftOut = Callable[[RawRecord], bool]


def nothing_left_out(_: RawRecord) -> bool:
    """Every record is to be applied."""
    return False


@dataclass(slots=True)
class WriteResult:
    """What was written. ``applied`` records, ``rows`` of each sink; ``dead_letters`` are those that cannot be, in
    order.
    """

    rows: list[int]
    applied: int = 0
    dead_letters: list[NewDeadLetter] = field(default_factory=list)


class RecordWriter:
    """Writes one pipeline's records to the tables that its sinks are aimed at.

    ``seen`` is called with what each part under a savepoint has written: the records, each with its rows. ``held`` are
    the keys after whose dead letters (by offset) later records are held, where they come in the order of the log.
    ``blocks_later``: records after a dead letter of their key are blocked once all ranges are staged.
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
        """Write them all as they come, through the only sink; raises RowRefused where one is refused."""
        [sink] = self._writers.sinks
        with sink.open(self._tx) as writer:
            for piece in pieces:
                _, rows = self._decode(piece, left_out)
                if rows is None:
                    made, self._waiting = self._waiting, []
                    rows = [row for one in made for row in one.rows[0]]
                    self.result.applied += len(made)
                else:  # from the values alone
                    self.result.applied += len(rows)
                writer.write(rows)
                self.result.rows[0] += len(rows)
        return self.result

    def write(self, pieces: Iterable[Piece], left_out: LeftOut = nothing_left_out) -> WriteResult:
        """Write them all, part by part, but for the records that cannot be written."""
        for piece in pieces:
            self._take(piece, left_out)
        return self._flush()

    def _take(self, piece: Piece, left_out: LeftOut) -> None:
        """Decode these records and write them, perhaps later."""
        wanted, rows = self._decode(piece, left_out)
        if rows is not None:
            self._waiting += [DecodedRecord(r, r, ((row,),)) for r, row in zip(wanted, rows, strict=True)]
        if len(self._waiting) >= PART:
            self._flush()

    def _decode(self, piece: Piece, left_out: LeftOut) -> tuple[Sequence[RawRecord], Sequence[Row] | None]:
        """The records that count, with a row for each; None where they were decoded one by one, and wait."""
        wanted = piece.records if left_out is nothing_left_out else [r for r in piece.records if not left_out(r)]
        if self._held:
            wanted = [r for r in wanted if not self._holds(r)]
        rows = None if piece.unreadable else self._at_once(wanted)
        if rows is None:
            unread = {(r.topic, r.partition, r.offset): error for r, error in piece.unreadable}
            for raw in wanted:
                try:
                    made = decode_record(self._writers, raw, unread.get((raw.topic, raw.partition, raw.offset)))
                except Failed as failed:
                    self._add_dead_letter(raw, failed)
                else:
                    self._waiting.append(self._keyed(made))
        return wanted, rows

    def _keyed(self, made: DecodedRecord) -> DecodedRecord:
        """The record with its key in the rows of sinks that need it."""
        its = [
            tuple(sink.keyed(rows, made.raw)) if isinstance(sink, AttemptSink) and sink.takes(made.raw.topic) else rows
            for sink, rows in zip(self._pipeline.sinks, made.rows, strict=True)
        ]
        return made._replace(rows=its)

    def _at_once(self, raw: Sequence[RawRecord]) -> Sequence[Row] | None:
        """A row for each, from the values alone; None where each record must be looked at."""
        rows, sink = self._writers.rows_at_once(raw), self._writers.by_value
        return sink.placed(rows, raw) if rows is not None and isinstance(sink, AttemptSink) else rows

    def _flush(self) -> WriteResult:
        """Write what is waiting, but for the records that cannot be written."""
        waiting, self._waiting = self._waiting, []
        failed: set[int] = set()

        def admitted(part: range, _again: bool) -> Sequence[int]:
            failed.update(n for n in part if n not in failed and self._held and self._holds(waiting[n].raw))
            return [n for n in part if n not in failed]

        for found in bisect(len(waiting), partial(self._try, waiting), self._strides, admitted):
            failed.update(found.indexes)
            for n in found.indexes:
                self._add_dead_letter(waiting[n].raw, found.error)
        self.result.dead_letters.sort(key=lambda aside: _place(aside.record))
        return self.result

    def _try(self, waiting: Sequence[DecodedRecord], indexes: Sequence[int]) -> PartFailure[Failed] | None:
        """Write the records of these indexes, all or none."""
        part = [waiting[n] for n in indexes]
        try:
            with self._tx.begin_nested():
                write(self._tx, self._writers, part, ())  # spans are a handler's, and no run has one
        except Failed as failed:
            if failed.fault is not Fault.DATA:
                raise failed.error from failed  # no record's fault
            named = {_place(raw) for raw in failed.named}
            return PartFailure(failed, tuple(n for n in indexes if _place(waiting[n].raw) in named))
        self.result.applied += len(part)
        for number in range(len(self.result.rows)):
            self.result.rows[number] += sum(len(made.rows[number]) for made in part)
        if self._seen is not None:
            self._seen(part)
        return None

    def _add_dead_letter(self, raw: RawRecord, failed: Failed) -> None:
        aside = dead_letter_of(self._pipeline, raw, failed, is_ordered=self._is_ordered)
        self.result.dead_letters.append(aside)
        if self._held is not None and self._pipeline.keep_key_order and raw.key is not None:
            self._held.setdefault((raw.topic, raw.key), raw.offset)

    def _holds(self, raw: RawRecord) -> bool:
        """Whether the record is held by a dead letter of its key: then it is one, too."""
        assert self._held is not None
        if raw.key is None or self._held.get((raw.topic, raw.key), raw.offset) >= raw.offset:
            return False
        self.result.dead_letters.append(NewDeadLetter(raw, BLOCKED_BY_KEY, State.BLOCKED))
        return True


def dead_letter_of(pipeline: Pipeline, raw: RawRecord, failed: Failed, *, is_ordered: bool = False) -> NewDeadLetter:
    """As the pipeline's policy says, but for the retries: what a worker would stop in front of ends the run.

    ``is_ordered``: nothing of its key is applied after it. Raises ReloadRefused.
    """
    failure = Failure.of(failed.error, failed.cause)
    if pipeline.on_poison is OnPoison.STOP:
        why = (
            "and on_poison is 'stop'. Fix the pipeline, or keep such records aside (on_poison='dead_letter'), and "
            "start another run"
        )
    elif pipeline.keep_key_order and raw.key is not None and not is_ordered:
        why = (
            "and later records of its key would have to be blocked behind it, which a batch does not do. "
            f"on_poison={pipeline.on_poison.value!r} is set already; give offset_column= or order_by= to the Upsert, "
            "whose rows then need no order of keys, or let a worker apply these records; and start another run"
        )
    else:
        return NewDeadLetter(
            raw, failure, State.SKIPPED if pipeline.on_poison is OnPoison.SKIP else State.DEAD_LETTERED
        )
    reason = f"{raw.topic}/{raw.partition} offset {raw.offset}: {failure.cause.value}: {failure.summary}; {why}"
    raise ReloadRefused([reason]) from failed.error


def _place(record: AnyRecord) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset
