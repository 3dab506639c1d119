"""The states of partitions that are revoked in the middle of something else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

import pytest

from seekpoint.errors import OffsetLost, TopicRecreated, TopicUnknown
from seekpoint.events import Announcer
from seekpoint.kafka.client import Client
from seekpoint.ledger import Attempt, Claim
from seekpoint.records import LazyRecords, Partition, RawRecord
from seekpoint.worker.assignment.accept import accept_messages
from seekpoint.worker.assignment.backlog import Backlog, Moment
from seekpoint.worker.assignment.chunk import Chunk
from seekpoint.worker.assignment.held import HeldPartitions
from seekpoint.worker.assignment.partitions import AssignedPartitions
from seekpoint.worker.assignment.states import ActivePartition, StoppedPartition

P, Q = Partition("t", 0), Partition("t", 1)


class FakeClient:
    """In the place of the client; keeps what it was given to read."""

    def __init__(self) -> None:
        self.reads: set[Partition] = set()

    def assign(self, fresh: Mapping[Partition, Any], others: Mapping[Partition, int]) -> None:
        self.reads = {*fresh, *others}

    def unassign(self, partitions: Collection[Partition], others: Mapping[Partition, int]) -> None:
        self.reads = set(others) - set(partitions)


def claim(partition: Partition, offset: int = 0) -> Claim:
    return Claim(partition, uuid4(), 1, offset, None, uuid4())


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def places(client: FakeClient) -> AssignedPartitions:
    """P and Q are assigned, claimed and read."""
    places = AssignedPartitions(cast("Client", client), Announcer())
    places.on_assigned([P, Q])
    places.activate({P: claim(P, 5), Q: claim(Q, 7)})
    return places


def test_a_revoked_partition_is_not_claimed_again_after_a_refusal(places: AssignedPartitions) -> None:
    mine = {partition: active.claim for partition, active in places.active.items()}
    places.on_revoked([P], False)
    places.claim_again(P, mine[P])  # another worker's claim was found in the row
    assert P not in places.claiming
    assert places.leave() == [mine[P]], "else it would count as a crash of this process"
    places.claim_again(Q, mine[Q])
    assert places.claiming[Q].known == mine[Q]


def test_a_revoked_partition_is_not_claimed_again_after_an_outage(
    places: AssignedPartitions, client: FakeClient
) -> None:
    mine = places.active[P].claim
    places.on_revoked([P], False)
    places.suspend()
    assert list(places.claiming) == [Q]
    assert client.reads == set()
    assert places.leave() == [mine], "its claim is given back, when the database answers"
    assert places.leave() == []


def test_a_partition_that_is_revoked_while_it_is_claiming_is_released(places: AssignedPartitions) -> None:
    mine = places.active[P].claim
    places.suspend()
    places.on_revoked([P], True)
    assert list(places.claiming) == [Q]
    assert places.leave() == [mine]


def test_a_partition_that_is_assigned_again_before_maintain_is_claiming(places: AssignedPartitions) -> None:
    mine = places.active[P].claim
    places.on_revoked([P], False)
    places.on_assigned([P])
    assert places.leave() == [mine]
    assert P in places.claiming


def test_a_revoked_partition_is_not_read_when_others_are_activated(
    places: AssignedPartitions, client: FakeClient
) -> None:
    places.on_revoked([P], False)
    places.activate({Q: claim(Q, 9)})
    assert client.reads == {Q}


def test_all_claims_are_released_at_the_end(places: AssignedPartitions) -> None:
    mine = {places.active[P].claim, places.active[Q].claim}
    places.stop(P, OffsetLost(P, 5, "gone"))
    places.suspend()
    assert set(places.claims()) == mine


def test_a_stopped_partition_keeps_its_claim_while_it_is_checked_again(places: AssignedPartitions) -> None:
    mine = places.active[P].claim
    places.stop(P, OffsetLost(P, 5, "gone"))
    places.claim_again(P, places.stopped[P].claim)
    places.stop(P, TopicRecreated(P, 5, "another"))
    assert mine in places.claims()


@pytest.mark.parametrize("how", ["revoked", "deactivated", "activated again", "stopped", "suspended"])
def test_a_backlog_ends_when_its_partition_is_no_longer_active(places: AssignedPartitions, how: str) -> None:
    """I3: records that were read under an earlier claim are never applied; the ledger has the position."""
    places.set_backlog(P, Backlog(delay=1.0))
    before = places.active[P]
    match how:
        case "revoked":
            places.on_revoked([P], False)
            places.leave()
        case "deactivated":
            places.deactivate([P])
        case "activated again":
            places.activate({P: claim(P, 5)})
        case "stopped":
            places.stop(P, OffsetLost(P, 5, "gone"))
        case "suspended":
            places.suspend()
    assert not places.backlogged
    assert places.active.get(P) is not before


def test_backlogs_come_one_after_the_other(places: AssignedPartitions) -> None:
    for partition in (P, Q):
        places.set_backlog(partition, Backlog(delay=1.0))
    places.rotate(P)
    assert list(places.backlogged) == [Q, P]
    places.set_backlog(Q, None)
    assert list(places.backlogged) == [P]
    assert places.active[Q].backlog is None


OLD, NEW, TOKEN, MOVED = (uuid4() for _ in range(4))


@pytest.mark.parametrize(
    ("kind", "token", "stored", "now", "over"),
    [
        (OffsetLost, TOKEN, OLD, OLD, False),
        (OffsetLost, MOVED, OLD, OLD, True),  # an operator decided
        (OffsetLost, TOKEN, OLD, None, False),  # deleted: nothing to claim
        (OffsetLost, TOKEN, OLD, NEW, True),  # another topic: the claim says so
        (TopicRecreated, TOKEN, OLD, NEW, False),  # that was said already
        (TopicRecreated, MOVED, NEW, NEW, True),
        (OffsetLost, None, None, NEW, True),  # deleted before anybody had claimed it
        (OffsetLost, None, None, None, False),
        (TopicUnknown, TOKEN, OLD, None, False),
        (TopicUnknown, TOKEN, OLD, OLD, True),  # it was the broker's metadata
        (TopicUnknown, TOKEN, OLD, NEW, True),
    ],
)
def test_a_stop_ends_by_a_decision_or_another_topic(kind: Any, token: Any, stored: Any, now: Any, over: bool) -> None:
    stop = kind(P, 5, "why")
    stop.token = TOKEN
    assert StoppedPartition(stop).is_over(token, stored, now) is over


def test_a_partition_that_was_revoked_and_assigned_again_is_not_stopped_by_its_old_batch(
    places: AssignedPartitions,
) -> None:
    """I2: one call of the client may bring both callbacks; the old batch then ends at a poison record. P stays ours."""
    mine = places.active[P].claim
    places.on_revoked([P], False)
    places.on_assigned([P])
    places.stop(P, OffsetLost(P, 5, "a poison record of the old batch"))
    assert places.leave() == [mine]
    assert P in places.claiming, "else no worker would ever read it"
    assert P not in places.stopped


def test_the_ledgers_leader_epoch_is_that_of_the_read_position_only_if_nothing_was_read_since() -> None:
    placed = ActivePartition(Claim(P, uuid4(), 1, 5, 3, uuid4()), 5)
    assert placed.last_epoch == 3
    placed.read_position = 7  # asked with an epoch that is too old, the broker reports a truncation that never was
    assert placed.last_epoch is None


# -- what was read and waits for the next batch ------------------------------------------------------------------


class Record:
    """A message of the client, as far as it is read."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self._at, self._offset = partition, offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return self._at.topic

    def partition(self) -> int:
        return self._at.number

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> int:
        return 3

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


def chunk(places: AssignedPartitions, read: Sequence[tuple[Partition, int]]) -> Chunk[RawRecord]:
    """These were read, and are records now."""
    accepted = accept_messages(places, cast("Any", [Record(*place) for place in read]), Announcer())
    return Chunk([RawRecord(p.topic, p.number, offset, None, None, None, (), 3) for p, offset in read], accepted.reads)


def kept(places: AssignedPartitions) -> None:
    """Two records of each partition were read, in a transaction that holds P alone."""
    read = [(partition, offset) for partition, first in ((P, 5), (Q, 7)) for offset in (first, first + 1)]
    mine = places.keep_others(chunk(places, read), frozenset([P]))
    assert [record.offset for record in mine] == [5, 6]
    assert list(mine.reads) == [P]


def test_chunks_of_partitions_that_are_not_held_are_kept_and_taken_once(places: AssignedPartitions) -> None:
    kept(places)
    assert [(active.position, active.read_position) for active in places.active.values()] == [(7, 7), (7, 9)]
    taken = places.take_queued()
    assert [record.offset for record in taken] == [7, 8]
    assert (taken.reads[Q].start, taken.reads[Q].end) == (7, 9)
    assert len(places.queue) == 0
    assert places.active[Q].position == 9


@pytest.mark.parametrize(
    "happens",
    [
        lambda places: places.on_revoked([Q], False),
        lambda places: (places.on_revoked([Q], False), places.leave()),
        lambda places: places.deactivate([Q]),
        lambda places: places.activate({Q: claim(Q, 9)}),
        lambda places: places.suspend(),
    ],
    ids=["revoked", "revoked and forgotten", "claimed by another", "claimed again", "servers away"],
)
def test_what_was_kept_is_dropped_with_its_claim(
    places: AssignedPartitions, happens: Callable[[AssignedPartitions], object]
) -> None:
    kept(places)
    happens(places)
    taken = [places.take_queued() for _ in range(len(places.queue))]
    assert [(list(chunk), chunk.reads) for chunk in taken] in ([], [([], {})])


def test_a_part_that_is_kept_keeps_what_is_unreadable(places: AssignedPartitions) -> None:
    """I4: a record whose headers cannot be read would be applied without them."""
    read = chunk(places, [(P, 5), (Q, 7), (Q, 8)])
    errors = {record.offset: ValueError(str(record.offset)) for record in read}
    whole = Chunk(list(read), read.reads, [(record, errors[record.offset]) for record in read])
    mine = places.keep_others(whole, frozenset([P]))
    assert [(record.offset, error) for record, error in mine.unreadable] == [(5, errors[5])]
    taken = places.take_queued()
    assert [(record.offset, error) for record, error in taken.unreadable] == [(7, errors[7]), (8, errors[8])]


def test_what_was_kept_waits_after_a_record_that_is_tried_again(places: AssignedPartitions) -> None:
    """It was read after it: the partition's order is kept."""
    places.keep(chunk(places, [(P, 5), (Q, 7), (P, 6)]))
    places.keep(chunk(places, [(P, 7), (Q, 8)]))
    placed = places.active[P]
    places.set_backlog(P, backlog := Backlog())
    backlog.put_back([RawRecord("t", 0, 4, None, None, None, (), None)], 4, Attempt(4, 1, "", 9.0), Moment.now())
    places.put_queued_into_backlog(P)
    assert (placed.queued_from, placed.position, placed.read_position) == (None, 4, 8)
    assert placed.leader_epoch == 3, "a pause of the client ends with a question about this epoch"
    assert [record.offset for _, record in backlog._queue] == [4, 5, 6, 7]
    assert [record.offset for _ in range(len(places.queue)) for record in places.take_queued()] == [7, 8]
    assert places.active[Q].queued_from is None


def test_a_kept_chunk_is_taken_in_parts_of_as_many_records_as_are_asked_for(places: AssignedPartitions) -> None:
    """I3: of each partition a part begins where the one before ended, and the last one ends where the chunk did."""
    read = chunk(places, [(P, 5), (Q, 7), (P, 6), (Q, 8)])
    read.reads[P].end = 9  # what is between is no record
    error = ValueError("no headers")
    places.keep(Chunk(list(read), read.reads, [(read[2], error)]))
    parts = [places.take_queued(3), places.take_queued(3)]
    assert [[(record.partition, record.offset) for record in part] for part in parts] == [
        [(0, 5), (1, 7), (0, 6)],
        [(1, 8)],
    ]
    assert [{p: (read.start, read.end) for p, read in part.reads.items()} for part in parts] == [
        {P: (5, 7), Q: (7, 8)},
        {P: (7, 9), Q: (8, 9)},
    ]
    assert parts[0].reads[P].leader_epoch == 3
    assert [[(record.offset, raised) for record, raised in part.unreadable] for part in parts] == [[(6, error)], []]
    assert (len(places.queue), places.queue.records, places.queue.bytes) == (0, 0, 0)


def test_a_part_has_nothing_of_a_partition_that_an_earlier_part_has_whole(places: AssignedPartitions) -> None:
    places.keep(chunk(places, [(P, 5), (Q, 7), (Q, 8)]))
    parts = [places.take_queued(2), places.take_queued(2)]
    assert [{p: (read.start, read.end) for p, read in part.reads.items()} for part in parts] == [
        {P: (5, 6), Q: (7, 8)},
        {Q: (8, 9)},
    ]


def test_what_was_kept_of_a_partition_is_taken_in_order_and_the_position_is_that_of_the_rest(
    places: AssignedPartitions,
) -> None:
    for first in (5, 7):
        places.keep(chunk(places, [(P, first), (P, first + 1)]))
    assert places.active[P].position == 5
    assert [record.offset for record in places.take_queued()] == [5, 6]
    assert places.active[P].position == 7
    assert [record.offset for record in places.take_queued()] == [7, 8]
    assert (places.active[P].position, places.active[P].queued_from) == (9, None)


def test_what_was_kept_counts_with_its_bytes(places: AssignedPartitions) -> None:
    """I3, H2: what is read ahead is bounded by it. A part of a chunk is a list, a whole one has counted its bytes."""
    accepted = accept_messages(places, cast("Any", [Record(P, 5), Record(Q, 7), Record(Q, 8)]), Announcer())
    records = [RawRecord(*place, 1, b"k", b"x" * 9, (), 3) for place in (("t", 0, 5), ("t", 1, 7), ("t", 1, 8))]
    places.keep_others(Chunk(records, accepted.reads), frozenset([P]))
    assert (places.queue.records, places.queue.bytes) == (2, 20)
    accepted = accept_messages(places, cast("Any", [Record(P, 6)]), Announcer())
    value = b"y" * 30
    whole = LazyRecords([value], list, lambda: [6], topic="t", size=len(value))
    places.keep(Chunk(whole, accepted.reads))
    assert (places.queue.records, places.queue.bytes) == (3, 50)
    places.take_queued()
    assert (places.queue.records, places.queue.bytes) == (1, 30)
    places.take_queued()
    assert (places.queue.records, places.queue.bytes) == (0, 0)


def test_a_transaction_holds_what_its_batch_begins_with_and_what_moved_lately() -> None:
    partitions = [Partition("t", number) for number in range(100)]
    held = HeldPartitions()
    for partition in partitions[:20]:
        held.moved([partition])
    assert set(held.of({P}, set(partitions))) == {P, *partitions[12:20]}
    assert set(held.of({P}, {P})) == {P}, "what is not active any more is not held"


def test_full_chunks_of_other_partitions_have_all_held_for_a_while() -> None:
    partitions = {Partition("t", number) for number in range(100)}
    held = HeldPartitions()
    held.closed_by_another(is_full=False)
    assert set(held.of({P}, partitions)) == {P}
    held.closed_by_another(is_full=True)
    for _ in range(8):
        assert set(held.of({P}, partitions)) == partitions
        held.moved([P])
    assert set(held.of({P}, partitions)) == {P}
