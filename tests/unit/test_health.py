"""The health board: each event becomes what a probe may ask."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from seekpoint import events
from seekpoint.errors import OffsetLost
from seekpoint.events import Event
from seekpoint.records import Cause, Failure, Partition, Span
from seekpoint.worker.health import Health, HealthBoard
from seekpoint.worker.waiting import Stopwatch

A, B = Partition("a", 0), Partition("b", 1)
STOP_A, STOP_B = OffsetLost(A, 5, "bad"), OffsetLost(B, 7, "bad")


def after(*seen: Event, stale_after: float = 60.0) -> Health:
    board = HealthBoard(stale_after)
    for event in seen:
        board(event)
    return board.read()


def started(moment: float | None = None) -> events.Started:
    return events.Started(group="g", owner="o") if moment is None else events.Started(group="g", owner="o", at=moment)


def placed(partition: Partition, offset: int) -> events.Activated:
    return events.Activated(partition=partition, offset=offset, epoch=1)


def committed(*spans: Span, records: int = 1, moment: float | None = None) -> events.Committed:
    return events.Committed(spans=spans, records=records, seconds=0.1, at=monotonic() if moment is None else moment)


def test_before_it_runs_it_is_neither_live_nor_ready() -> None:
    assert after() == Health()
    assert (after().live, after().ready, after().stale) == (False, False, False)


def test_a_started_worker_is_live_and_ready() -> None:
    health = after(started())
    assert (health.live, health.ready, health.trouble, health.error) == (True, True, None, None)


class FakeStopwatch(Stopwatch):
    """A stopwatch that shows what the test says."""

    shown = 0.0

    def seconds(self) -> float:
        return self.shown


def test_users_code_that_runs_for_too_long_is_not_live_until_it_returns() -> None:
    stopwatch = FakeStopwatch()
    board = HealthBoard(stopwatch=stopwatch, allowed=10.0)
    board(started())
    stopwatch.shown = 10.9
    assert (board.read().live, board.read().stuck) == (True, None)
    stopwatch.shown = 11.1
    health = board.read()
    assert (health.live, health.ready, health.stuck, health.error) == (False, False, 11.1, None)
    stopwatch.shown = 0.0
    assert (board.read().live, board.read().ready, board.read().stuck) == (True, True, None)


def test_a_wait_for_the_server_is_not_time_of_users_code() -> None:
    stopwatch = Stopwatch()
    assert stopwatch.wait(stopwatch.seconds) == 0
    with stopwatch:
        first = stopwatch.wait(stopwatch.seconds)
        assert stopwatch.wait(lambda: (monotonic(), stopwatch.seconds()))[1] >= first
        with pytest.raises(ValueError, match="lost"):
            stopwatch.wait(lambda: int("lost"))
        now = stopwatch.seconds()
        while stopwatch.seconds() == now:
            pass  # it runs again
    assert stopwatch.seconds() == 0


@pytest.mark.parametrize("error", [None, ValueError("why")])
def test_a_stopped_worker_is_neither_and_keeps_its_error(error: Exception | None) -> None:
    health = after(started(), placed(A, 5), events.Draining(), events.WorkerStopped(error=error))
    assert (health.live, health.ready, health.error) == (False, False, error)


def test_positions_follow_placing_and_commits() -> None:
    seen = [started(), placed(A, 5), placed(B, 7), committed(Span(A, 5, 9), Span(B, 7, 8), records=4, moment=12.5)]
    health = after(*seen)
    assert health.positions == {A: 9, B: 8}
    assert (health.records, health.transactions, health.last_commit) == (4, 1, 12.5)
    again = after(*seen, committed(Span(A, 9, 10), records=1))
    assert again.positions == {A: 10, B: 8}
    assert (again.records, again.transactions) == (5, 2)
    assert after(*seen, placed(A, 2)).positions == {A: 2, B: 8}, "rewound"


@pytest.mark.parametrize(
    "left",
    [
        events.Revoked(partitions=(A,), lost=False),
        events.Revoked(partitions=(A,), lost=True),
        events.Released(partitions=(A,)),
    ],
)
def test_what_is_gone_is_no_longer_ours_to_tell(left: Event) -> None:
    seen = [started(), placed(A, 5), placed(B, 7), events.LagSampled(lag={A: 100, B: 0})]
    parked = [events.PartitionStopped(partition=A, error=STOP_A), events.PartitionStopped(partition=B, error=STOP_B)]
    health = after(*seen, *parked, left)
    assert (health.positions, health.lag, health.stopped) == ({B: 7}, {B: 0}, {B: STOP_B})
    at_the_end = after(*seen, *parked, events.Draining(), left).stopped
    assert at_the_end == {A: STOP_A, B: STOP_B}, "leaving mends nothing"


def test_the_lag_of_a_stopped_partition_is_known_and_not_stale() -> None:
    lag = events.LagSampled(lag={A: 5}, unknown=frozenset({B}), at=LONG_AGO)
    health = after(started(), placed(A, 5), placed(B, 7), events.PartitionStopped(partition=A, error=STOP_A), lag)
    assert (health.lag, health.lag_unknown, health.stale) == ({A: 5}, frozenset({B}), False)
    gone = after(started(), placed(B, 7), lag, events.Revoked(partitions=(B,), lost=False))
    assert gone.lag_unknown == frozenset()


def test_a_stopped_partition_is_shown_until_it_is_active_again() -> None:
    seen: list[Event] = [started(), placed(A, 5), placed(B, 1), events.PartitionStopped(partition=A, error=STOP_A)]
    assert after(*seen).stopped == {A: STOP_A}
    assert after(*seen).ready, "the others go on"
    assert after(*seen, placed(B, 1)).stopped == {A: STOP_A}
    assert after(*seen, placed(A, 6)).stopped == {}


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (events.DatabaseTrouble(error=ValueError("the database is away")), "ValueError: the database is away"),
        (events.KafkaTrouble(error="all brokers down"), "all brokers down"),
        (events.CodecTrouble(error="no answer from the registry"), "no answer from the registry"),
        (events.Paused(reason="paused by ann"), "paused by ann"),
    ],
)
def test_trouble_lasts_until_it_is_over(trouble: Event, message: str) -> None:
    for seen in ([trouble], [trouble, committed()]):  # other partitions may still wait: a commit does not end it
        health = after(started(), *seen)
        assert (health.live, health.ready, health.trouble) == (True, False, message)
    health = after(started(), trouble, committed(), events.Recovered())
    assert (health.ready, health.trouble) == (True, None)


def test_trouble_shows_neither_the_statement_nor_its_parameters() -> None:
    """They hold the rows that were written."""
    refused = OperationalError("INSERT INTO customer VALUES (%s)", ("ada",), psycopg.OperationalError("server closed"))
    trouble = after(started(), events.DatabaseTrouble(error=refused)).trouble
    assert trouble == "OperationalError: server closed"


def test_refusals_are_counted() -> None:
    assert after(started(), events.Refused(reason="x"), events.Refused(reason="y")).fenced == 2


LONG_AGO = monotonic() - 100


@pytest.mark.parametrize(
    ("make", "stale"),
    [
        (list, False),
        (lambda: [events.LagSampled(lag={A: 5}, at=LONG_AGO)], True),
        (lambda: [events.LagSampled(lag={A: 5})], False),  # idle until now, and the work has just come
        (lambda: [events.BatchOpened(attempt=1, at=LONG_AGO)], True),  # a database that never answers says nothing
        (lambda: [events.BatchOpened(attempt=1, at=LONG_AGO), committed(Span(A, 1, 2))], False),
        (lambda: [events.LagSampled(lag={A: 0})], False),
        (lambda: [events.LagSampled(lag={A: 5}), events.LagSampled(lag={A: 0})], False),
        (lambda: [events.KafkaTrouble(error="down", at=LONG_AGO)], True),
        (lambda: [events.KafkaTrouble(error="down", at=LONG_AGO), events.KafkaTrouble(error="down")], True),
        (lambda: [events.KafkaTrouble(error="down"), events.Recovered()], False),
        (lambda: [events.LagSampled(lag={A: 5}), committed(Span(A, 1, 2))], False),
        (lambda: [events.LagSampled(lag={A: 5}), committed(Span(A, 1, 2), moment=LONG_AGO)], True),
        (lambda: [events.LagSampled(lag={A: 5}), events.Revoked(partitions=(A,), lost=False)], False),
        (lambda: [events.LagSampled(lag={A: 5}), events.WorkerStopped()], False),
    ],
)
def test_stale_is_no_progress_although_there_is_work_or_trouble(make: Callable[[], list[Event]], stale: bool) -> None:
    """The events are made here and not at collection, which may be minutes ago."""
    assert after(started(moment=LONG_AGO), *make()).stale is stale
    assert not after(started(moment=LONG_AGO), *make(), stale_after=1e6).stale


def test_a_batch_that_ends_without_a_commit_leaves_no_idle_worker_stale() -> None:
    """Refused, dropped whole, or without an answer of Kafka's: the worker's loop reports the end itself."""
    board, opened = HealthBoard(), events.BatchOpened(attempt=1, at=LONG_AGO)
    for more, stale in [(events.Recovered(), False), (events.LagSampled(lag={A: 5}), True)]:
        for event in (started(moment=LONG_AGO), events.LagSampled(lag={}), opened, more):
            board(event)
        assert board.read().stale
        board.batch_ended()
        assert board.read().stale is stale


def test_every_other_event_leaves_it_as_it_is() -> None:
    before = after(started(), placed(A, 5))
    quiet: list[Event] = [
        events.Assigned(partitions=(A,)),
        events.BatchOpened(attempt=1),
        events.Held(partitions=1),
        events.ChunkRead(records=5),
        events.Applied(records=5),
        events.Advanced(spans=(Span(A, 5, 9),)),
        events.CommitUnknown(error=ValueError()),
        events.ClaimLost(partition=A),
        events.Resynced(partition=A, expected=1, found=2, cause="reply lost"),
        events.Stalled(partitions=(A,)),
        events.MembershipRenewed(),
        events.Draining(),
    ]
    assert after(started(), placed(A, 5), *quiet) == before


def test_a_snapshot_does_not_change() -> None:
    board = HealthBoard()
    board(placed(A, 5))
    first = board.read()
    board(committed(Span(A, 5, 9)))
    board(events.PartitionStopped(partition=A, error=STOP_A))
    assert (first.positions, first.stopped, first.records) == ({A: 5}, {}, 0)


def test_any_thread_may_read_while_the_worker_writes() -> None:
    """Each snapshot is one moment: as many records as transactions, and a position to match."""
    board, ended, wrong = HealthBoard(), threading.Event(), []

    def read() -> None:
        while not ended.is_set():
            health: Any = board.read()
            if health.records != health.transactions or health.positions.get(A, 0) != health.records:
                wrong.append(health)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for n in range(2000):
        board(committed(Span(A, n, n + 1)))
    ended.set()
    for reader in readers:
        reader.join()
    assert not wrong


# -- records that wait as declared ----------------------------------------------------------------------------


def retry(partition: Partition, offset: int) -> events.RetryScheduled:
    failure = Failure(Cause.HANDLER, "TimeoutError: no answer")
    return events.RetryScheduled(
        partition=partition, offset=offset, attempt=1, attempts=5, wait=60, failure=failure, then="stop"
    )


def test_a_retry_is_shown_until_its_record_is_passed() -> None:
    waits = retry(A, 5)
    assert after(started(), placed(A, 5), waits).retrying == {A: waits}
    assert after(started(), placed(A, 5), waits, committed(Span(A, 3, 5), Span(B, 0, 9))).retrying == {A: waits}
    assert not after(started(), placed(A, 5), waits, committed(Span(A, 5, 6))).retrying


@pytest.mark.parametrize(
    "end",
    [
        events.Activated(partition=A, offset=5, epoch=2),
        events.Revoked(partitions=(A,), lost=False),
        events.Released(partitions=(A,)),
        events.PartitionStopped(partition=A, error=STOP_A),
    ],
)
def test_a_retry_is_not_shown_where_the_partition_is_somewhere_else(end: Event) -> None:
    assert not after(started(), placed(A, 5), retry(A, 5), end).retrying


def test_who_waits_as_declared_is_not_stale() -> None:
    lag = events.LagSampled(lag={A: 10, B: 5}, not_due=frozenset({A, B}), at=monotonic() - 100)
    assert after(started(), placed(A, 5), placed(B, 0), lag).delayed == {A, B}
    assert not after(started(), lag).stale
    sampled = events.LagSampled(lag={A: 10, B: 5}, not_due=frozenset({A}), at=monotonic() - 100)
    assert after(started(), sampled).stale, "the other one does not move"
    assert not after(started(), retry(B, 5), sampled).stale
    assert after(started(), retry(B, 5), lag).delayed == {A}, "one reason is enough"


def test_a_standby_is_live_and_not_ready_and_never_stale() -> None:
    board = HealthBoard()
    run = UUID(int=7)
    board(events.OnStandby(run=run, state="staging", reason="a reload", at=monotonic() - 3600))
    h = board.read()
    assert (h.live, h.ready, h.stale, h.standby) == (True, False, False, f"reload {run}, staging")
    board(events.DatabaseTrouble(error=OSError("down")))
    board(events.Recovered())
    h = board.read()
    assert (h.ready, h.trouble, h.standby) == (False, None, f"reload {run}, staging")
    board(events.StandbyEnded(run=run, state="cut_over", error=None))
    board(events.Started(group="g", owner="o"))
    h = board.read()
    assert (h.live, h.ready, h.standby) == (True, True, None)
