"""Reading one's own write: the wait ends when the record was passed, says what became of it, and holds nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, create_engine, event, text

from seekpoint import Partition
from seekpoint.cli.status import RetryStatus
from seekpoint.errors import ConfigError, NotApplied, OffsetLost, SeekpointError
from seekpoint.kafka.offset_loss import unknown
from seekpoint.ledger import GroupLedger, Passed, wait
from seekpoint.ledger.claim import Attempt
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import WAIT
from seekpoint.ledger.tables import dead_letter, in_schema
from seekpoint.records import State
from support.fixtures import NewEngine
from support.ledger_worker import LedgerWorker, make_table, scalar
from support.plans import scans
from support.worker_group import WorkerGroup

HERE = Partition("t", 0)


@pytest.fixture
def worker(seekpoint_engine: Engine, seekpoint_schema: str) -> LedgerWorker:
    """A worker of the group ``g``, which has claimed ``t/0`` and is at offset 5."""
    make_table(seekpoint_engine, seekpoint_schema)
    worker = LedgerWorker(GroupLedger(seekpoint_engine, "g", schema=seekpoint_schema))
    worker.claim(0)
    worker.commit({0: 5})
    return worker


class Reader:
    """A service that waits, on threads and an engine of its own; ``looks`` counts its statements."""

    def __init__(self, ledger: GroupLedger) -> None:
        self.engine = create_engine(ledger.engine.url, connect_args={"application_name": f"reader {uuid4().hex}"})
        self.ledger = GroupLedger(self.engine, ledger.group, schema=ledger.schema)
        self._news, self.looks = threading.Condition(), 0
        event.listen(self.engine, "after_cursor_execute", self._note)
        self._pool = ThreadPoolExecutor(4)

    def _note(self, *_: Any) -> None:
        with self._news:
            self.looks += 1
            self._news.notify_all()

    def wait(self, offset: int, timeout: float = 20, **more: Any) -> Future[Passed]:
        """Wait on another thread."""
        return self._pool.submit(self.ledger.wait_until_applied, "t", 0, offset, timeout, **more)

    def has_looked(self, more: int = 2) -> None:
        """Until it has looked again, begun after this call."""
        with self._news:
            wanted = self.looks + more
            assert self._news.wait_for(lambda: self.looks >= wanted, 20)

    def close(self) -> None:
        self._pool.shutdown()
        self.engine.dispose()


@pytest.fixture
def reader(worker: LedgerWorker) -> Iterator[Reader]:
    reader = Reader(worker.ledger)
    yield reader
    reader.close()


# -- applied ----------------------------------------------------------------------------------------------------


def test_what_was_passed_is_answered_at_once(worker: LedgerWorker) -> None:
    passed = worker.ledger.wait_until_applied("t", 0, 4, timeout=0)
    assert passed == Passed(HERE, 4, 5)
    assert (passed.applied, passed.state, passed.unread) == (True, None, None)
    assert str(passed) == "t/0: offset 4 was applied"


def test_the_wait_ends_with_the_commit_and_not_before(worker: LedgerWorker, reader: Reader) -> None:
    """I1: rows and offset become visible together, so a reader that has seen the offset sees the rows."""
    waiting = reader.wait(7)
    with worker.ledger.engine.begin() as tx:
        moved = worker.work(tx, {0: 8})
        reader.has_looked()
        assert not waiting.done()
    worker.accept(moved)
    assert waiting.result(20) == Passed(HERE, 7, 8)
    query = f"SELECT count(*) FROM {reader.ledger.schema}.applied WHERE record = 7"
    assert scalar(reader.engine, query) == 1


def test_nothing_is_held_between_two_looks(
    worker: LedgerWorker, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection out of the pool, no transaction at the server; and none ever was: a look is one statement."""
    seen: list[tuple[int, int]] = []
    ours = scalar(reader.engine, "SELECT current_setting('application_name')")
    open_now = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :ours AND xact_start IS NOT NULL"

    def look_around(seconds: float) -> None:
        seen.append((reader.engine.pool.checkedout(), scalar(worker.ledger.engine, open_now, ours=ours)))  # type: ignore[attr-defined]
        if len(seen) == 5:
            worker.commit({0: 6})

    monkeypatch.setattr(wait, "sleep", look_around)
    assert reader.ledger.wait_until_applied("t", 0, 5, timeout=20).applied
    assert seen == [(0, 0)] * 5
    with reader.engine.connect() as connection:  # given back as it was taken
        assert connection.get_isolation_level() == connection.default_isolation_level == "READ COMMITTED"


def test_many_wait_at_once_with_few_connections(worker: LedgerWorker, new_engine: NewEngine) -> None:
    engine = new_engine(worker.ledger.engine.url, pool_size=2, max_overflow=0)
    ledger = GroupLedger(engine, "g", schema=worker.ledger.schema)
    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(ledger.wait_until_applied, "t", 0, 5 + n, 20) for n in range(30)]
        for end in range(6, 36):
            worker.commit({0: end})
        assert [future.result(20).offset for future in waiting] == list(range(5, 35))


def test_the_pause_grows_with_the_time_waited_within_bounds() -> None:
    pauses = [wait.pause(waited / 1000) for waited in range(2000)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (wait.SHORTEST, wait.LONGEST)
    assert all(pause <= max(wait.SHORTEST, wait.SHARE * n / 1000) for n, pause in enumerate(pauses))


def test_a_look_is_a_lookup_by_the_primary_key(worker: LedgerWorker) -> None:
    """However many rows the ledger has."""
    engine, schema = worker.ledger.engine, worker.ledger.schema
    fill = (
        f"INSERT INTO {schema}.partition_offset"
        " (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)"
        " SELECT 'g', 'u', n, gen_random_uuid(), 0, 0, gen_random_uuid(), 1 FROM generate_series(0, 9999) n"
    )
    with engine.begin() as tx:
        tx.execute(text(fill))
        tx.execute(text(f"ANALYZE {schema}.partition_offset"))
    query = WAIT["passed_yet"].in_schema(schema)
    with engine.connect() as tx:
        labels = {"group": "g", "topic": "u", "partition": 77}
        plan = tx.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {query}", labels).scalar_one()[0]["Plan"]
    (read,) = scans(plan, "partition_offset")
    assert (read["Node Type"], read["Index Name"]) == ("Index Scan", "partition_offset_pkey")


# -- passed, and not applied ------------------------------------------------------------------------------------


def bury(worker: LedgerWorker, offset: int, state: State, topic_id: UUID | None = None) -> None:
    """A dead letter in this state."""
    row = {
        "consumer_group": "g",
        "topic": "t",
        "topic_id": topic_id or worker.topic_id,
        "partition": 0,
        "record_offset": offset,
        "header_names": [],
        "header_values": [],
        "state": state.value,
        "cause": "poison",
        "error": "Poison: no",
        "attempts": 1,
        "version": 1,
    }
    with worker.ledger.engine.begin() as tx:
        tx.execute(dead_letter.insert(), row, execution_options=in_schema(worker.ledger.schema))


@pytest.mark.parametrize(
    ("state", "expected", "applied"),
    [
        (State.DEAD_LETTERED, State.DEAD_LETTERED, False),
        (State.BLOCKED, State.BLOCKED, False),
        (State.SKIPPED, State.SKIPPED, False),
        (State.DISCARDED, State.DISCARDED, False),
        (State.REPLAYED, State.REPLAYED, True),
        (State.SUPERSEDED, None, True),  # the position was moved back over it, and it was read again
    ],
)
def test_a_dead_letter_is_answered_by_its_state(
    worker: LedgerWorker, state: State, expected: State | None, applied: bool
) -> None:
    bury(worker, 3, state)
    bury(worker, 2, State.DEAD_LETTERED, topic_id=uuid4())  # of an earlier topic of this name
    passed = worker.ledger.wait_until_applied("t", 0, 3)
    assert (passed.state, passed.applied, passed.unread) == (expected, applied, None)
    assert str(passed).startswith(f"t/0: offset 3 was {expected or 'applied'}")
    assert ("dead letter" in str(passed)) is not applied
    assert worker.ledger.wait_until_applied("t", 0, 2).state is None


def test_a_record_that_was_moved_over_was_not_read(worker: LedgerWorker) -> None:
    """Until the position is moved back, and the record passed by reading it."""
    moved = worker.ledger.reset_offset("t", 0, to=9, log=None, reason="ticket 7", actor="ada", lost="poison")
    passed = worker.ledger.wait_until_applied("t", 0, 6)
    assert (passed.position, passed.state, passed.applied) == (9, None, False)
    assert str(passed) == "t/0: offset 6 was not read: ada reset the position past it (ticket 7)"
    assert worker.ledger.wait_until_applied("t", 0, 4).applied  # read before
    worker.ledger.reset_offset("t", 0, to=6, expected=moved.next_offset, log=None, reason="after all", actor="ada")
    worker.claim(0)
    worker.commit({0: 9})
    assert worker.ledger.wait_until_applied("t", 0, 6).applied
    assert not worker.ledger.wait_until_applied("t", 0, 5).applied  # moved over, and not read since


def test_a_record_before_the_groups_beginning_was_not_read(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    worker = LedgerWorker(GroupLedger(seekpoint_engine, "late", schema=seekpoint_schema))
    worker.claim(0, start={0: 100})
    passed = worker.ledger.wait_until_applied("t", 0, 99)
    assert not passed.applied
    assert str(passed).endswith("was not read: the group started after it, at offset 100")
    worker.ledger.reset_offset("t", 0, to=99, log=None, reason="that one, too")
    worker.claim(0)
    worker_moves_on(worker, 100)
    assert worker.ledger.wait_until_applied("t", 0, 99).applied
    assert not worker.ledger.wait_until_applied("t", 0, 98).applied


def worker_moves_on(worker: LedgerWorker, end: int) -> None:
    worker.accept(worker.ledger.advance_alone([worker.move(0, end)]))


# -- moved, recreated -------------------------------------------------------------------------------------------


def test_a_position_that_was_moved_back_is_waited_for_again(worker: LedgerWorker, reader: Reader) -> None:
    worker.ledger.reset_offset("t", 0, to=2, log=None, reason="again")
    waiting = reader.wait(3)
    reader.has_looked()
    assert not waiting.done()
    worker.claim(0)
    worker_moves_on(worker, 4)
    assert waiting.result(20).applied


def test_a_move_back_between_position_and_fate_is_noticed(
    worker: LedgerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is of one snapshot: "passed" a moment ago is not enough."""
    looks, sleeps = [0], [0]

    def look() -> AbstractContextManager[GroupConnection]:
        looks[0] += 1
        if looks[0] == 2:  # the first one said: passed
            worker.ledger.reset_offset("t", 0, to=2, log=None, reason="again")
        return worker.ledger._plain_read()

    def sleep(seconds: float) -> None:
        sleeps[0] += 1
        worker.claim(0)
        worker_moves_on(worker, 5)

    monkeypatch.setattr(wait, "sleep", sleep)
    assert wait.wait(look, wait.AwaitedRecord(HERE, 4, 20.0)).applied
    # Position and fate twice; then whether the reset was before the group began again.
    assert (looks[0], sleeps[0]) == (5, 1)


def test_a_topic_that_is_recreated_meanwhile_ends_the_wait(worker: LedgerWorker, reader: Reader) -> None:
    """Its offsets are other records': nothing is guessed from them."""
    old, new = worker.topic_id, uuid4()
    waiting = reader.wait(7)
    known = reader.wait(7, topic_id=old)
    reader.has_looked(4)
    worker.ledger.reset_offset("t", 0, to=50, topic_id=new, log=None, reason="adopt")
    for thread in (waiting, known):
        with pytest.raises(NotApplied, match="was recreated meanwhile") as refused:
            thread.result(20)
        assert f"belonged to topic id {old}, now to {new}" in str(refused.value)
        assert f"topic_id=UUID('{new}')" in str(refused.value)


def test_a_known_topic_id_keeps_the_old_offsets_apart(worker: LedgerWorker, reader: Reader) -> None:
    """The stored position is far beyond the offset, and of the topic that is gone."""
    new = uuid4()
    with pytest.raises(NotApplied, match="the topic was recreated; decide where to continue") as late:
        worker.ledger.wait_until_applied("t", 0, 2, timeout=0, topic_id=new)
    assert f"belongs to topic id {worker.topic_id}, the record to {new}" in str(late.value)
    waiting = reader.wait(2, topic_id=new)
    reader.has_looked()
    worker.ledger.reset_offset("t", 0, to=0, topic_id=new, log=None, reason="restart")
    worker.topic_id = new
    worker.claim(0)
    reader.has_looked()
    assert not waiting.done()
    worker_moves_on(worker, 3)
    assert waiting.result(20) == Passed(HERE, 2, 3)


@pytest.mark.parametrize("to", [2, 4, 50], ids=["before", "same", "behind"])
def test_records_before_the_position_of_a_new_topic_were_not_read(worker: LedgerWorker, to: int) -> None:
    """The old topic's record of that offset was applied; the new one's was not, whatever was moved before."""
    new = uuid4()
    worker.ledger.reset_offset("t", 0, to=0, log=None, reason="again")
    worker.claim(0)
    worker_moves_on(worker, 4)
    worker.ledger.reset_offset("t", 0, to=to, topic_id=new, log=None, reason="adopt", actor="ada")
    passed = worker.ledger.wait_until_applied("t", 0, 1, topic_id=new)
    assert (passed.applied, passed.unread) == (False, "ada reset the position past it (adopt)")


# -- refused, or too late ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t", 0, -1), "offset -1 of t/0: offsets begin at 0"),
        (("t", 0, -1001), "in the producer's delivery report"),
        (("t", 0, None), "offset None of t/0"),
        (("t", 0, True), "offset True of t/0"),
        (("t", 0, 2**63 - 1), "offset 9223372036854775807"),
        (("t", -1, 4), "t/-1: partitions are numbered from 0"),
        (("t", 2**31, 4), "t/2147483648: partitions are numbered from 0 to 2147483647"),
        (("t", 0, 4, -1), "timeout=-1"),
        (("t", 0, 4, float("inf")), "timeout=inf: must be a finite number of seconds"),
        (("t", 0, 4, float("nan")), "timeout=nan"),
        (("t", 0, 4, None), "timeout=None"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_at_once(
    worker: LedgerWorker, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        worker.ledger.wait_until_applied(*arguments)
    assert message in str(refused.value)


@pytest.mark.parametrize(("topic", "partition"), [("t", 9), ("x", 0)])
def test_a_partition_that_no_worker_has_claimed_is_not_applied_yet(
    worker: LedgerWorker, topic: str, partition: int
) -> None:
    with pytest.raises(NotApplied, match="group 'g' has no stored offset for the partition yet") as raised:
        worker.ledger.wait_until_applied(topic, partition, 4, 0.05)
    assert (raised.value.partition, raised.value.position) == ((topic, partition), None)


def test_a_group_without_a_worker_so_far_is_not_applied_yet(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    with pytest.raises(NotApplied, match="not applied within 0 s; there is no group 'unknown' in the ledger yet"):
        GroupLedger(seekpoint_engine, "unknown", schema=seekpoint_schema).wait_until_applied("t", 0, 0, 0)


def test_a_wait_that_began_before_the_first_claim_sees_what_it_brings(worker_group: WorkerGroup) -> None:
    """Also for a partition that was added since."""
    name, _ = worker_group.log(5)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(worker_group.ledger.wait_until_applied, name, 0, 4, 30)
        added = threads.submit(worker_group.ledger.wait_until_applied, name, 1, 2, 30)
        run = worker_group.worker(name)
        assert first.result(30).applied
        assert not added.done()
        worker_group.add_partitions(name, 2)
        worker_group.produce(name, 3, partition=1)
        assert added.result(30).applied
    run.stop()


def late(worker: LedgerWorker, offset: int = 7, timeout: float = 0) -> NotApplied:
    with pytest.raises(NotApplied) as raised:
        worker.ledger.wait_until_applied("t", 0, offset, timeout)
    return raised.value


def test_a_wait_that_is_over_says_the_position(worker: LedgerWorker) -> None:
    error = late(worker, timeout=0.05)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, SeekpointError)
    assert (error.partition, error.offset, error.position) == (HERE, 7, 5)
    stands = r"t/0: offset 7: not applied within 0\.05 s; group 'g' is at offset 5, 2 offsets before it\. "
    assert re.fullmatch(stands + r"It last moved \d+ s ago: wait again, or check its worker's log .*", str(error))
    assert "is at offset 5. " in str(late(worker, offset=5))


def note(worker: LedgerWorker, attempt: Attempt) -> None:
    """Put an attempt at a record on file, as a worker does."""
    with worker.ledger.engine.begin() as tx:
        worker.accept(worker.ledger.record_attempts(tx, [(worker.claims[0], attempt)]))


def test_it_says_what_the_partition_waits_for(worker: LedgerWorker) -> None:
    note(worker, Attempt(5, 2, "TimeoutError: no", 5000.0, 5, "stop"))
    tried = r"offset 5 failed \(TimeoutError: no\), attempt 2 of 5; it is tried again in 1 h 2\d min"
    assert re.search(tried, str(late(worker)))
    note(worker, Attempt(5, 5, "TimeoutError: no", None, 5, "stop"))
    assert "failed (TimeoutError: no), and the partition is stopped before it" in str(late(worker))
    note(worker, Attempt(5, 1, "its timestamp lies in the future", 60.0, None, "delay"))
    assert re.search(r"offset 5 is due in (1 min|5\d s) \(its timestamp lies in the future\)", str(late(worker)))
    waits = RetryStatus.of(worker.ledger.read()[0])
    assert waits is not None
    assert re.search(r"offset 5: its timestamp lies in the future; due \d\d:\d\d:\d\d UTC$", waits.sentence("g"))
    note(worker, Attempt(5, 1))
    assert "offset 5 is in a single-record attempt now, number 1" in str(late(worker))
    heir = LedgerWorker(GroupLedger(worker.ledger.engine, "g", schema=worker.ledger.schema), topic_id=worker.topic_id)
    heir.claim(0)  # from an owner that has died over it
    assert "offset 5 was in attempt 1 when the process crashed, perhaps because of the record" in str(late(worker))
    worker.ledger.pause(reason="an index", actor="ada")
    assert "The group is paused by ada (an index): resume it: seekpoint groups resume" in str(late(worker))


def test_a_wait_at_a_stop_ends_at_once_and_says_what_stopped_the_partition(worker: LedgerWorker) -> None:
    """Without an operator's decision the record is not applied, however long the timeout is."""
    stop = OffsetLost(HERE, 5, "retention has deleted the records up to offset 9")
    stop.token = worker.claims[0].token
    worker.ledger.record_stops([stop])
    for offset in (5, 7):
        error = late(worker, offset=offset, timeout=3600)
        assert (error.offset, error.position) == (offset, 5)
        reason = "has stopped the partition at offset 5 (retention has deleted the records up to offset 9)"
        assert f"not applied: group 'g' {reason}, until an operator decides" in str(error)
    assert worker.ledger.wait_until_applied("t", 0, 4, timeout=0).applied


def test_a_wait_at_a_stop_that_ends_by_itself_continues(worker: LedgerWorker) -> None:
    """The worker resumes when the brokers know the topic again; no operator decides."""
    stop = unknown(HERE, 5)
    stop.token = worker.claims[0].token
    worker.ledger.record_stops([stop])
    error = str(late(worker))
    assert "not applied within" in error
    assert "The partition has stopped at offset 5: topic 't' does not exist any more" in error
    assert "operator" not in error
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(worker.ledger.wait_until_applied, "t", 0, 5, timeout=60)
        worker.claim(0)
        worker.commit({0: 6})
        assert waiting.result(60).applied


def test_it_says_that_no_worker_has_claimed(worker: LedgerWorker) -> None:
    worker.ledger.release(worker.claims.values())
    assert str(late(worker)).endswith("No worker has claimed the partition: start one [SP1304]")
    other = LedgerWorker(worker.ledger, topic="u")
    other.claim(0)
    with pytest.raises(NotApplied, match="has not moved since it was first claimed"):
        other.ledger.wait_until_applied("u", 0, 0, timeout=0)


# -- with real workers ------------------------------------------------------------------------------------------


def test_a_producer_reads_its_own_write(worker_group: WorkerGroup) -> None:
    """Waits as a service would: for the offset of the delivery report."""
    name = worker_group.topic(2)
    worker_group.worker(name).placed(2)
    for partition in (0, 1):
        for value in ("one", "two"):
            [(_, offset)] = worker_group.produce(name, [value], partition=partition)
            assert worker_group.ledger.wait_until_applied(name, partition, offset).applied
            assert (partition, offset) in worker_group.record_table.written(name)


@pytest.mark.parametrize(("policy", "state"), [("dead_letter", State.DEAD_LETTERED), ("skip", State.SKIPPED)])
def test_a_producer_hears_that_its_record_was_poison(worker_group: WorkerGroup, policy: str, state: State) -> None:
    name, refuse = worker_group.topic(), worker_group.record_table.refusing(lambda r: r.value == "bad")
    worker_group.worker(worker_group.pipeline(name, handle=refuse, on_poison=policy))
    stored = worker_group.produce(name, ["good", "bad", "good"])
    worker_group.wait_until_caught_up(name, stored)
    states = [worker_group.ledger.wait_until_applied(name, 0, offset).state for _, offset in stored]
    assert states == [None, state, None]
    assert worker_group.record_table.written(name) == [stored[0], stored[2]]
