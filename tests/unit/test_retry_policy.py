"""The schedule of retries, and the limits on dead letters: arithmetic and refusals."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekpoint import DeadLetterLimits, OnPoison, Pipeline, Retry, Text
from seekpoint.errors import ConfigError
from seekpoint.worker.failure_policy import has_attempts_left


def test_the_waits_double_up_to_the_ceiling() -> None:
    retry = Retry(wait_initial=1, wait_max=10, multiplier=2, jitter=0)
    assert [retry.wait(n, random.Random(0)) for n in (1, 2, 3, 4, 5, 50)] == [1, 2, 4, 8, 10, 10]


@given(st.integers(1, 10_000), st.floats(0, 1), st.integers())
def test_a_wait_is_within_its_share_of_jitter(failures: int, jitter: float, seed: int) -> None:
    retry = Retry(wait_initial=0.5, wait_max=30, multiplier=3, jitter=jitter)
    full = Retry(wait_initial=0.5, wait_max=30, multiplier=3, jitter=0).wait(failures, random.Random(seed))
    assert full * (1 - jitter) <= retry.wait(failures, random.Random(seed)) <= full <= 30


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"crashes": 0},
        {"wait_initial": -1},
        {"wait_max": float("inf")},
        {"wait_max": float("nan")},
        {"multiplier": 0.5},
        {"jitter": 1.1},
        {"on": (KeyboardInterrupt,)},
        {"on": ("ValueError",)},
        {"on": [TimeoutError]},
        {"on": None},
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Retry(**wrong)


def test_one_class_of_errors_needs_no_tuple() -> None:
    assert isinstance(TimeoutError(), Retry(on=TimeoutError).on)
    assert not isinstance(ValueError(), Retry(on=TimeoutError).on)


@pytest.mark.parametrize(("on", "again"), [(Exception, True), ((TimeoutError,), True), (ValueError, False)])
def test_a_cancelled_task_of_the_handlers_is_retried_like_a_timeout(on: Any, again: bool) -> None:
    assert has_attempts_left(Retry(on=on), asyncio.CancelledError(), attempts=1) is again


@pytest.mark.parametrize(
    "wrong", [{"consecutive": 0}, {"ratio": 0}, {"ratio": 1.5}, {"ratio": "half"}, {"window": 0}, {"window": None}]
)
def test_limits_that_cannot_be_are_refused_by_their_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DeadLetterLimits(**wrong)


def pipeline(**options: Any) -> Pipeline:
    return Pipeline("g", topics="t", value=Text(), handle=lambda tx, batch: None, **options)


@pytest.mark.parametrize("policy", ["dead_letter", OnPoison.DEAD_LETTER])
def test_a_policy_may_be_written_as_a_word(policy: Any) -> None:
    assert pipeline(on_poison=policy).on_poison is OnPoison.DEAD_LETTER


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"on_poison": "ignore"}, "'stop', 'dead_letter', 'skip'"),
        ({"retry": 3}, "Retry()"),
        ({"dead_letter_limits": 3}, "DeadLetterLimits()"),
        ({"delay": 5}, "timedelta"),
        ({"keep_key_order": True}, "on_poison='dead_letter'"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline(**wrong)
    assert message in str(caught.value)
