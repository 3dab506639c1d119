"""Dead letters in the database: nothing of a record is lost, none is there twice, and one decision is made of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, text

from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.dead_letters import DeadLetter, DeadLetters, Where
from seekpoint.ledger.tables import admin_action, in_schema
from seekpoint.ledger.tables import dead_letter as dead_letter_table
from seekpoint.pipeline.policy import Limits
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State
from support.ledger_worker import LedgerWorker, backend, wait_until_blocked
from support.round_trips import trips
from support.service import driver

FAILURE = Failure(Cause.HANDLER, "ValueError: no", "Traceback ...", None, 3)


class DeadLetterWorker(LedgerWorker):
    """A worker that dead-letters records."""

    @property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self.ledger)

    def park(self, *asides: NewDeadLetter, number: int = 0, version: int = 1) -> None:
        """Dead-letter these, and pass them: one transaction."""
        end = max(aside.record.offset for aside in asides) + 1
        with self.ledger.engine.begin() as tx:
            transaction = self.hold(tx)
            self.dead_letters.insert(tx, asides, {self.topic: self.topic_id}, version)
            ends = {n: max(end, c.next_offset) for n, c in self.claims.items() if n == number}
            moves = [self.move(n, end) for n, end in ends.items() if end > self.claims[n].next_offset]
            moved = self.ledger.advance(tx, moves, transaction)
        self.accept(moved)

    def dead_lettered(self, new: NewDeadLetter) -> DeadLetter:
        """Dead-letter this record; returns the only dead letter that there is then."""
        self.park(new)
        [dead_letter] = self.all()
        return dead_letter

    def first_of_key(self, dead_letter: DeadLetter) -> int | None:
        """The offset of the first that is open of its key."""
        with self.ledger.engine.begin() as tx:
            return self.dead_letters.first_open_of_key(tx, dead_letter)

    def rewind(self, to: int, number: int = 0) -> None:
        self.ledger.reset_offset(self.topic, number, to, log=None, reason="look again", actor="alice")
        self.claim(number)

    def commit_nothing(self, number: int) -> None:
        """Hold, and no more."""
        with self.ledger.engine.begin() as tx:
            self.hold(tx, number)

    def all(
        self, *, limit: int = 100, after: DeadLetter | None = None, with_values: bool = True, **conditions: Any
    ) -> Sequence[DeadLetter]:
        if conditions.keys() & {"partition", "from_offset", "to_offset"}:
            conditions.setdefault("topic", self.topic)
        where = Where(**{"states": tuple(State), **conditions})
        return self.dead_letters.list(where, limit=limit, after=after, with_values=with_values)

    def close(self, dead_letter_id: int, state: State = State.DISCARDED) -> None:
        with self.ledger.engine.begin() as tx:
            self.dead_letters.close(tx, self.dead_letters.lock(tx, dead_letter_id), state, "alice", "a test")


NewDeadLetterWorker = Callable[..., DeadLetterWorker]


@pytest.fixture
def new_worker(seekpoint_engine: Engine, seekpoint_schema: str) -> NewDeadLetterWorker:
    """``new_worker(**options of GroupLedger)``: a worker of the group ``g`` that holds partitions 0 and 1 of ``t``."""
    topic_id = uuid4()

    def make(group: str = "g", *, claim: bool = True, **options: Any) -> DeadLetterWorker:
        worker = DeadLetterWorker(
            GroupLedger(seekpoint_engine, group, schema=seekpoint_schema, **options), topic_id=topic_id
        )
        if claim:
            worker.claim(0, 1)
        return worker

    return make


def aside(
    offset: int,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    *,
    partition: int = 0,
    state: State = State.DEAD_LETTERED,
    failure: Failure = FAILURE,
    **more: Any,
) -> NewDeadLetter:
    return NewDeadLetter(RawRecord("t", partition, offset, 1_700_000_000_000, key, value, **more), failure, state)


def dead_lettered(
    new_worker: NewDeadLetterWorker, offset: int, *args: Any, **options: Any
) -> tuple[DeadLetterWorker, DeadLetter]:
    """A worker that has dead-lettered one record, and its dead letter."""
    worker = new_worker()
    return worker, worker.dead_lettered(aside(offset, *args, **options))


# -- nothing of a record is lost ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        RawRecord("t", 0, 0, None, None, None),
        RawRecord("t", 0, 2**62, -1, b"", b"", (), 2**31 - 1),
        RawRecord("t", 0, 7, 2**62, b"\0\xff", b"\xfe\0", (("a", b"1"), ("a", None), ("", b""), ("a", b"1"))),
        RawRecord(
            "t", 0, 7, 0, b"k" * 20_000, None, (("n\0ul", b"\0"), ("bytes \udcff\udc80", None), ("ü" * 9000, b""))
        ),
        RawRecord("t", 0, 7, 0, b"k", bytes(range(256)) * 40_000),
    ],
    ids=["nulls", "empty", "duplicates", "odd headers and a key too long for an index", "10 MB"],
)
def test_a_record_comes_back_as_it_was(new_worker: NewDeadLetterWorker, record: RawRecord) -> None:
    """I4: key, value, headers, time and epoch, byte for byte."""
    worker = new_worker()
    with worker.ledger.engine.begin() as tx:
        worker.dead_letters.insert(tx, [NewDeadLetter(record, FAILURE, State.DEAD_LETTERED)], {"t": worker.topic_id}, 4)
    [listed] = worker.all()
    assert listed == worker.dead_letters.get(listed.id)
    assert listed.record == record
    assert (listed.size, listed.topic_id) == (None if record.value is None else len(record.value), worker.topic_id)
    assert listed.failure == FAILURE
    assert (listed.version, listed.dead_lettered_by, listed.replays) == (4, worker.ledger.owner, 0)
    assert (listed.topic_partition, listed.state, listed.is_open) == (Partition("t", 0), State.DEAD_LETTERED, True)
    assert (listed.closed_at, listed.closed_by, listed.replayed_at, listed.replay_error) == (None, None, None, None)


@given(
    names=st.lists(st.binary(max_size=20), max_size=5),
    values=st.lists(st.none() | st.binary(max_size=20), min_size=5, max_size=5),
    error=st.text(st.characters(exclude_categories=[])),
)
@pytest.mark.long
@settings(max_examples=40)
def test_any_header_comes_back_and_any_error_is_stored(
    new_worker: NewDeadLetterWorker, names: list[bytes], values: list[bytes | None], error: str
) -> None:
    """I4: whatever bytes a producer took for a header's name; whatever an exception says of it."""
    worker = new_worker()
    headers = tuple(
        (name.decode("utf-8", "surrogateescape"), value) for name, value in zip(names, values, strict=False)
    )
    failure = replace(FAILURE, error=error, traceback=error)
    worker.rewind(0)
    dead_letter = worker.dead_lettered(aside(0, headers=headers, failure=failure))
    assert dead_letter.headers == headers
    stored = error.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
    assert (dead_letter.error, dead_letter.traceback) == (stored, stored)


def test_a_thousand_are_dead_lettered_at_once(new_worker: NewDeadLetterWorker) -> None:
    """I1: in one round trip; those of one partition in the order of their offsets."""
    worker = new_worker()
    many = [aside(n, b"%d" % n, b"v" * 200, headers=(("a", b"1"),) * (n % 4)) for n in range(1_000)]
    with worker.ledger.engine.begin() as tx:
        transaction = worker.hold(tx)
        with trips(driver(tx)) as counted:
            worker.dead_letters.insert(tx, list(reversed(many)), {worker.topic: worker.topic_id}, 1)
        worker.ledger.advance(tx, [worker.move(0, 1_000)], transaction)
    assert counted.count == 1
    parked = worker.all(limit=2_000)
    assert [dead_letter.record for dead_letter in parked] == [new.record for new in many]
    assert [dead_letter.id for dead_letter in parked] == sorted(dead_letter.id for dead_letter in parked)


def test_an_abort_leaves_no_dead_letter(new_worker: NewDeadLetterWorker) -> None:
    """I1: dead letters and offsets become visible together or not at all."""
    worker = new_worker()
    with worker.ledger.engine.connect() as tx:
        worker.dead_letters.insert(tx, [aside(0)], {"t": worker.topic_id}, 1)
        assert worker.all() == []
        tx.rollback()
    assert worker.all() == []
    worker.park(aside(0))
    assert worker.positions()[0] == 1
    assert len(worker.all()) == 1


def test_none_is_no_statement(new_worker: NewDeadLetterWorker) -> None:
    """I1: a batch without failures costs nothing."""
    worker = new_worker()
    with worker.ledger.engine.connect() as tx:
        worker.dead_letters.insert(tx, [], {}, 1)
        assert not tx.in_transaction()


def test_a_skipped_record_leaves_a_row_without_its_value(new_worker: NewDeadLetterWorker) -> None:
    """I4: who was skipped, and why; what it said is not kept."""
    worker, dead_letter = dead_lettered(new_worker, 0, b"k", b"secret", state=State.SKIPPED)
    assert (dead_letter.state, dead_letter.key, dead_letter.value, dead_letter.is_open) == (
        State.SKIPPED,
        b"k",
        None,
        False,
    )
    with pytest.raises(
        ConfigError, match=r"dead letter \d+ \(t/0 offset 0\) has no complete record: its value was not kept"
    ):
        _ = dead_letter.record
    assert worker.dead_letters.count_open() == {}


def test_a_value_that_was_not_asked_for_is_no_null(new_worker: NewDeadLetterWorker) -> None:
    """I4: a list without values does not make a tombstone of a record."""
    worker = new_worker()
    worker.park(aside(0, value=b"12345"), aside(1, value=None))
    full, empty = worker.all(with_values=False)
    assert (full.value, full.size, empty.value, empty.size) == (None, 5, None, None)
    assert empty.record.value is None
    with pytest.raises(ConfigError, match=r"its value was not loaded: get\(id\) loads it"):
        _ = full.record


# -- one dead letter per record -------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [State.DEAD_LETTERED, State.SKIPPED, State.DISCARDED, State.REPLAYED])
def test_a_record_that_fails_again_opens_its_dead_letter_again(new_worker: NewDeadLetterWorker, before: State) -> None:
    """I4: after a rewind what counts is the new reading; the row is the same."""
    worker = new_worker()
    first = worker.dead_lettered(
        aside(0, value=b"v", state=State.SKIPPED if before is State.SKIPPED else State.DEAD_LETTERED)
    )
    if before in {State.DISCARDED, State.REPLAYED}:
        worker.close(first.id, before)
    worker.rewind(0)
    assert worker.dead_letters.get(first.id).state is State.SUPERSEDED
    again = Failure(Cause.DATABASE, "UniqueViolation: twice", None, "23505", 1)
    worker.park(aside(0, value=b"v", failure=again), version=2)
    [dead_letter] = worker.all()
    assert (dead_letter.id, dead_letter.state, dead_letter.failure, dead_letter.version) == (
        first.id,
        State.DEAD_LETTERED,
        again,
        2,
    )
    assert dead_letter.record.value == b"v"
    assert dead_letter.dead_lettered_at > first.dead_lettered_at
    assert (dead_letter.closed_at, dead_letter.closed_by, dead_letter.closed_reason) == (None, None, None)
    assert (dead_letter.replays, dead_letter.replayed_at) == (0, None)


def test_a_move_supersedes_what_will_be_read_again(new_worker: NewDeadLetterWorker) -> None:
    """I4, I5: dead letters at or past the new position, of this partition and this topic id, in its transaction."""
    worker = new_worker()
    worker.park(aside(0), aside(1, state=State.SKIPPED), aside(2, state=State.BLOCKED), aside(3))
    worker.park(aside(2, partition=1), number=1)
    worker.close(worker.all(from_offset=3)[0].id, State.REPLAYED)
    worker.rewind(1)
    states = {(dead_letter.partition, dead_letter.offset): dead_letter.state for dead_letter in worker.all()}
    assert states == {
        (0, 0): State.DEAD_LETTERED,
        (0, 1): State.SUPERSEDED,
        (0, 2): State.SUPERSEDED,
        (0, 3): State.SUPERSEDED,
        (1, 2): State.DEAD_LETTERED,
    }
    [closed] = worker.all(from_offset=3)
    assert (closed.closed_by, closed.closed_reason, closed.replays) == ("alice", "reset to 1: look again", 1)
    assert closed.closed_at is not None
    with pytest.raises(Fenced, match="is no longer open"):
        worker.close(worker.all(from_offset=2, partition=0)[0].id)


def test_a_reset_forward_and_a_recreated_topic_supersede_nothing(new_worker: NewDeadLetterWorker) -> None:
    """I4: what was passed stays passed; offsets of an earlier topic come before and after nothing."""
    worker = new_worker()
    worker.park(aside(4))
    worker.ledger.reset_offset("t", 0, 9, log=None, reason="over it")
    assert [dead_letter.state for dead_letter in worker.all()] == [State.DEAD_LETTERED]
    worker.ledger.reset_offset("t", 0, 0, log=None, reason="recreated", topic_id=uuid4())
    assert [dead_letter.state for dead_letter in worker.all()] == [State.DEAD_LETTERED]


# -- keys that are held ---------------------------------------------------------------------------------------------


def open_keys(worker: DeadLetterWorker, *numbers: int) -> dict[tuple[Partition, bytes], int]:
    with worker.ledger.engine.begin() as tx:
        keys = worker.dead_letters.open_keys(tx, map(worker.topic_partition, numbers or (0, 1)))
        return {key: first.offset for key, first in keys.items()}


def test_open_keys_are_those_of_the_partitions_that_are_asked_for(new_worker: NewDeadLetterWorker) -> None:
    """I4: the first open offset of each key; neither null keys, nor what is closed, nor another group's."""
    worker, stranger = new_worker(), new_worker("other")
    stranger.park(aside(0, b"theirs"))
    worker.park(
        aside(1, b"a"),
        aside(2, b"a", state=State.BLOCKED),
        aside(3, b"b", state=State.SKIPPED),
        aside(4, None),
        aside(5, b""),
    )
    worker.park(aside(0, b"a", partition=1), number=1)
    zero, first = worker.topic_partition(0), worker.topic_partition(1)
    assert open_keys(worker) == {(zero, b"a"): 1, (zero, b""): 5, (first, b"a"): 0}
    assert open_keys(worker, 1) == {(first, b"a"): 0}
    worker.close(worker.all(partition=0, from_offset=1)[0].id)
    assert open_keys(worker, 0) == {(zero, b"a"): 2, (zero, b""): 5}


@pytest.mark.parametrize("topic_id", [UUID(int=1), UUID(int=2**128 - 1)], ids=["before the old id", "after it"])
def test_dead_letters_of_an_earlier_topic_block_nothing(new_worker: NewDeadLetterWorker, topic_id: UUID) -> None:
    """I4: their offsets come before nothing of the new one, wherever the index has its id."""
    worker = new_worker()
    worker.park(aside(9, b"a"))
    worker.ledger.reset_offset("t", 0, 0, log=None, reason="recreated", topic_id=topic_id)
    assert open_keys(worker) == {}
    assert worker.dead_letters.count_open() == {worker.topic_partition(0): 1}


def test_the_first_of_a_key_is_found(new_worker: NewDeadLetterWorker) -> None:
    """I4: which one may be replayed first."""
    worker = new_worker()
    worker.park(aside(0, b"b"), aside(1, b"a"), aside(2, b"a", state=State.BLOCKED), aside(3, None))
    worker.park(aside(0, b"a", partition=1), number=1)
    _, first, second, keyless, other = worker.all()
    assert [worker.first_of_key(record) for record in (first, second, keyless, other)] == [1, 1, None, 0]
    worker.close(first.id)
    assert worker.first_of_key(second) == 2
    worker.close(second.id)
    assert worker.first_of_key(second) is None


def test_dead_letters_of_others_are_not_the_first_of_a_key(new_worker: NewDeadLetterWorker) -> None:
    """I4: another group's, and those of an earlier topic of this name, come before nothing."""
    worker, other = new_worker(), new_worker("h")
    other.park(aside(0))
    early = worker.dead_lettered(aside(1))
    assert worker.first_of_key(early) == 1
    worker.topic_id = uuid4()
    worker.ledger.reset_offset("t", 0, 0, log=None, reason="recreated", topic_id=worker.topic_id)
    worker.claim(0)
    worker.park(aside(5))
    (late,) = worker.all(from_offset=5)
    assert worker.first_of_key(late) == 5


def test_a_move_supersedes_nothing_of_another_group(new_worker: NewDeadLetterWorker) -> None:
    """I4: the other group does not read the records again."""
    worker, other = new_worker(), new_worker("h")
    for closing in (worker, other):
        closing.park(aside(3))
    worker.rewind(0)
    assert [dead_letter.state for dead_letter in (*worker.all(), *other.all())] == [
        State.SUPERSEDED,
        State.DEAD_LETTERED,
    ]


# -- for people -----------------------------------------------------------------------------------------------------


def test_lists_are_ordered_filtered_and_paged(new_worker: NewDeadLetterWorker) -> None:
    """I4: every condition narrows; pages follow one another without gap or repetition."""
    worker = new_worker()
    worker.park(*(aside(n, failure=replace(FAILURE, error=f"ValueError: {n}% of_it")) for n in range(4)))
    held = replace(FAILURE, cause=Cause.BLOCKED)
    worker.park(*(aside(n, partition=1, state=State.BLOCKED, failure=held) for n in range(3)), number=1)
    everything = worker.all()

    def places(**conditions: Any) -> list[tuple[int, int]]:
        return [(dead_letter.partition, dead_letter.offset) for dead_letter in worker.all(**conditions)]

    assert places() == [*((0, n) for n in range(4)), *((1, n) for n in range(3))]
    assert places(partition=1, from_offset=1) == [(1, 1), (1, 2)]
    assert places(topic="t", to_offset=1) == [(0, 0), (1, 0)]
    assert places(topic="u") == []
    assert places(states=[State.BLOCKED], limit=1) == [(1, 0)]
    assert places(states=[State.BLOCKED, State.SKIPPED]) == places(cause=Cause.BLOCKED) == [(1, 0), (1, 1), (1, 2)]
    assert places(states=[]) == []
    assert places(error="2% of_") == [(0, 2)]
    assert places(error="2%of") == []
    latest = max(dead_letter.dead_lettered_at for dead_letter in everything)
    assert places(since=latest + timedelta(microseconds=1)) == []
    assert (1, 2) in places(since=latest)
    pages: list[DeadLetter] = []
    while page := worker.all(limit=3, after=pages[-1] if pages else None):
        pages += page
    assert pages == list(everything)
    assert worker.dead_letters.count_open() == {worker.topic_partition(0): 4, worker.topic_partition(1): 3}


def test_a_page_begins_after_a_dead_letter_that_was_deleted_meanwhile(new_worker: NewDeadLetterWorker) -> None:
    """I4: an operator who prunes takes from a list, an export or a discard only what is deleted."""
    worker = new_worker()
    worker.park(*(aside(n) for n in range(6)))
    first = worker.all(limit=3)
    with worker.ledger.engine.begin() as tx:
        gone = delete(dead_letter_table).where(dead_letter_table.c.id == first[-1].id)
        assert tx.execute(gone, execution_options=in_schema(worker.ledger.schema)).rowcount == 1
    assert [dead_letter.offset for dead_letter in worker.all(limit=3, after=first[-1])] == [3, 4, 5]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"error": "a\0"}, r"have them escaped: 'a\\x00'"),
        ({"topic": "\udc80"}, "no dead letter has this"),
        (
            {"topic": "t", "partition": 2**31},
            "partition=2147483648: no dead letter has this number, the largest is 2147483647",
        ),
        ({"topic": "t", "from_offset": 2**63}, "from_offset=9223372036854775808"),
        ({"topic": "t", "to_offset": -(2**63)}, "to_offset=-9223372036854775808"),
    ],
)
def test_what_postgres_cannot_be_asked_is_refused(
    new_worker: NewDeadLetterWorker, condition: dict[str, Any], message: str
) -> None:
    """A sentence that says what to correct, and no error of the database."""
    with pytest.raises(ConfigError) as refused:
        new_worker(claim=False).all(**condition)
    assert message in str(refused.value)


@pytest.mark.parametrize("dead_letter_id", [2**63, -(2**63), 2**200])
def test_no_dead_letter_has_an_id_beyond_its_column(new_worker: NewDeadLetterWorker, dead_letter_id: int) -> None:
    """Like any other id that the group does not have."""
    worker = new_worker(claim=False)
    with pytest.raises(ConfigError, match=f"has no dead letter {dead_letter_id}"):
        worker.dead_letters.get(dead_letter_id)
    with pytest.raises(ConfigError, match=f"has no dead letter {dead_letter_id}"):
        worker.close(dead_letter_id)


def test_any_actor_and_reason_can_be_kept(new_worker: NewDeadLetterWorker) -> None:
    """I5: whatever people type; what Postgres cannot hold is written out."""
    worker = new_worker()
    dead_letter = worker.dead_lettered(aside(0))
    with worker.ledger.engine.begin() as tx:
        worker.dead_letters.close(tx, dead_letter, State.DISCARDED, "al\0ice", "why \udc80")
    closed = worker.dead_letters.get(dead_letter.id)
    assert (closed.closed_by, closed.closed_reason) == ("al\\x00ice", "why \\udc80")


def test_another_groups_dead_letters_are_not_ours(new_worker: NewDeadLetterWorker) -> None:
    """I4: groups do not see each other."""
    here, there = new_worker("here"), new_worker("there")
    there.park(aside(0))
    [dead_letter] = there.all()
    assert here.all() == []
    assert here.dead_letters.count_open() == {}
    with pytest.raises(ConfigError, match=rf"group 'here' has no dead letter {dead_letter.id}"):
        here.dead_letters.get(dead_letter.id)
    with pytest.raises(ConfigError, match="has no dead letter"):
        here.close(dead_letter.id)
    here.park(aside(0))
    assert len(there.all()) == 1


# -- one decision ---------------------------------------------------------------------------------------------------


def actions(worker: DeadLetterWorker) -> list[tuple[Any, ...]]:
    a = admin_action.c
    query = admin_action.select().with_only_columns(
        a.action, a.topic, a.partition, a.from_offset, a.to_offset, a.actor, a.reason
    )
    with worker.ledger.engine.connect() as tx:
        return [
            tuple(row) for row in tx.execute(query.order_by(a.id), execution_options=in_schema(worker.ledger.schema))
        ]


@pytest.mark.parametrize(("state", "word"), [(State.REPLAYED, "replay"), (State.DISCARDED, "discard")])
def test_closing_says_who_and_why(new_worker: NewDeadLetterWorker, state: State, word: str) -> None:
    """I5: in the dead letter and in admin_action, in the transaction of whatever was done with it."""
    worker, dead_letter = dead_lettered(new_worker, 7)
    worker.close(dead_letter.id, state)
    now = worker.dead_letters.get(dead_letter.id)
    assert (now.state, now.closed_by, now.closed_reason, now.is_open) == (state, "alice", "a test", False)
    assert now.closed_at is not None
    assert (now.replays, now.replayed_at is not None) == ((1, True) if state is State.REPLAYED else (0, False))
    assert (now.error, now.value) == (dead_letter.error, dead_letter.value), "what happened stays on record"
    assert actions(worker) == [(word, "t", 0, 7, 8, "alice", f"dead letter {dead_letter.id}: a test")]


@pytest.mark.parametrize("state", [State.DEAD_LETTERED, State.BLOCKED, State.SKIPPED])
def test_open_is_no_way_of_closing(new_worker: NewDeadLetterWorker, state: State) -> None:
    """I4: a dead letter is closed as something that ends it."""
    worker, dead_letter = dead_lettered(new_worker, 0)
    with pytest.raises(ConfigError, match=f"not as {state}"):
        worker.close(dead_letter.id, state)
    assert worker.dead_letters.get(dead_letter.id) == dead_letter


def test_a_replay_that_fails_keeps_the_dead_letter_with_both_errors(new_worker: NewDeadLetterWorker) -> None:
    """I4: the new error beside the old one; the dead letter stays open."""
    worker, dead_letter = dead_lettered(new_worker, 0)
    for n in (1, 2):
        with worker.ledger.engine.begin() as tx:
            locked = worker.dead_letters.lock(tx, dead_letter.id)
            worker.dead_letters.failed_again(tx, locked, Failure(Cause.ROW, f"KeyError: {n}\0", f"trace\0 {n}"))
    now = worker.dead_letters.get(dead_letter.id)
    assert (now.state, now.error, now.traceback) == (State.DEAD_LETTERED, dead_letter.error, dead_letter.traceback)
    assert (now.replay_error, now.replay_traceback, now.replays) == ("KeyError: 2\\x00", "trace\\x00 2", 2)
    assert now.replayed_at is not None
    worker.close(dead_letter.id, State.REPLAYED)
    assert worker.dead_letters.get(dead_letter.id).replays == 3
    with pytest.raises(Fenced), worker.ledger.engine.begin() as tx:
        worker.dead_letters.failed_again(tx, locked, FAILURE)


def test_two_operators_decide_once(
    new_worker: NewDeadLetterWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I4: the second waits for the first, sees what it did, and is refused."""
    worker, dead_letter = dead_lettered(new_worker, 0)
    with seekpoint_engine.begin() as tx:
        locked = worker.dead_letters.lock(tx, dead_letter.id)
        second = threads.submit(worker.close, dead_letter.id, State.REPLAYED)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
        worker.dead_letters.close(tx, locked, State.REPLAYED, "alice", "first")
    with pytest.raises(
        Fenced, match=rf"dead letter {dead_letter.id} \(t/0 offset 0\) is no longer open: fetch the dead letter again"
    ):
        second.result()
    assert (worker.dead_letters.get(dead_letter.id).closed_reason, len(actions(worker))) == ("first", 1)


def test_a_replay_waits_for_the_batch_in_hand_and_blocks_the_next_one(
    new_worker: NewDeadLetterWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I2: a dead letter and the records after it are never applied at the same time; other partitions are."""
    worker, dead_letter = dead_lettered(new_worker, 0)

    def lock() -> DeadLetter:
        with seekpoint_engine.begin() as mine:
            return worker.dead_letters.lock(mine, dead_letter.id)

    with seekpoint_engine.begin() as tx:
        worker.hold(tx, 0)
        waiting = threads.submit(lock)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
    assert waiting.result() == dead_letter
    with seekpoint_engine.begin() as tx:
        worker.dead_letters.lock(tx, dead_letter.id)
        batch = threads.submit(worker.commit_nothing, 0)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
        worker.commit_nothing(1)
    batch.result()


def test_a_rewind_waits_for_a_replay(
    new_worker: NewDeadLetterWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I4: a dead letter that a reset supersedes is seen as such by the next replay: the worker applies it, once."""
    worker, dead_letter = dead_lettered(new_worker, 0)
    other = new_worker(claim=False, limits=Limits(transaction_age=60.0))
    with other.ledger.begin() as tx:
        other.dead_letters.lock(tx.connection, dead_letter.id)
        moving = threads.submit(worker.ledger.reset_offset, "t", 0, 0, log=None, reason="rewind")
        wait_until_blocked(seekpoint_engine, by=backend(tx.connection))
    moving.result()
    with seekpoint_engine.begin() as again:
        assert other.dead_letters.lock(again, dead_letter.id).state is State.SUPERSEDED


def test_a_pause_and_an_insert_do_not_wait_for_each_other(
    new_worker: NewDeadLetterWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I1, I5: the pause has the group's row and waits for the offsets; a dead letter's foreign key needs that row."""
    worker = new_worker()
    with seekpoint_engine.begin() as tx:
        transaction = worker.hold(tx)
        pausing = threads.submit(worker.ledger.pause, reason="index rebuild")
        wait_until_blocked(seekpoint_engine, by=backend(tx))
        tx.execute(text("SET LOCAL lock_timeout = '5s'"))
        worker.dead_letters.insert(tx, [aside(0)], {"t": worker.topic_id}, 1)
        worker.ledger.advance(tx, [worker.move(0, 1)], transaction)
    pausing.result()
    assert len(worker.all()) == 1
