"""Records count only under the claim that they were read under."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch
from uuid import uuid4

from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from seekpoint.events import Announcer
from seekpoint.ledger import Claim
from seekpoint.records import Partition
from seekpoint.worker.assignment.accept import _Accepted, accept_messages
from seekpoint.worker.assignment.backlog import Backlog, Moment
from seekpoint.worker.assignment.partitions import AssignedPartitions

ZERO, ONE = Partition("t", 0), Partition("t", 1)


class Message:
    """What the client gives: a record, or in its place an ``error``."""

    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b""

    def headers(self) -> None:
        return None

    def leader_epoch(self) -> int:
        return 0


class Client:
    """Takes every placement."""

    def assign(self, fresh: object, others: object) -> None: ...


def placed() -> AssignedPartitions:
    """Both partitions at offset 10."""
    places = AssignedPartitions(Client(), Announcer())  # type: ignore[arg-type]
    places.activate({p: Claim(p, uuid4(), 1, 10, None, uuid4()) for p in (ZERO, ONE)})
    return places


def take(places: AssignedPartitions, *read: tuple[int, int]) -> dict[Partition, tuple[int, int]]:
    messages: Any = [Message(partition, offset) for partition, offset in read]
    chunk = accept_messages(places, messages, Announcer())
    kept = [(m.partition(), m.offset()) for m in chunk]
    assert len(kept) == len(set(kept)), "none of them twice"
    return {p: (r.start, r.end) for p, r in chunk.reads.items()}


def test_read_positions_move_when_records_are_read_and_chain_over_gaps() -> None:
    """I3: the next chunk starts where this one ended, whatever offsets lie between."""
    places = placed()
    assert take(places, (0, 10), (1, 12), (0, 15)) == {ZERO: (10, 16), ONE: (10, 13)}
    assert take(places, (0, 16)) == {ZERO: (16, 17)}


def test_records_before_the_read_position_are_stale() -> None:
    """I3: what was read before is neither counted nor kept twice."""
    stale: Any = [Message(0, 9), Message(0, 10), Message(0, 10)]
    assert [m.offset() for m in accept_messages(placed(), stale, Announcer())] == [10]
    assert take(placed(), (0, 9), (0, 10), (0, 10)) == {ZERO: (10, 11)}


def test_records_of_a_revoked_partition_are_stale() -> None:
    """I2: what the client still had when Kafka took the partition away is dropped, before it is released."""
    places = placed()
    places.on_revoked([ZERO], True)
    assert take(places, (0, 10), (1, 10)) == {ONE: (10, 11)}


def test_records_that_wait_move_the_read_position_and_not_the_position() -> None:
    """I3: the position moves when the records are given."""
    places = placed()
    places.set_backlog(ZERO, Backlog(delay=60.0))
    assert take(places, (0, 10), (1, 10), (0, 12), (0, 12)) == {ONE: (10, 11)}
    active = places.active[ZERO]
    assert (active.read_position, active.position, len(active.backlog or ())) == (13, 10, 2)
    assert active.backlog is not None
    assert [r.offset for r in active.backlog.give(1, Moment(0.0, 1e12))] == [10]
    assert active.position == 11
    assert [r.offset for r in active.backlog.give(9, Moment(0.0, 1e12))] == [12]
    assert active.position == 13
    assert not active.has_trailing


class Refused(Message):
    """In the place of a record: the broker has refused this offset; -1: the log was truncated."""

    def error(self) -> Any:
        return KafkaError(KafkaError._AUTO_OFFSET_RESET)

    def offset(self) -> Any:
        return None if self._offset < 0 else self._offset


def refuse(places: AssignedPartitions, *events: Refused) -> None:
    messages: Any = events
    assert len(accept_messages(places, messages, Announcer())) == 0


def test_a_refused_offset_counts_if_it_is_of_the_present_assignment() -> None:
    """I4: librdkafka's event survives a new assignment, and may be of the position before a decision."""
    for offset, is_noted in ((9, False), (10, True), (12, True), (-1, False)):
        places = placed()
        refuse(places, Refused(0, offset))
        assert bool(places.out_of_range) == is_noted, offset


def test_a_truncation_is_noted_where_a_leader_epoch_was_given_or_a_record_read() -> None:
    """I4: the client compares no epoch that it does not have."""
    places = placed()
    places.activate({ZERO: Claim(ZERO, uuid4(), 1, 10, 3, uuid4())})
    take(places, (1, 10))
    refuse(places, Refused(0, -1), Refused(1, -1))
    assert places.out_of_range == {ZERO: None, ONE: None}


def test_a_partition_that_is_out_of_range_is_not_assigned_again_by_the_stop_of_another() -> None:
    places, others = placed(), list[Any]()
    places._client.unassign = lambda partitions, kept: others.append(kept)  # type: ignore[method-assign,assignment]
    refuse(places, Refused(0, 10), Refused(1, 10))
    places.deactivate([ZERO])
    assert others == [{}]


def test_a_partition_that_is_out_of_range_is_not_sought() -> None:
    """The client has ended it, so that the seek would fail, and what waits in backlogs would be dropped."""
    places, sought = placed(), list[Any]()
    client: Any = places._client
    client.pause, client.resume, client.continue_reading = (lambda _: None), sought.append, sought.append
    places.pause([ZERO, ONE])
    refuse(places, Refused(0, 10))
    places.continue_reading()
    places.resume([ZERO, ONE])
    assert sought == [{ONE: (10, None)}] * 2


END = KafkaError(KafkaError._PARTITION_EOF)  # in the place of a record: the log ends here


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2]), st.integers(8, 20), st.sampled_from([None] * 9 + [END]))),
    st.sampled_from([(), (ZERO,), (ONE,)]),
    st.sampled_from([(), (ZERO,), (ONE,)]),
)
def test_what_is_taken_by_runs_is_what_is_taken_one_by_one(
    read: list[tuple[int, int, KafkaError | None]], gone: tuple[Partition, ...], held: tuple[Partition, ...]
) -> None:
    """I3: whatever the client gives, in whatever order, the read positions move over the same records."""
    messages: Any = [Message(partition, offset, error) for partition, offset, error in read]

    def outcome() -> object:
        places = placed()
        places.on_revoked(list(gone), False)
        for partition in places.active.keys() & held:
            places.set_backlog(partition, Backlog(delay=60.0))
        chunk = accept_messages(places, messages, Announcer())
        return (
            list(chunk),
            {p: (r.start, r.end, r.leader_epoch, r.timestamp_ms) for p, r in chunk.reads.items()},
            {
                p: (active.read_position, active.position, active.end, len(active.backlog or ()))
                for p, active in places.active.items()
            },
        )

    with patch.object(_Accepted, "add_run", lambda *_: False):
        one_by_one = outcome()
    assert outcome() == one_by_one


def test_rising_offsets_of_one_partition_are_not_looked_at_one_by_one() -> None:
    messages: Any = [Message(0, 10), Message(0, 11), Message(1, 10), Message(0, 13)]
    with patch.object(_Accepted, "add_each", side_effect=AssertionError):
        chunk = accept_messages(placed(), messages, Announcer())
    assert [(m.partition(), m.offset()) for m in chunk] == [(0, 10), (0, 11), (1, 10), (0, 13)]
    assert {p: (r.start, r.end) for p, r in chunk.reads.items()} == {ZERO: (10, 14), ONE: (10, 11)}
