"""The pure part of what waits: every record given once, in order, and never before it is due."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seekpoint.ledger import Attempt
from seekpoint.ledger.claim import DELAYED
from seekpoint.records import RawRecord, Record
from seekpoint.worker.assignment.backlog import Backlog, DueBy, Moment, SuspectRange

START = Moment(1000.0, 1_700_000_000.0)


def later(seconds: float, since: Moment = START) -> Moment:
    return Moment(since.steady + seconds, since.wall + seconds)


def record(offset: int, age: float | None = 0.0, size: int = 1) -> RawRecord:
    """``age`` seconds old at the start; None has no timestamp."""
    timestamp = None if age is None else round((START.wall - age) * 1000)
    return Record("t", 0, offset, timestamp, None, b"x" * size)


def filled(*records: RawRecord, now: Moment = START, **how: Any) -> Backlog:
    backlog, end = Backlog(**how), 0
    for record in records:
        backlog.add(record, end, now)
        end = record.offset + 1
    return backlog


def offsets(records: list[RawRecord]) -> list[int]:
    return [r.offset for r in records]


# -- delay ------------------------------------------------------------------------------------------------


def test_a_record_is_given_when_it_is_old_enough_and_not_before() -> None:
    backlog = filled(record(0, age=4), delay=10)
    assert backlog.wait(START) == pytest.approx(6)
    assert backlog.give(9, later(5.9)) == []
    assert offsets(backlog.give(9, later(6.1))) == [0]
    assert backlog.wait(later(7)) is None


def test_an_older_record_does_not_overtake_the_head() -> None:
    backlog = filled(record(0, age=0), record(1, age=100), record(2, age=None), delay=10)
    assert backlog.give(9, later(9)) == []
    assert offsets(backlog.give(9, later(11))) == [0, 1, 2]


def test_a_record_without_a_timestamp_is_due_at_once() -> None:
    assert offsets(filled(record(0, age=None), delay=10).give(9, START)) == [0]


def test_a_timestamp_in_the_future_waits_no_longer_than_the_delay_from_when_it_was_seen() -> None:
    backlog = filled(record(0, age=-1e9), delay=10)
    assert backlog.wait(START) == pytest.approx(10)
    assert offsets(backlog.give(9, later(10.1))) == [0]


def test_the_due_time_is_recorded_for_timestamps_in_the_future_alone() -> None:
    assert filled(record(0, age=0), delay=10).due_by(START) is None
    backlog = filled(record(0, age=-1e9), record(3, age=-1e9), delay=10)
    backlog.add(record(5, age=-1e9), 4, later(5))
    assert backlog.due_by(START) == DueBy(3, START.steady + 10), "those that were seen together"
    backlog.noted = 3
    assert backlog.due_by(START) is None, "once is enough"
    assert filled(record(0, age=-1e9), delay=10).due_by(later(9.5)) is None, "it is all but due"


def test_a_restart_does_not_begin_the_wait_again() -> None:
    backlog = Backlog(delay=10)
    backlog.remember(Attempt(3, 1, "early", 2.0, None, DELAYED), START)
    for offset in (0, 3, 4):
        backlog.add(record(offset, age=-1e9), offset, START)
    assert offsets(backlog.give(9, later(2.1))) == [0, 3], "those that the process before had seen"
    assert backlog.wait(later(2.1)) == pytest.approx(7.9)
    assert backlog.due_by(later(2.1)) == DueBy(4, START.steady + 10)


# -- a record that failed ---------------------------------------------------------------------------------


def test_what_failed_is_the_next_again_after_its_wait_and_alone() -> None:
    backlog = filled(record(5), record(6))
    first, second = backlog.give(2, START)
    backlog.add(record(7), 7, START)
    backlog.put_back([first, second], 5, Attempt(5, 1, "no", 3.0), START)
    assert (backlog.position, len(backlog)) == (5, 3)
    assert backlog.wait(START) == pytest.approx(3)
    assert backlog.is_single()
    assert backlog.give_single(later(2.9)) is None
    assert backlog.give(9, later(4)) == [], "alone, not among others"
    tried = backlog.give_single(later(4))
    assert tried is not None
    assert (tried.record.offset, tried.start, tried.tries) == (5, 5, 1)
    assert not backlog.is_single()
    assert offsets(backlog.give(9, later(4))) == [6, 7]
    assert backlog.is_over


def test_a_claim_brings_the_wait_back_and_records_before_it_go_first() -> None:
    backlog = Backlog()
    backlog.remember(Attempt(2, 4, "no", 3.0), START)
    assert not backlog.is_over
    for offset in range(4):
        backlog.add(record(offset), offset, START)
    assert offsets(backlog.give(9, START)) == [0, 1]
    assert backlog.wait(START) == pytest.approx(3)
    tried = backlog.give_single(later(3))
    assert tried is not None
    assert (tried.record.offset, tried.tries) == (2, 4)
    assert offsets(backlog.give(9, later(3))) == [3]


def test_an_attempt_at_a_record_that_compaction_took_is_over() -> None:
    backlog = Backlog()
    backlog.remember(Attempt(2, 4, "no", 3.0), START)
    backlog.add(record(3), 2, START)
    assert not backlog.is_single()
    assert offsets(backlog.give(9, START)) == [3]
    assert backlog.is_over


def test_a_stopped_record_without_a_next_time_is_tried_at_once() -> None:
    backlog = Backlog()
    backlog.remember(Attempt(0, 5, "no", None), START)
    backlog.add(record(0), 0, START)
    assert backlog.give_single(START) is not None


# -- clocks that are set ----------------------------------------------------------------------------------


def set_by(seconds: float, now: Moment) -> Moment:
    """The wall clock is set, back where negative."""
    return Moment(now.steady, now.wall + seconds)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wall_clock_that_is_set_changes_no_wait_that_has_begun(hours: int) -> None:
    backlog = filled(record(0), record(1), delay=60)
    backlog.put_back([], 0, Attempt(0, 1, "no", 70.0), START)
    now = set_by(3600 * hours, later(30))
    assert backlog.wait(now) == pytest.approx(40)
    assert backlog.give(9, later(20, now)) == []
    assert backlog.give_single(later(41, now)) is not None
    assert offsets(backlog.give(9, later(41, now))) == [1]


def test_what_is_read_after_the_clock_was_set_back_waits_the_delay_at_most() -> None:
    """Its timestamp is from before, and lies in the future: it is counted from now, and that is recorded."""
    now = set_by(-3600, later(30))
    backlog = filled(record(0, age=-20), delay=60, now=now)
    assert backlog.wait(now) == pytest.approx(60)
    assert backlog.due_by(now) == DueBy(0, now.steady + 60)
    fresh = record(1, age=3600 - 30)  # produced after it: its timestamp and the clock agree
    assert filled(fresh, delay=60, now=now).wait(now) == pytest.approx(60)


def test_a_recorded_due_time_waits_the_delay_at_most() -> None:
    """The database's clock was set back since it was noted."""
    backlog = Backlog(delay=60)
    backlog.remember(Attempt(0, 1, "early", 3650.0, None, DELAYED), START)
    backlog.add(record(0, age=-5000), 0, START)
    assert backlog.wait(START) == pytest.approx(60)


# -- suspicion --------------------------------------------------------------------------------------------


def test_a_short_suspect_range_goes_one_by_one_to_its_end() -> None:
    backlog = filled(record(0), record(1), record(2), suspects=SuspectRange.of(0, 2, None, 2))
    for offset in (0, 1):
        assert backlog.give(9, START) == []
        assert backlog.give_part(9, START) is None
        tried = backlog.give_single(START)
        assert tried is not None
        assert (tried.record.offset, tried.tries, tried.attempt) == (offset, 0, None)
    assert offsets(backlog.give(9, START)) == [2]
    assert offsets(filled(record(5), suspects=SuspectRange(5, 1)).give(9, START)) == [5]


def test_a_suspect_range_goes_in_a_hundred_parts_and_one_with_a_crash_record_by_record() -> None:
    def transactions(suspects: SuspectRange, start: int = 0) -> tuple[int, int]:
        backlog, parts, alone = Backlog(suspects=suspects), 0, 0
        for offset in range(start, 10_500):
            backlog.add(record(offset), offset, START)
        while backlog.suspects is not None:
            if (part := backlog.give_part(10_000, START)) is not None:
                assert part.records[-1].offset < part.end <= 10_000
                parts += 1
            elif backlog.give_single(START) is not None:
                alone += 1
            else:
                assert offsets(backlog.give(9, START))[0] == 10_000
        return parts, alone

    assert transactions(SuspectRange.of(0, 10_000, None, 10_000)) == (100, 0)
    assert transactions(SuspectRange.of(3000, 10_000, 3100, 7000), 3000) == (99, 100)


@pytest.mark.parametrize(
    ("length", "total", "crashed", "step", "inner"),
    [
        (61, 61, None, 1, 1),
        (10_000, 10_000, None, 100, 1),
        (10_000, 10_000, 100, 100, 1),
        (10_000, 60_000, None, 200, 1),  # of six partitions that were taken over together
        (10_000, 60_000, 200, 200, 1),
        (1_000_000, 1_000_000, None, 10_000, 1),
        (1_000_000, 1_000_000, 10_000, 10_000, 100),  # too long for one record at a time: divided first
    ],
)
def test_how_a_suspect_range_is_divided(length: int, total: int, crashed: int | None, step: int, inner: int) -> None:
    suspects = SuspectRange.of(5, 5 + length, None if crashed is None else 5 + crashed, total)
    assert (suspects.step, suspects.inner) == (step, inner)


def test_a_part_is_what_is_here_of_it_and_the_next_one_begins_where_it_ended() -> None:
    suspects = SuspectRange(end=1000, step=10)
    backlog = filled(record(0), record(1), suspects=suspects)
    part = backlog.give_part(9, START)
    assert part is not None
    assert (offsets(part.records), part.start, part.end, part.is_noted) == ([0, 1], 0, 10, False)
    suspects.noted = 12
    backlog.add(record(11), 2, START)
    backlog.add(record(12), 12, START)
    part = backlog.give_part(9, START)
    assert part is not None
    assert (offsets(part.records), part.start, part.end, part.is_noted) == ([11], 2, 12, True)
    part = backlog.give_part(9, START)
    assert part is not None
    assert (offsets(part.records), part.end, part.is_noted) == ([12], 22, False)


def test_a_record_with_a_history_is_met_on_the_way_through_the_suspected_ones() -> None:
    backlog = Backlog(suspects=SuspectRange(9, 1))
    history = Attempt(1, 1, None, None, crashes=1)
    backlog.remember(history, START)
    for offset in range(3):
        backlog.add(record(offset), offset, START)
    tried = [backlog.give_single(START) for _ in range(3)]
    assert [delayed and (delayed.record.offset, delayed.tries, delayed.attempt) for delayed in tried] == [
        (0, 0, None),
        (1, 1, history),
        (2, 0, None),
    ]


def test_bytes_are_counted() -> None:
    backlog = filled(record(0, size=10), record(1, size=5))
    chunk = backlog.give(1, START)
    assert backlog.bytes == 5
    backlog.put_back(chunk, 0, Attempt(0, 1, "no", 0.0), START)
    assert backlog.bytes == 15


# -- any interleaving -------------------------------------------------------------------------------------


class Interleavings(RuleBasedStateMachine):
    """Reads, waits, refusals and lost placements in any order, against a log with gaps.

    Whatever was given and not refused was applied; a new placement begins where the applied ones end.
    """

    @initialize(
        delay=st.none() | st.floats(0.5, 20),
        ages=st.lists(st.none() | st.floats(-1e6, 30), min_size=1, max_size=25),
        gaps=st.lists(st.integers(1, 3), min_size=25, max_size=25),
    )
    def begin(self, delay: float | None, ages: list[float | None], gaps: list[int]) -> None:
        self.delay, self.now = delay, START
        self.log, offset = [], 0
        for age, gap in zip(ages, gaps, strict=False):
            self.log.append(record(offset, age))
            offset += gap
        self.applied: list[int] = []
        self.ledger = 0
        self.attempt: Attempt | None = None
        self.due_at = 0.0
        self.seen: dict[int, float] = {}
        self.place()

    def place(self, suspects: SuspectRange | None = None) -> None:
        self.read_position = self.ledger
        self.backlog = Backlog(delay=self.delay, suspects=suspects)
        self.tried: dict[int, int] = {}
        if self.attempt is not None:
            left = max(0.0, self.due_at - self.now.steady)
            known = self.attempt
            self.backlog.remember(Attempt(known.offset, known.number, known.error, left, None, known.then), self.now)

    @rule(many=st.integers(1, 6))
    def read(self, many: int) -> None:
        for record in [r for r in self.log if r.offset >= self.read_position][:many]:
            self.backlog.add(record, self.read_position, self.now)
            age = 0.0 if record.timestamp_ms is None else max(0.0, self.now.wall - record.timestamp_ms / 1000)
            self.seen.setdefault(record.offset, self.now.steady - age)
            self.read_position = record.offset + 1

    @rule(seconds=st.floats(0, 15))
    def time_goes_by(self, seconds: float) -> None:
        self.now = later(seconds, self.now)

    @rule(seconds=st.floats(0, 3600))
    def the_wall_clock_is_set_back(self, seconds: float) -> None:
        self.now = set_by(-seconds, self.now)

    def _check_due(self, records: list[RawRecord]) -> None:
        for record in records:
            if self.delay is not None and record.timestamp_ms is not None:
                least = self.seen[record.offset] + self.delay
                assert self.now.steady >= least - 1.01, f"{record.offset} was given too early"

    def _apply(self, records: list[RawRecord], start: int) -> None:
        assert start == self.ledger, "what is given begins where the ledger stands"
        self.applied += offsets(records)
        self.ledger = records[-1].offset + 1
        self.attempt = None
        self.backlog.noted = -1

    def _fail(self, records: list[RawRecord], start: int, index: int, wait: float, number: int) -> None:
        if index:
            self._apply(records[:index], start)
        failed = records[index]
        assert failed.offset >= self.ledger
        self.attempt, self.due_at = Attempt(failed.offset, number, "no", wait), self.now.steady + wait
        self.backlog.put_back(records[index:], self.ledger, self.attempt, self.now)

    @rule(most=st.integers(1, 5), fails=st.none() | st.integers(0, 4), wait=st.floats(0, 20))
    def give(self, most: int, fails: int | None, wait: float) -> None:
        start = self.backlog.position
        records = self.backlog.give(most, self.now)
        if not records:
            return
        assert len(records) <= most
        self._check_due(records)
        assert (
            self.attempt is None or self.attempt.then == DELAYED or all(r.offset < self.attempt.offset for r in records)
        ), "one with a history goes alone"
        if fails is not None and fails < len(records):
            self._fail(records, start, fails, wait, 1)
        else:
            self._apply(records, start)

    @rule(fails=st.booleans(), wait=st.floats(0, 20))
    def give_alone(self, fails: bool, wait: float) -> None:
        tried = self.backlog.give_single(self.now)
        if tried is None:
            return
        known = self.attempt
        if known is not None and known.then != DELAYED and tried.record.offset == known.offset:
            assert self.now.steady >= self.due_at - 0.001, "its wait is over"
            assert tried.tries == known.number
        else:
            assert tried.tries == 0
        self._check_due([tried.record])
        if fails:
            self._fail([tried.record], tried.start, 0, wait, tried.tries + 1)
        else:
            self._apply([tried.record], tried.start)

    @rule()
    def put_on_record(self) -> None:
        horizon = self.backlog.due_by(self.now)
        if horizon is not None:
            wait = horizon.steady - self.now.steady
            self.attempt, self.due_at = Attempt(horizon.offset, 1, "early", wait, None, DELAYED), self.now.steady + wait
            self.backlog.noted = horizon.offset

    @rule(fails=st.none() | st.integers(0, 4), wait=st.floats(0, 20), noted=st.booleans())
    def give_part(self, fails: int | None, wait: float, noted: bool) -> None:
        part = self.backlog.give_part(5, self.now)
        if part is None:
            return
        assert part.records
        assert all(record.offset < part.end for record in part.records)
        self._check_due(part.records)
        if fails is not None and fails < len(part.records):
            self._fail(part.records, part.start, fails, wait, 1)
        else:
            self._apply(part.records, part.start)
        if noted and self.backlog.suspects is not None:
            self.backlog.suspects.noted = self.backlog.suspects.part_end(self.ledger)

    @rule(step=st.none() | st.integers(1, 5), crashed=st.integers(0, 6))
    def unplace(self, step: int | None, crashed: int) -> None:
        end, ledger = self.log[-1].offset, self.ledger
        self.place(None if step is None else SuspectRange(end, step, min(end, ledger + crashed)))

    @precondition(lambda self: hasattr(self, "backlog"))
    @invariant()
    def it_is_in_order_and_none_is_missing(self) -> None:
        assert self.applied == [r.offset for r in self.log if r.offset < self.ledger]
        if len(self.backlog):
            assert self.backlog.position == self.ledger
        else:
            assert self.backlog.wait(self.now) is None
            assert self.backlog.bytes == 0

    @precondition(lambda self: hasattr(self, "backlog"))
    @rule()
    def in_the_end_everything_is_given(self) -> None:
        self.now = later(2 * (self.delay or 0) + 40, self.now)
        self.read(len(self.log))
        self.now = later((self.delay or 0) + 40, self.now)
        while len(self.backlog):
            before = self.ledger
            self.give(5, None, 0)
            self.give_alone(False, 0)
            self.give_part(None, 0, False)
            assert self.ledger > before, "nothing is left waiting"
        assert self.applied == offsets(self.log)


Interleavings.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
TestInterleavings = Interleavings.TestCase


@given(ages=st.lists(st.none() | st.floats(-1e9, 50), max_size=30), delay=st.floats(0.1, 30))
def test_nothing_waits_longer_than_the_delay_once_seen(ages: list[float | None], delay: float) -> None:
    backlog = filled(*(record(n, age) for n, age in enumerate(ages)), delay=delay)
    note(f"{ages=}")
    assert offsets(backlog.give(99, later(delay + 0.001))) == list(range(len(ages)))
