"""Messages that were read, with the positions before and after them, and the claim under which they were read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar, overload

from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import Claim, Move
from seekpoint.records import Partition, utc

T = TypeVar("T")


@dataclass(slots=True)
class Read:
    """A read of one partition: the claim, and the read positions before and after it (I3)."""

    claim: Claim
    start: int
    end: int
    leader_epoch: int | None = None
    timestamp_ms: int | None = None

    def move(self) -> Move:
        """The ledger's move past these messages."""
        return Move(self.claim, self.start, self.end, self.leader_epoch, utc(self.timestamp_ms))

    def since(self, start: int) -> Read:
        """A copy that begins at this position."""
        return Read(self.claim, start, self.end, self.leader_epoch, self.timestamp_ms)


class Chunk(Sequence[T], Generic[T]):
    """Messages that may be applied, and the reads that move the ledger past them, from :meth:`Assignment.accept_poll`.

    ``messages`` are in order; ``unreadable`` are the messages whose headers the client could not read, with the error.
    ``read_by`` is a time (``time.monotonic``) by which all messages had been read.
    """

    __slots__ = ("messages", "read_by", "reads", "unreadable")

    def __init__(
        self,
        messages: Sequence[T],
        reads: dict[Partition, Read],
        unreadable: Sequence[tuple[T, Exception]] = (),
        *,
        read_by: float | None = None,
    ) -> None:
        self.messages, self.reads, self.unreadable = messages, reads, unreadable
        self.read_by = monotonic() if read_by is None else read_by

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[T]:
        return iter(self.messages)

    def and_then(self, other: Chunk[T]) -> Chunk[T]:
        """Join both chunks; in each partition, the second must begin where the first ends."""
        unreadable, read_by = [*self.unreadable, *other.unreadable], max(self.read_by, other.read_by)
        return Chunk([*self, *other], chain((self, other)), unreadable, read_by=read_by)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.messages[index]


def chain(chunks: Iterable[Chunk[Any]], before: Mapping[Partition, Read] | None = None) -> dict[Partition, Read]:
    """Join chunks that were read one after the other: each must begin where the one before ended (I3).

    ``before`` has the reads joined so far.
    """
    joined: dict[Partition, Read] = {} if before is None else dict(before)
    for chunk in chunks:
        if not isinstance(chunk, Chunk):
            raise ConfigError(f"pass the chunks that accept_poll() returned, not a {type(chunk).__name__}")
        for partition, read in chunk.reads.items():
            last = joined.get(partition)
            if last is None:
                joined[partition] = read.since(read.start)
                continue
            if last.claim.token != read.claim.token:
                raise Fenced(
                    f"{partition} was claimed again between the chunk up to {last.end} and the one from {read.start}"
                )
            if last.end != read.start:
                raise Fenced(f"a chunk of {partition} is missing between {last.end} and {read.start}")
            joined[partition] = read.since(last.start)
    return joined
