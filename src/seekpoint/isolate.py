"""Apply a batch of which some records fail: in parts, under savepoints, until those records stand alone.

What fails is found by halves: the records in front of it stay applied, and the search goes on behind it. One bad
record in n costs about log2(n) calls; where the database or the handler names it, one. Where many fail, no
part is longer than a share of the distance at which they come, so that the cost grows with their number, not
with the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text

from seekpoint.apply import Failed, Made, made_of, write
from seekpoint.failure import Cause
from seekpoint.guard import LentConnection, is_data_fault
from seekpoint.intake import OpenBatch
from seekpoint.pipeline import Pipeline
from seekpoint.records import Partition, RawRecord, Span
from seekpoint.verdict import fail

CHECK_DEFERRED = text("SET CONSTRAINTS ALL IMMEDIATE")

FEW = 2  # failures in one batch, from which on their distance is known
SHARE = 4  # parts per distance between two failures: longer ones are run in vain, shorter ones cost round trips
CALM = 8  # distances without a failure, behind which no more are expected; a batch may be shorter than one
FEW_STRIDES = 8  # of what is left behind the first failure, the first part is so much at least
LEAST = 16  # records of one part, at the least


class Isolation:
    """Remembers from batch to batch how far apart the failures come. One per worker."""

    def __init__(self) -> None:
        self._stride: int | None = None  # records per part; None: all that is left
        self._clean = 0  # records since the last failure
        self._most: int | None = None  # records that a part may have at most; None: any number
        self._known: Failed | None = None  # how the whole of the batch has failed just now

    @property
    def expects_failures(self) -> bool:
        """Whether the next batch had better begin in parts: failures come often, or a whole one takes too long."""
        return self._stride is not None or self._most is not None

    def shorten(self, tried: int) -> bool:
        """So many records took longer than a statement may: from now on half as many. False where it was one."""
        tried = min(tried, self._most or tried)
        if tried > 1:
            self._most = tried // 2
        return tried > 1

    def begin_with(self, failed: Failed | None) -> None:
        """The batch has failed as a whole, and is to be divided: it need not be tried as a whole again.

        None: nothing is known of what is tried next.
        """
        self._known = None if failed is None or failed.named else failed

    def apply(self, tx: LentConnection, pipeline: Pipeline, batch: OpenBatch) -> int:
        """Write what can be written, and give the verdict on what cannot; returns how many records were applied.

        Raises misuse, and database errors that are no record's fault, as they are.
        """
        search = _Search(tx, pipeline, batch)
        made = made_of(pipeline, batch)
        known, self._known = self._known, None
        begin = furthest = judged = 0  # whatever lies behind `judged` may be asked for without looking
        stride = self._stride or len(made)
        while begin < len(made):
            end = min(len(made), begin + min(stride, self._most or stride))
            places: Sequence[int] = range(begin, end)
            if begin < judged or batch.looks_ahead:
                places = [n for n in places if batch.wants(made[n].raw)]
            part = [made[n] for n in places]
            if known and (len(part) < len(made) or (known.late and len(part) == 1)):
                known = None
            failed = known or (search.run(part) if part else None)
            known = None
            if failed is None:
                begin, stride = end, self._stride or 2 * stride
                continue
            settled = search.narrow(part, failed)
            judged = end
            begin = places[settled] if settled < len(places) else end
            if search.at is not None:
                furthest = max(furthest, places[search.at])
            if search.found >= FEW:
                self._stride = stride = max(LEAST, furthest // search.found // SHARE)
            elif self._stride is None:  # perhaps the only one: the rest in a few strides, which grow
                stride = max(4 * (furthest + 1), (len(made) - begin) // FEW_STRIDES)
        self._clean = len(made) - 1 - furthest if search.found else self._clean + len(made)
        if self._stride is not None and self._clean > CALM * SHARE * self._stride:
            self._stride = None
        return search.applied


class _Search:
    """One batch's: ``applied`` records so far, ``found`` failures; the last one ``at`` that place of the part in hand.

    ``at`` is None where the part failed as a whole, and none of its records alone.
    """

    def __init__(self, tx: LentConnection, pipeline: Pipeline, batch: OpenBatch) -> None:
        self._tx, self._pipeline, self._batch = tx, pipeline, batch
        self.applied = self.found = 0
        self.at: int | None = None
        tx.begin_parts()

    def run(self, part: Sequence[Made]) -> Failed | None:
        """Apply these records, all or none."""
        try:
            write(self._tx, self._pipeline, part, spans_of(part) if self._pipeline.handle is not None else ())
            if self._batch.deferred:
                self._check_deferred()
        except Failed as failed:
            self._tx.undo_part()
            return failed
        self.applied += len(part)
        self._tx.keep_part()
        return None

    def narrow(self, part: Sequence[Made], failed: Failed) -> int:
        """Find what failed in a part, and give the verdict; returns how many records from its front are settled."""
        self.at = None
        low, high, is_known = 0, len(part), True  # part[low:high] fails, if that is known; what is below is applied
        while not failed.named and high - low > 1:
            middle = (low + high) // 2
            below = self.run(part[low:middle])
            if below is None:
                low, is_known = middle, False
            else:
                high, failed, is_known = middle, below, True
        if not is_known and not failed.named:  # alone, it may succeed: not every error is one record's fault
            alone = self.run(part[low:high])
            if alone is None:
                return high
            failed = alone
        if not failed.named:
            self._verdict([part[low].raw], failed, low)
            return high
        named = {raw.id for raw in failed.named}
        self._verdict(failed.named, failed, max(n for n, one in enumerate(part) if one.raw.id in named))
        return low

    def _verdict(self, raws: Sequence[RawRecord], failed: Failed, at: int) -> None:
        self.at = at
        for raw in raws:
            self.found += 1
            fail(self._pipeline, self._batch, raw, failed.error, failed.cause)

    def _check_deferred(self) -> None:
        """Ask now what would be asked at COMMIT; and take the question back, as later parts may wait for it."""
        probe = self._tx.begin_nested()
        try:
            self._tx.execute(CHECK_DEFERRED)
        except Exception as error:
            if is_data_fault(error):
                raise Failed(error, Cause.DATABASE) from error
            raise
        finally:
            probe.rollback()


def spans_of(part: Sequence[Made]) -> list[Span]:
    """The offsets that a part covers, as a handler is told them."""
    starts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    for one in part:
        at = one.raw.topic, one.raw.partition
        starts.setdefault(at, one.raw.offset)
        ends[at] = one.raw.offset + 1
    return [Span(Partition(*at), start, ends[at]) for at, start in starts.items()]
