"""The open batch: when it closes, what it repeats, what it leaves out, and that nothing is missing between chunks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekpoint.errors import ConfigError, Fenced, PoisonStop
from seekpoint.kafka.client import Unreadable
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Claim
from seekpoint.ledger.dead_letters import FirstOpen
from seekpoint.pipeline.policy import Limits
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, Span, State
from seekpoint.testing import raw
from seekpoint.worker.assignment.backlog import RetryLater, SuspectRange
from seekpoint.worker.assignment.chunk import Chunk, Read, chain
from seekpoint.worker.open_batch import BatchResult, Buffer, OpenBatch, Written, moves

A, B = Partition("a", 0), Partition("b", 1)
TOKENS: dict[Partition, UUID] = {A: uuid4(), B: uuid4()}


def read_of(partition: Partition, start: int, end: int, token: UUID | None = None) -> Read:
    claim = Claim(partition, token or TOKENS[partition], 1, 0, None, uuid4())
    return Read(claim, start, end, leader_epoch=7, timestamp_ms=end)


def chunk(*parts: tuple[Partition, int, int], value: bytes = b"v") -> Chunk[RawRecord]:
    """Records [start, end) of each partition, one for every offset."""
    records = [
        raw(value, topic=p.topic, partition=p.number, offset=offset, leader_epoch=offset // 10)
        for p, start, end in parts
        for offset in range(start, end)
    ]
    return Chunk(records, {p: read_of(p, start, end) for p, start, end in parts})


class Source:
    """Chunks that are drawn one after the other, and the questions that were asked."""

    def __init__(self, *chunks: Chunk[RawRecord] | None) -> None:
        self.left = list(chunks)
        self.asked: list[set[str]] = []
        self.read_by: list[float] = []

    def draw(self) -> Chunk[RawRecord] | None:
        return self.left.pop(0) if self.left else None

    def ask(self, read_by: float, topics: set[str]) -> Answer:
        self.read_by.append(read_by)
        self.asked.append(topics)
        return Answer()


def opened(
    first: Chunk[RawRecord], *more: Chunk[RawRecord] | None, clock: Callable[[], float] = lambda: 0.0, **limits: float
) -> tuple[OpenBatch, Source]:
    source = Source(*more)
    return OpenBatch(Buffer(first, source.draw, source.ask, Limits(**limits), clock=clock)), source  # type: ignore[arg-type]


def offsets(chunks: Iterable[Iterable[RawRecord]]) -> list[tuple[str, int]]:
    return [(r.topic, r.offset) for records in chunks for r in records]


def left(batch: OpenBatch) -> list[tuple[str, int]]:
    """What was read so far and is to be applied."""
    return offsets([r for r in records if batch.admits(r)] for records in batch.buffer.replay())


def stop(partition: Partition, offset: int) -> PoisonStop:
    return PoisonStop(partition, offset, "bad", failure=Failure(Cause.DECODE, "bad"))


# -- closing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [None, Chunk([], {})], ids=["none", "empty"])
def test_it_closes_on_an_empty_queue_and_only_then_asks_who_the_topics_are(end: Chunk[RawRecord] | None) -> None:
    batch, source = opened(chunk((A, 0, 2)), chunk((A, 2, 3), (B, 5, 6)), end, chunk((A, 3, 4)))
    chunks = batch.chunks()
    assert offsets([next(chunks)]) == [("a", 0), ("a", 1)]
    assert source.asked == []
    assert offsets(chunks) == [("a", 2), ("b", 5)]
    assert batch.buffer.closed
    assert source.asked == [{"a", "b"}], "once, after the last read"
    assert len(source.left) == 1
    assert batch.spans == (Span(A, 0, 3), Span(B, 5, 6))
    assert batch.buffer.starts == {A: 0, B: 5}


def test_it_closes_on_records() -> None:
    batch, source = opened(chunk((A, 0, 2)), chunk((A, 2, 4)), chunk((A, 4, 6)), batch_records=3)
    assert offsets(batch.chunks()) == [("a", n) for n in range(4)], "the chunk that reaches the limit is the last"
    assert len(source.left) == 1


def test_it_closes_on_bytes_of_keys_and_values() -> None:
    first = Chunk([raw(b"12", topic="a", key=b"345"), raw(None, topic="a", offset=1)], {A: read_of(A, 0, 2)})
    batch, source = opened(first, chunk((A, 2, 3), value=b"678"), chunk((A, 3, 4)), batch_bytes=8)
    assert offsets(batch.chunks()) == [("a", 0), ("a", 1), ("a", 2)]
    assert len(source.left) == 1


def test_it_closes_on_age() -> None:
    now = [100.0]
    batch, source = opened(
        chunk((A, 0, 1)), chunk((A, 1, 2)), chunk((A, 2, 3)), chunk((A, 3, 4)), clock=lambda: now[0], batch_age=5
    )
    chunks = batch.chunks()
    next(chunks)
    now[0] = 104.9
    next(chunks)
    now[0] = 105.0
    assert list(chunks) == []
    assert len(source.left) == 2


def test_a_closed_batch_draws_nothing_and_asks_once() -> None:
    batch, source = opened(chunk((A, 0, 1)), chunk((A, 1, 2)))
    batch.buffer.close()
    batch.buffer.close()
    assert offsets(batch.chunks()) == [("a", 0)]
    assert (len(source.left), len(source.asked)) == (1, 1)
    batch.buffer.ask_again()
    assert len(source.asked) == 2


# -- repeating ----------------------------------------------------------------------------------------------


def test_a_retry_repeats_what_was_read_first_and_then_draws_on() -> None:
    batch, _ = opened(chunk((A, 0, 2)), chunk((A, 2, 3)), chunk((A, 3, 4)))
    attempt = batch.chunks()
    next(attempt), next(attempt)
    assert left(batch) == [("a", 0), ("a", 1), ("a", 2)]
    assert offsets(batch.chunks()) == [("a", n) for n in range(4)]
    assert offsets(batch.chunks()) == [("a", n) for n in range(4)]
    assert batch.spans == (Span(A, 0, 4),)


# -- cutting ------------------------------------------------------------------------------------------------


def test_a_cut_ends_its_partition_alone_and_keeps_what_is_drawn_later_out() -> None:
    batch, _ = opened(chunk((A, 0, 4), (B, 0, 2)), chunk((A, 4, 6), (B, 2, 3)))
    batch.outcome.end_at(stop(A, 2))
    assert offsets(batch.chunks()) == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    assert left(batch) == offsets(batch.chunks())
    assert batch.spans == (Span(A, 0, 2), Span(B, 0, 3))
    (move, _) = moves(batch.buffer, batch.outcome)
    assert move.leader_epoch == 0, "of the last record that is applied"
    assert move.record_time is None


def test_the_earliest_cut_of_a_partition_counts() -> None:
    batch, _ = opened(chunk((A, 0, 9)))
    for offset in (5, 3, 7):
        batch.outcome.end_at(stop(A, offset))
    assert batch.outcome.ends[A].offset == 3
    assert batch.spans == (Span(A, 0, 3),)


def test_a_cut_in_front_of_the_first_record_moves_nothing() -> None:
    """Even where the first record is past the position: what was compacted away is passed with the record."""
    batch, _ = opened(Chunk([raw(b"", topic="a", offset=8)], {A: read_of(A, 5, 9)}))
    batch.outcome.end_at(stop(A, 8))
    assert moves(batch.buffer, batch.outcome) == []
    assert batch.spans == ()
    assert batch.buffer.starts == {A: 5}


def test_a_stop_after_a_gap_moves_up_to_the_bad_record() -> None:
    records = [raw(b"", topic="a", offset=n, leader_epoch=3) for n in (5, 9)]
    batch, _ = opened(Chunk(records, {A: read_of(A, 5, 10)}))
    batch.outcome.end_at(stop(A, 9))
    assert batch.spans == (Span(A, 5, 9),)
    assert moves(batch.buffer, batch.outcome)[0].leader_epoch == 3


# -- dead letters -------------------------------------------------------------------------------------------


def keyed(*keys: bytes) -> OpenBatch:
    records = [raw(b"", topic="a", offset=n, key=key) for n, key in enumerate(keys)]
    return opened(Chunk(records, {A: read_of(A, 0, len(keys))}))[0]


def set_aside(batch: OpenBatch, offset: int) -> None:
    record = raw(b"", topic="a", offset=offset, key=b"k")
    batch.outcome.add_dead_letter(NewDeadLetter(record, Failure(Cause.POISON, "bad"), State.DEAD_LETTERED))


def dead_letters(batch: OpenBatch) -> list[tuple[int, State]]:
    applied = [r for records in batch.chunks() for r in records]
    assert not {r.offset for r in applied} & {aside.record.offset for aside in batch.outcome.dead_letters}
    return [(aside.record.offset, aside.state) for aside in batch.outcome.dead_letters]


def dead(keys: dict[tuple[Partition, bytes], int]) -> dict[tuple[Partition, bytes], FirstOpen]:
    """The first open dead letter of each key, from its offset."""
    return {key: FirstOpen(offset, State.DEAD_LETTERED) for key, offset in keys.items()}


def test_what_failed_after_a_stop_is_no_dead_letter() -> None:
    """It is not passed: it comes again, and a replay meanwhile would apply it twice."""
    batch = keyed(*[b"k"] * 6)
    set_aside(batch, 1)
    set_aside(batch, 4)
    batch.outcome.end_at(stop(A, 3))
    assert dead_letters(batch) == [(1, State.DEAD_LETTERED)]
    assert batch.spans == (Span(A, 0, 3),)


def test_each_attempt_holds_back_what_it_finds_dead_and_nothing_else() -> None:
    batch = keyed(b"k", b"other", b"k")
    batch.outcome.block_keys(dead({(A, b"other"): -1, (A, b"k"): -1}))
    assert dead_letters(batch) == [(n, State.BLOCKED) for n in range(3)]
    batch.outcome.block_keys(dead({(A, b"other"): -1}))  # k's dead letter was replayed between the two attempts
    assert dead_letters(batch) == [(1, State.BLOCKED)]


def test_a_key_is_blocked_by_the_first_of_the_records_that_failed() -> None:
    """A handler that names several names them in whatever order it likes."""
    parked, held = State.DEAD_LETTERED, State.BLOCKED
    for named in ([1, 3], [3, 1]):
        batch = keyed(*[b"k"] * 5)
        batch.outcome.block_keys({})
        for offset in named:
            set_aside(batch, offset)
        assert dead_letters(batch) == [(1, parked), (2, held), (3, parked), (4, held)]


def test_asking_whether_a_record_is_excluded_makes_no_dead_letter() -> None:
    batch = keyed(b"k")
    batch.outcome.block_keys(dead({(A, b"k"): -1}))
    (record,) = next(batch.buffer.replay())
    assert batch.outcome.excludes(record)
    assert batch.outcome.dead_letters == []
    assert not batch.admits(record)
    assert [dead_letter.state for dead_letter in batch.outcome.dead_letters] == [State.BLOCKED]


# -- records that wait for their retries --------------------------------------------------------------------


def fails(batch: OpenBatch, offset: int) -> None:
    """The record with key k at this offset fails, and is to be tried again while others continue."""
    failure = Failure(Cause.HANDLER, "TimeoutError")
    record = raw(b"", topic="a", offset=offset, key=b"k")
    batch.outcome.retry_later(record, RetryLater(A, offset, failure, 2.0, TimeoutError()))


def test_later_records_of_its_key_wait_with_a_waiting_one_and_other_keys_continue() -> None:
    batch = keyed(b"k", b"other", b"k", b"k")
    batch.outcome.block_keys({})
    batch.outcome.limit_waiting({A: 9})
    fails(batch, 0)
    assert dead_letters(batch) == [(0, State.WAITING), (2, State.WAITING), (3, State.WAITING)]
    assert [waiting.wait for waiting in batch.outcome.dead_letters] == [2.0, 0.0, 0.0]
    assert batch.spans == (Span(A, 0, 4),)
    assert [r.offset for r in BatchResult.of(batch, Written(1, [1])).passed()] == [1], (
        "no limit of dead letters counts them"
    )


def test_without_key_order_only_the_one_that_failed_waits() -> None:
    batch = keyed(b"k", b"k")
    fails(batch, 0)
    assert dead_letters(batch) == [(0, State.WAITING)]


def test_a_record_waits_or_is_blocked_as_the_first_one_of_its_key_is() -> None:
    batch = keyed(b"k", b"k")
    for first in (State.WAITING, State.DEAD_LETTERED, State.WAITING):  # it was decided between two attempts
        batch.outcome.block_keys({(A, b"k"): FirstOpen(-1, first)})
        expected = State.WAITING if first is State.WAITING else State.BLOCKED
        assert dead_letters(batch) == [(0, expected), (1, expected)]


def test_where_no_more_may_wait_the_part_ends() -> None:
    """Also if the number was not known yet when they failed."""
    batch = keyed(*[b"k"] * 4)
    for offset in (3, 1, 0):
        fails(batch, offset)
    batch.outcome.limit_waiting({A: 2})
    assert dead_letters(batch) == [(0, State.WAITING), (1, State.WAITING)]
    assert batch.spans == (Span(A, 0, 3),)
    assert isinstance(batch.outcome.ends[A], RetryLater)
    full = keyed(b"k", b"k")
    full.outcome.block_keys({(A, b"k"): FirstOpen(-1, State.WAITING)})
    full.outcome.limit_waiting({A: 1})
    assert dead_letters(full) == [(0, State.WAITING)]
    assert (full.spans, full.outcome.ends[A].failure.attempts) == ((Span(A, 0, 1),), 0)


def test_a_dropped_partition_has_no_waiting_record() -> None:
    batch = keyed(b"k")
    fails(batch, 0)
    batch.drop({A})
    batch.outcome.limit_waiting({A: 1})
    assert batch.outcome.dead_letters == []


def test_a_result_passes_what_is_applied_or_a_dead_letter_and_nothing_after_a_stop() -> None:
    batch = keyed(*[b"k"] * 5)
    batch.outcome.block_keys({})
    set_aside(batch, 1)
    batch.outcome.end_at(stop(A, 3))
    assert offsets(batch.chunks()) == [("a", 0)]
    result = BatchResult.of(batch, Written(1, [1]))
    assert [r.offset for r in result.passed()] == [0, 1], "2 is blocked by its key"
    assert [r.offset for r in result.passed(newest_first=True)] == [1, 0]
    assert (result.position(A), result.spans) == (3, (Span(A, 0, 3),))


# -- dropping -----------------------------------------------------------------------------------------------


def test_a_dropped_partition_leaves_rows_and_offsets_alike() -> None:
    batch, _ = opened(chunk((A, 0, 2), (B, 0, 2)), chunk((B, 2, 3)))
    batch.outcome.end_at(stop(A, 1))
    batch.drop({A})
    assert batch.buffer.records == 2
    assert offsets(batch.chunks()) == [("b", 0), ("b", 1), ("b", 2)]
    assert batch.buffer.records == 3
    assert batch.spans == (Span(B, 0, 3),)
    assert batch.outcome.ends == {}


def test_i4_a_dropped_partition_leaves_no_dead_letter() -> None:
    """Its records are read again from the stored position: those that fail then become dead letters."""
    batch = keyed(b"k", b"k")
    set_aside(batch, 1)
    batch.drop({A})
    assert batch.outcome.dead_letters == []


def test_what_is_read_of_a_dropped_partition_later_is_applied_and_advanced() -> None:
    """A failover put A back at 4: it is sought there while the batch of B is still open."""
    batch, _ = opened(chunk((A, 10, 12), (B, 0, 1)), chunk((A, 4, 6), (B, 1, 2)))
    batch.drop({A})
    assert offsets(batch.chunks()) == [("b", 0), ("a", 4), ("a", 5), ("b", 1)]
    assert set(batch.spans) == {Span(A, 4, 6), Span(B, 0, 2)}, "never an offset without its records (I4)"


def test_when_everything_is_dropped_nothing_is_left() -> None:
    batch, _ = opened(chunk((A, 0, 2)))
    batch.drop({A})
    assert (batch.buffer.reads, moves(batch.buffer, batch.outcome), left(batch)) == ({}, [], [])


# -- the chain ----------------------------------------------------------------------------------------------


def test_a_missing_chunk_is_refused_and_what_comes_after_it_is_not_applied() -> None:
    batch, _ = opened(chunk((A, 0, 2)), chunk((A, 3, 5)))
    with pytest.raises(Fenced, match="a chunk of a/0 is missing between 2 and 3"):
        list(batch.chunks())
    assert left(batch) == [("a", 0), ("a", 1)]
    assert batch.spans == (Span(A, 0, 2),)


def test_chunks_of_two_claims_do_not_chain() -> None:
    other: Chunk[RawRecord] = Chunk([], {A: read_of(A, 2, 3, token=uuid4())})
    with pytest.raises(Fenced, match="a/0 was claimed again between the chunk up to 2 and the one from 2"):
        chain([chunk((A, 0, 2)), other])


def test_only_what_settle_returned_chains() -> None:
    with pytest.raises(ConfigError, match=r"pass the chunks that accept_poll\(\) returned, not a list"):
        chain([[]])  # type: ignore[list-item]


def test_chain_leaves_the_chunks_as_they_are() -> None:
    first, second = chunk((A, 0, 2)), chunk((A, 2, 5))
    joined = chain([first, second])
    assert (joined[A].start, joined[A].end) == (0, 5)
    assert (first.reads[A].end, second.reads[A].start) == (2, 2)


def test_a_chunk_is_a_sequence() -> None:
    some = chunk((A, 0, 3))
    assert len(some) == 3
    assert some[1].offset == 1
    assert [r.offset for r in some[1:]] == [1, 2]
    assert [r.offset for r in some] == [0, 1, 2]


Steps = list[tuple[str, Partition, int]]


@given(
    st.lists(
        st.tuples(st.sampled_from(["draw", "cut", "drop"]), st.sampled_from([A, B]), st.integers(1, 5)), max_size=30
    )
)
def test_whatever_happens_the_offsets_cover_exactly_the_records(steps: Steps) -> None:
    """I3 and I4 as a property: each moved span holds all its records, and no record lies outside of a span."""
    read_positions = {A: 0, B: 0}
    queue: list[Chunk[RawRecord]] = []
    batch = OpenBatch(Buffer(chunk((A, 0, 1)), lambda: queue.pop(0) if queue else None, lambda *_: Answer(), Limits()))
    read_positions[A] = 1
    reading = batch.chunks()
    next(reading)
    for step, partition, number in steps:
        if step == "draw":
            end = read_positions[partition] + number
            queue.append(chunk((partition, read_positions[partition], end)))
            read_positions[partition] = end
            next(reading)
        elif step == "cut":
            batch.outcome.end_at(stop(partition, max(0, read_positions[partition] - number)))
        else:
            batch.drop({partition})
            read_positions[partition] += number  # wherever the ledger says
            reading = batch.chunks()
            for _ in range(len(list(batch.buffer.replay()))):
                next(reading)
    applied = sorted(left(batch))
    covered = sorted((s.partition.topic, o) for s in batch.spans for o in range(s.start, s.end))
    assert applied == covered


def test_a_record_that_is_held_and_cannot_be_read_whole_says_so() -> None:
    """I4: held with an empty list in the place of its headers, it must not look as if it could be replayed."""
    record = raw(b"v", topic="a", offset=1, key=b"k")
    chunk = Chunk([record], {A: read_of(A, 1, 2)}, [(record, Unreadable(record, ValueError("invalid start byte")))])
    batch, _ = opened(chunk)
    batch.outcome.block_keys(dead({(A, b"k"): 0}))
    assert not batch.admits(record)
    (aside,) = batch.outcome.dead_letters
    assert (aside.state, aside.failure.cause) == (State.BLOCKED, Cause.DECODE)
    assert aside.failure.error == "Unreadable: its headers cannot be read: invalid start byte"


def test_a_closed_batch_goes_with_its_last_user_and_waits_for_no_collector() -> None:
    """Its records are many megabytes, and few of them are counted by the collector: it would come late."""

    def gone() -> weakref.ref[Buffer]:
        def draw() -> None:
            assert buffer.room

        buffer = Buffer(chunk((A, 0, 1)), draw, lambda *_: Answer(), Limits())
        assert len(list(buffer.chunks())) == 1
        return weakref.ref(buffer)

    gc.disable()
    try:
        assert gone()() is None
    finally:
        gc.enable()


# -- a small batch -------------------------------------------------------------------------------------------------

MUCH = 1 << 20  # bytes


def test_a_small_batch_asks_for_the_topics_ids_after_its_last_read() -> None:
    """I4: what is read after the question may be of another topic; a closed batch draws nothing more."""
    first, last = chunk((A, 0, 2)), chunk((B, 0, 1))
    batch, source = opened(first, last, None, chunk((A, 2, 3)))
    drawn: list[int] = []
    draw = batch.buffer._draw

    def count() -> Chunk[RawRecord] | None:
        assert source.asked == []
        drawn.append(1)
        return draw()

    batch.buffer._draw = count
    assert batch.closes_within(5, MUCH)
    assert source.asked == [{"a", "b"}]
    assert source.read_by == [last.read_by]
    assert last.read_by > first.read_by
    assert len(drawn) == 2
    assert [len(records) for records in batch.chunks()] == [2, 1]
    assert len(source.left) == 1


def test_a_batch_is_small_up_to_its_last_record() -> None:
    """One record more is drawn into it, and leaves it open: it is applied while more are drawn."""
    batch, source = opened(chunk((A, 0, 3)), chunk((A, 3, 6)), chunk((A, 6, 7)))
    assert not batch.closes_within(5, MUCH)
    assert source.asked == []
    assert sum(map(len, batch.chunks())) == 7
    full, source = opened(chunk((A, 0, 3)), chunk((A, 3, 6)), batch_records=3)
    assert full.closes_within(5, MUCH)
    assert len(source.left) == 1


def test_a_batch_of_large_records_is_not_small() -> None:
    """They are streamed: the server would hold one statement's values all at once."""
    size = sum(len(message.value or b"") + len(message.key or b"") for message in chunk((A, 0, 3)).messages)
    batch, source = opened(chunk((A, 0, 3)), None)
    assert not batch.closes_within(5, size - 1)
    assert source.asked == []
    assert batch.closes_within(5, size)


@pytest.mark.parametrize("why", ["single", "suspects", "tried", "stopped", "unreadable"])
def test_a_batch_with_more_to_store_is_not_small(why: str) -> None:
    batch, _ = opened(chunk((A, 0, 3)))
    if why == "single":
        batch.is_single = True
    elif why == "suspects":
        batch.suspects = SuspectRange(9, 1)
    elif why == "tried":
        batch.outcome.tries = {(A, 0): 1}
    elif why == "stopped":
        batch.outcome.end_at(stop(A, 1))
    else:
        batch.buffer.unreadable[A, 1] = ValueError("headers")
    assert not batch.closes_within(5, MUCH)
