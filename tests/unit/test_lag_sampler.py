"""The lag as a worker announces it: at intervals, also of the partitions that have a leader next to one without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from seekpoint import Partition, events
from seekpoint.errors import KafkaUnavailable
from seekpoint.events import Announcer
from seekpoint.worker.assignment import WorkerAssignment
from seekpoint.worker.lag_sampler import LagSampler

A, B = Partition("orders", 0), Partition("orders", 1)


def test_logs_that_no_broker_answers_for_are_announced_once_until_one_does() -> None:
    """Else the worker would be ready and not by turns, as the loop finds each time that the brokers answer."""
    answers: list[Any] = [
        KafkaUnavailable("first"), KafkaUnavailable("again"), ({A: 1}, frozenset()), KafkaUnavailable("later"),
    ]  # fmt: skip

    def lag() -> Any:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    announced: list[events.Event] = []
    assignment: Any = SimpleNamespace(lag=lag, scheduler=SimpleNamespace(not_due=frozenset))
    sampler = LagSampler(assignment, 10.0, Announcer([announced.append]))
    for now in (1, 5, 11, 21, 31):
        sampler.maintain(now)
    assert [event.as_fields().get("error") for event in announced] == ["first [SP1301]", None, "later [SP1301]"]
    assert not answers


def test_a_partition_without_a_leader_does_not_hide_the_lag_of_the_others() -> None:
    """Neither an active one nor a stopped one."""
    stopped = Partition("orders", 2)
    answered = {A: SimpleNamespace(offset=7)}
    worker: Any = SimpleNamespace(
        active={A: SimpleNamespace(position=5), B: SimpleNamespace(position=0)},
        stopped={stopped: SimpleNamespace(offset=3)},
        with_known_log=[A, B, stopped],
        _watermarks=SimpleNamespace(
            ends=lambda asked, *, skip=False: {p: answered[p] for p in asked if p in answered or not skip}
        ),
    )
    assert WorkerAssignment.lag(worker) == ({A: 2}, frozenset({B, stopped}))
    del answered[A]
    with pytest.raises(KafkaUnavailable, match="no broker answers for the log of orders/0, orders/1"):
        WorkerAssignment.lag(worker)
