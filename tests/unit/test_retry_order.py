"""``Pipeline(retry_order=)``: what it needs, what it implies, and what the failure policy does with it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from seekpoint import Append, Bytes, Json, Limits, Pipeline, Retry, Upsert
from seekpoint.codecs import Debezium
from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.declared import declared
from seekpoint.records import Cause, RawRecord, State
from seekpoint.testing import raw
from seekpoint.worker.assignment.backlog import RetryLater
from seekpoint.worker.failure_policy import fail
from seekpoint.worker.open_batch import Outcome


def handle(tx: Any, batch: Any) -> None:
    """Do nothing."""


def pipeline(**options: Any) -> Pipeline:
    return Pipeline("g", **{"topics": "t", "value": Json(), "handle": handle, "on_poison": "dead_letter", **options})


GUARDED = Upsert("rows", key=["id"], offset_column="at_offset")

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"retry_order": "keys"}, "retry_order must be one of 'partition', 'key', 'none', got 'keys'"),
    ({"retry_order": None}, "retry_order must be one of 'partition', 'key', 'none', got None"),
    ({"retry_order": True}, "retry_order must be one of 'partition', 'key', 'none', got True"),
    ({"retry_order": ["key"]}, "retry_order must be one of 'partition', 'key', 'none', got ['key']"),
    ({"retry_order": "key", "on_poison": "stop"}, "after its last attempt the record can only be a dead letter: add"),
    ({"retry_order": "none", "on_poison": "stop"}, "add on_poison='dead_letter'"),
    ({"retry_order": "key", "on_poison": "skip"}, "add on_poison='dead_letter'"),
    ({"retry_order": "none", "on_poison": "skip"}, "add on_poison='dead_letter'"),
    ({"retry_order": "key", "retry": Retry(attempts=1)}, "with Retry(attempts=1) no record waits for a retry"),
    ({"retry_order": "none", "retry": Retry(attempts=1)}, "with Retry(attempts=1) no record waits for a retry"),
    ({"retry_order": "key", "keep_key_order": False}, "omit keep_key_order=False, or give retry_order='none'"),
    ({"retry_order": "none", "keep_key_order": True}, "which keep_key_order=True forbids: give retry_order='key'"),
    (
        {"retry_order": "key", "sinks": [Upsert("rows", key=["id"])]},
        "in Upsert('rows'): name the column that orders its rows (order_by= or offset_column=), or omit retry_order=",
    ),
    ({"retry_order": "none", "sinks": [Upsert("rows", key=["id"])]}, "would overwrite a newer row in Upsert('rows'"),
    (
        {"retry_order": "none", "sinks": [GUARDED, Upsert("others", key=["id"])]},
        "would overwrite a newer row in Upsert('others'",
    ),
    (
        {"retry_order": "key", "sinks": [Upsert("rows", key=["id"], on_conflict="keep")]},
        "keeps the first row of a key, and a retried record's row would come too late",
    ),
    (
        {
            "retry_order": "none",
            "value": Debezium(),
            "sinks": [Upsert("rows", key=["id"], columns=["id"], changes=True)],
        },
        "applies changes in the order of the log: give retry_order='partition', or omit it",
    ),
    (
        {
            "retry_order": "key",
            "value": Debezium(),
            "sinks": [Upsert("rows", key=["id"], columns=["id"], changes=True)],
        },
        "applies changes in the order of the log",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda part: part if isinstance(part, str) else "")
def test_what_contradicts_it_is_refused_at_the_declaration(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        pipeline(**options)


@pytest.mark.parametrize("order", ["key", "none"])
def test_without_a_handler_it_is_refused_when_the_pipeline_is_taken(order: str) -> None:
    """Only then: a decorator may still add one."""
    declaration = pipeline(retry_order=order, handle=None, sinks=[Append("rows")])
    with pytest.raises(
        ConfigError, match=f"retry_order='{order}' is for records whose handler raises, but the pipeline has no"
    ):
        declaration.taken()


@pytest.mark.parametrize("waiting", [0, -1, 1.5, True, None])
def test_the_limit_is_a_whole_number(waiting: Any) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"Limits(waiting={waiting!r}): must be a whole number, 1 or greater")
    ):
        Limits(waiting=waiting)


def test_key_keeps_the_order_of_keys_and_none_does_not() -> None:
    orders = {order: pipeline(retry_order=order, sinks=[GUARDED]).keep_key_order for order in ("key", "none")}
    assert orders == {"key": True, "none": False}
    assert pipeline(retry_order="partition", keep_key_order=True).keep_key_order
    assert declared(pipeline(retry_order="none"))["t"]["retry_order"] == "none"


RECORD = raw(b"{}", topic="t", offset=4)


def failed(error: Exception, cause: Cause, **options: Any) -> Outcome:
    """What becomes of a record that fails for the first time."""
    outcome = Outcome()
    record: RawRecord = RECORD
    fail(pipeline(value=Bytes(), **options), outcome, record, error, cause)
    return outcome


@pytest.mark.parametrize("order", ["key", "none"])
def test_a_record_that_will_be_retried_is_passed(order: str) -> None:
    outcome = failed(TimeoutError(), Cause.HANDLER, retry_order=order)
    (waiting,) = outcome.dead_letters
    assert (waiting.state, waiting.failure.attempts, outcome.ends) == (State.WAITING, 1, {})
    assert waiting.wait is not None
    assert 0.5 <= waiting.wait <= 1


def test_poison_is_a_dead_letter_at_once_and_a_transient_error_holds_up_the_partition() -> None:
    (dead,) = failed(Poison("bad", RECORD), Cause.POISON, retry_order="none").dead_letters
    assert (dead.state, dead.wait) == (State.DEAD_LETTERED, None)
    ends = failed(TimeoutError(), Cause.TRANSIENT, retry_order="none").ends
    assert [type(end) for end in ends.values()] == [RetryLater]
    ends = failed(TimeoutError(), Cause.HANDLER).ends
    assert [type(end) for end in ends.values()] == [RetryLater]
