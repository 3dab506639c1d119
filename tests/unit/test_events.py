"""Events: one list of frozen values, and observers that cannot change what they watch."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from seekpoint import Pipeline, Text, Worker, events
from seekpoint.errors import ConfigError, DeclarationDiffers, OffsetLost
from seekpoint.events import Announcer, Event
from seekpoint.records import Cause, Failure, Partition, Span, State
from support.every_row import for_each
from support.public_kinds import EVENTS

KINDS: list[type[Event]] = [Event, *EVENTS]


@for_each(KINDS)
def test_an_event_is_a_frozen_value_with_a_promise_and_a_level(kind: type[Event]) -> None:
    assert dataclasses.is_dataclass(kind)
    assert vars(kind)["__dataclass_params__"].frozen
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")
    assert kind.level in {logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR}
    assert all(field.kw_only for field in dataclasses.fields(kind))


def test_when_it_happened_is_no_part_of_its_value() -> None:
    early, late = events.Held(partitions=3, at=1.0), events.Held(partitions=3, at=2.0)
    assert early == late
    assert early.at < late.at
    assert repr(early) == "Held(partitions=3)"
    assert events.Held(partitions=3).at <= events.Held(partitions=3).at
    with pytest.raises(dataclasses.FrozenInstanceError):
        early.partitions = 4  # type: ignore[misc]


def test_observers_get_every_event_in_order_the_earlier_observer_first() -> None:
    seen: list[tuple[str, Event]] = []
    announce = Announcer([lambda e: seen.append(("first", e)), lambda e: seen.append(("second", e))])
    first, two = events.Draining(), events.Held(partitions=1)
    announce(first)
    announce.add(lambda e: seen.append(("third", e)))
    announce(two)
    assert seen == [("first", first), ("second", first), ("first", two), ("second", two), ("third", two)]


def blocked(offset: int, key: bytes, now: float, state: State = State.BLOCKED) -> Event:
    failure = Failure(Cause.BLOCKED, "an earlier record of its key is not applied yet", attempts=0)
    return events.DeadLettered(
        partition=Partition("orders", 0), offset=offset, state=state, failure=failure, key=key, at=now
    )


def test_blocked_records_have_a_log_line_a_minute_for_each_key(caplog: pytest.LogCaptureFixture) -> None:
    """Observers get each, and each dead letter that is not blocked has its line. No key is in the log."""
    caplog.set_level(logging.WARNING)
    seen: list[Event] = []
    announce = Announcer([seen.append])
    for offset, time in enumerate((0.0, 1.0, 59.0, 60.0, 61.0)):
        announce(blocked(offset, b"secret-a", time))
    announce(blocked(5, b"secret-b", 61.0))
    for offset in (6, 7):
        announce(blocked(offset, b"secret-a", 61.0, State.DEAD_LETTERED))
    assert [record.offset for record in caplog.records] == [0, 3, 5, 6, 7]  # type: ignore[attr-defined]  # extra=
    assert len(seen) == 8
    assert "secret" not in caplog.text + repr(seen)


def test_an_observer_that_raises_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise ZeroDivisionError("the observer's own mistake")

    announce = Announcer([broken, seen.append])
    announce(events.Held(partitions=2))
    assert seen == [events.Held(partitions=2)]
    (logged,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert logged.name == "seekpoint.events"
    assert logged.getMessage() == "an observer raised on Held(partitions=2); ignored"
    assert logged.exc_info is not None
    assert logged.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_in_an_observer_is_not_ignored(interruption: type[BaseException]) -> None:
    def interrupted(event: Event) -> None:
        raise interruption

    with pytest.raises(interruption):
        Announcer([interrupted])(events.Draining())


SPAN = Span(Partition("orders", 3), 5, 9)


@pytest.mark.parametrize(
    ("event", "level", "message"),
    [
        (events.Committed(spans=(SPAN,), records=4, seconds=0.5), logging.DEBUG, "orders"),
        (events.Activated(partition=SPAN.partition, offset=5, epoch=2), logging.INFO, "orders/3 at offset 5, epoch 2"),
        (events.Refused(reason="the claim is another's"), logging.WARNING, "the claim is another's"),
        (
            events.PartitionStopped(partition=SPAN.partition, error=OffsetLost(SPAN.partition, 5, "why")),
            logging.ERROR,
            "why",
        ),
    ],
)
def test_events_are_logged_by_level(event: Event, level: int, message: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="seekpoint.events")
    Announcer()(event)
    (logged,) = caplog.records
    assert (logged.name, logged.levelno) == ("seekpoint.events", level)
    assert message in logged.getMessage()


async def later(event: Event) -> None:
    """Would never run."""


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (print, "takes a list of functions"),
        ("print", "takes a list of functions"),
        (7, "takes a list of functions"),
        (None, "takes a list of functions"),
        ([print, 7], "7 is not a function"),
        ([list], "is not a function that takes an event"),
        ([later], "is an async function, which nothing would await"),
    ],
)
def test_what_cannot_observe_is_refused(observe: Any, message: str) -> None:
    pipeline = Pipeline("g", topics="t", value=Text(), handle=lambda tx, batch: None)
    with pytest.raises(ConfigError, match=message):
        Worker(pipeline, engine="postgresql://a@192.0.2.1/b", kafka={"bootstrap.servers": "x:1"}, observe=observe)


def test_a_log_line_has_the_group_the_sentence_and_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="seekpoint.events")
    failure = Failure(Cause.HANDLER, "KeyError: 'price'", where="ingest.py:14 in post")
    event = events.RetryScheduled(
        partition=SPAN.partition, offset=5, attempt=2, attempts=5, wait=1.5, failure=failure, then="stop"
    )
    Announcer(group="billing")(event)
    Announcer(group="billing")(events.Committed(spans=(SPAN,), records=4, seconds=0.5))
    first, two = caplog.records
    assert first.getMessage() == (
        "billing: RetryScheduled: orders/3 at offset 5: KeyError: 'price' (at ingest.py:14 in post); attempt 2 of "
        "5 failed, the next attempt is in 1.5 s; after the last: stop"
    )
    had = vars(first)
    assert (had["event"], had["group"], had["partition"], had["offset"]) == ("RetryScheduled", "billing", "orders/3", 5)
    assert (had["wait"], had["failure"]) == (1.5, "KeyError: 'price' (at ingest.py:14 in post)")
    assert vars(two)["spans"] == ["orders/3 [5, 9)"]
    assert two.getMessage() == "billing: Committed: spans ['orders/3 [5, 9)'], records 4, seconds 0.5, rows {}"


def test_an_error_is_logged_with_the_notes_of_sqlalchemys_error_and_the_drivers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The remedy may be in a note of either; a note that both have is written once, and no statement is."""
    driver = psycopg.OperationalError("server closed the connection unexpectedly")
    error = OperationalError("SELECT secret", {}, driver)
    for noted in (error, driver):
        noted.add_note("raise statement_timeout")
    driver.add_note("the transaction had taken\n301.0 s")
    Announcer()(events.DatabaseTrouble(error=error, wait=1.0))
    (logged,) = caplog.records
    expected = (
        "OperationalError: server closed the connection unexpectedly (raise statement_timeout) (the transaction had "
        "taken 301.0 s)"
    )
    assert logged.getMessage() == f"DatabaseTrouble: {expected}; again in 1.0 s"
    assert vars(logged)["error"] == expected


def test_no_field_of_an_event_is_a_log_records_own() -> None:
    """`extra` refuses those."""
    own = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    assert not {field.name for kind in EVENTS for field in dataclasses.fields(kind)} & own


def test_an_event_without_a_log_handler_is_not_formatted(caplog: pytest.LogCaptureFixture) -> None:
    class UnshowableError(Exception):
        def __repr__(self) -> str:
            raise AssertionError("formatted for nothing")

    caplog.set_level(logging.CRITICAL, logger="seekpoint.events")
    seen: list[Any] = []
    Announcer([seen.append])(events.CommitUnknown(error=UnshowableError()))
    assert len(seen) == 1
    assert caplog.records == []


def test_a_worker_that_a_signal_aborts_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Announcer(group="billing")(events.WorkerStopped(error=KeyboardInterrupt("before the worker had started")))
    assert [(line.levelno, line.getMessage()) for line in caplog.records] == [
        (logging.INFO, "billing: WorkerStopped: aborted")
    ]


def test_a_second_pipeline_of_a_group_reports_how_to_replace_the_first() -> None:
    error = DeclarationDiffers("billing", 1, "orders", stored=["s.a"], declared=["s.b"])
    message = str(events.DeclarationRefused(topic="orders", stored=("s.a",), declared=("s.b",), reason=str(error)))
    assert message.startswith(
        "DeclarationRefused: the worker waits outside the group: group 'billing' at handler version 1"
    )
    assert "Worker(accept_declaration=True) or `seekpoint run --accept-declaration`" in message
