"""Whether the workers of a process have joined their groups, as a roll waits for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic

import pytest

from seekpoint import Bytes, Pipeline, Worker, events
from seekpoint.cli.workers_of_process import WITHOUT, ProcessWorkers
from seekpoint.records import Partition

A, B = Partition("a", 0), Partition("a", 1)
BOTH = events.Assigned(partitions=(A, B))
NONE = events.Assigned(partitions=())
STANDBY = events.DeclarationRefused(topic="a", stored=(), declared=(), reason="other tables")


def claimed(at: Partition) -> events.Activated:
    return events.Activated(partition=at, offset=0, epoch=1)


def started(seconds: float) -> events.Event:
    """So many seconds ago."""
    return events.Started(group="g", owner="o", at=monotonic() - seconds)


def lost(*partitions: Partition) -> events.Revoked:
    return events.Revoked(partitions=partitions, lost=False)


def worker() -> Worker:
    pipeline = Pipeline("g", topics="a", value=Bytes(), handle=lambda tx, batch: None)
    return Worker(pipeline, engine="postgresql://nowhere/none", kafka={"bootstrap.servers": "nowhere:1"})


@pytest.mark.parametrize(
    ("seen", "joined"),
    [
        ([partial(started, 0)], False),
        ([partial(started, WITHOUT + 1)], True),
        ([partial(started, WITHOUT + 1), BOTH], False),
        ([partial(started, WITHOUT + 1), STANDBY], False),
        ([NONE], True),
        ([BOTH, claimed(A)], False),
        ([BOTH, claimed(A), claimed(B)], True),
        ([BOTH, claimed(A), lost(B)], True),
        ([claimed(A)], True),
        ([NONE, STANDBY], False),
    ],
)
def test_a_worker_has_joined_once_it_has_claimed_what_it_was_given(
    seen: list[events.Event | Callable[[], events.Event]], joined: bool
) -> None:
    made, other = worker(), worker()
    workers = ProcessWorkers([made, other])
    workers.watch_partitions()
    other._announce(NONE)
    for event in seen:
        made._announce(event() if callable(event) else event)
    assert workers.has_joined == joined
