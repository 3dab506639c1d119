"""A worker's state of one partition: claiming, active or stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from uuid import UUID

from seekpoint.errors import PartitionStopped, TopicRecreated, TopicUnknown
from seekpoint.ledger import Claim
from seekpoint.records import RawRecord
from seekpoint.worker.assignment.backlog import Backlog


@dataclass(slots=True)
class ActivePartition:
    """A partition that is read. ``read_position`` moves when a chunk is read, not on a commit.

    Records that have to wait are in ``backlog``, which ends when the partition is no longer active. ``queued_from`` is
    the start of the chunks that wait for the next batch.
    """

    claim: Claim
    read_position: int
    queued_from: int | None = None
    end: int | None = None  # the log's end, if the client has reached it
    quiet_since: float = field(default_factory=monotonic)
    backlog: Backlog | None = None
    leader_epoch: int | None = None  # of the last record that went into the backlog
    is_paused: bool = False  # its backlog is full: the client reads no more of it
    unreadable: dict[int, Exception] = field(default_factory=dict)
    """The client's errors for unreadable records, by offset."""

    @property
    def position(self) -> int:
        """The position before the next record to apply: the ledger's position, unless a batch is open."""
        if self.queued_from is not None:
            return self.queued_from
        return self.read_position if self.backlog is None or not len(self.backlog) else self.backlog.position

    @property
    def last_epoch(self) -> int | None:
        """The leader epoch of the record before the read position; None if it is not known, as during a batch."""
        if self.backlog is not None and len(self.backlog):
            return self.leader_epoch
        return self.claim.leader_epoch if self.read_position == self.claim.next_offset else None

    @property
    def has_trailing(self) -> bool:
        """Whether only control records lie between the position and the log's end."""
        return self.end is not None and self.end > self.read_position == self.position

    def committed(self, claim: Claim) -> None:
        """Take over a claim after its COMMIT; the advance has removed the ledger's notes on the applied records."""
        self.claim, self.quiet_since = claim, monotonic()
        if self.unreadable:
            self.unreadable = {
                offset: error for offset, error in self.unreadable.items() if offset >= claim.next_offset
            }
        if self.backlog is not None:
            self.backlog.noted = -1

    def passed_end(self, claim: Claim) -> None:
        """Take over a claim that was advanced to the log's end, past no record."""
        self.claim, self.read_position, self.end = claim, claim.next_offset, None

    def reached(self, offset: int, leader_epoch: int | None) -> None:
        """Use the ledger's position, which equals the position of reading: a COMMIT without an answer took effect."""
        self.claim = replace(self.claim, next_offset=offset, leader_epoch=leader_epoch)

    def put_back(self, records: Sequence[RawRecord]) -> None:
        """Note that these records are in the backlog again, if they were the last ones read."""
        if self.read_position == records[-1].offset + 1:
            self.leader_epoch = records[-1].leader_epoch


@dataclass(frozen=True, slots=True)
class ClaimingPartition:
    """An assigned partition that is not claimed yet. ``known``: this worker's previous claim."""

    not_before: float = 0.0
    stalled: bool = False  # another transaction held its row
    known: Claim | None = None


@dataclass(slots=True)
class StoppedPartition:
    """A partition that is not read; ``claim`` is this worker's claim, if it had one."""

    stop: PartitionStopped
    claim: Claim | None = None
    is_stored: bool = False  # the ledger has the stop
    store_at: float = 0.0  # when to try to store it next, by the monotonic clock

    def is_over(self, token: UUID | None, stored_topic_id: UUID | None, topic_id: UUID | None) -> bool:
        """Whether to claim it again: the row has another token, or the topic has another id or is known again.

        ``stored_topic_id`` is in the row, ``topic_id`` is the brokers' answer; None if there is no id.
        """
        decided = token is not None and token != self.stop.token
        if decided or topic_id is None or isinstance(self.stop, TopicRecreated):
            return decided
        return topic_id != stored_topic_id or isinstance(self.stop, TopicUnknown)
