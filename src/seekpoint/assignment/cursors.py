"""The reader's own cursors: what was read of each placed partition, and what came in the place of records."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from seekpoint import events
from seekpoint.assignment.chunk import Chunk, Read
from seekpoint.events import Announcer
from seekpoint.kafka import client as kafka
from seekpoint.kafka.client import Message
from seekpoint.ledger import Claim
from seekpoint.records import Partition


@dataclass(slots=True)
class Placed:
    """A partition that is read. ``cursor`` is the reader's own: it moves when a chunk is read, never on a commit."""

    claim: Claim
    cursor: int
    end: int | None = None  # the log's end, when the client said that it was reached
    quiet_since: float = 0.0


class Cursors:
    """Where reading stands in each placed partition; ``troubled`` are those whose position the broker refused."""

    def __init__(self, announce: Announcer) -> None:
        self.placed: dict[Partition, Placed] = {}
        self.troubled: set[Partition] = set()
        self._announce = announce

    def take(self, messages: Iterable[Message], *, gone: Collection[Partition]) -> Chunk[Message]:
        """Keep what belongs to a placed partition and was not read before; move the cursors over it."""
        kept: list[Message] = []
        reads: dict[Partition, Read] = {}
        last: dict[Partition, Message] = {}
        for message in messages:
            if message.error() is not None:
                self._in_stream(message)
                continue
            at: Any = (message.topic(), message.partition())
            placed = self.placed.get(at)
            offset: Any = message.offset()
            if placed is None or offset < placed.cursor or at in gone:
                continue  # read under an earlier placement
            read = reads.get(at)
            if read is None:
                read = reads[placed.claim.partition] = Read(placed.claim, placed.cursor, placed.cursor)
            placed.cursor = read.end = offset + 1
            last[at] = message
            kept.append(message)
        now = monotonic()
        for partition, message in last.items():
            self.placed[partition].quiet_since = now
            raw = kafka.raw_record(message)
            reads[partition].leader_epoch, reads[partition].timestamp_ms = raw.leader_epoch, raw.timestamp_ms
        return Chunk(kept, reads)

    def _in_stream(self, message: Message) -> None:
        """An event that came in the place of a record."""
        error: Any = message.error()
        partition = Partition(message.topic() or "", -1 if (n := message.partition()) is None else n)
        placed = self.placed.get(partition)
        if error.code() == kafka.END_OF_PARTITION:
            offset: Any = message.offset()
            if placed is not None and offset > placed.cursor:
                placed.end = offset
        elif error.code() == kafka.OUT_OF_RANGE and placed is not None:
            self.troubled.add(partition)
        else:
            kafka.raise_if_fatal(error)
            self._announce(events.KafkaTrouble(error=f"{partition.topic}: {error.str()}"))
