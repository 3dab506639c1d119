"""How many records a handler's next transaction takes, by the time that the last ones took."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg

from seekpoint import Limits
from seekpoint.errors import Fenced
from seekpoint.worker.batch_size import BatchSize, ended_by_age


def after(*batches: tuple[int, float], **limits: float) -> list[int]:
    """The sizes after batches that each took (records, seconds)."""
    size = BatchSize(Limits(**limits), adapts=True)  # type: ignore[arg-type]
    sizes = [size.records]
    for records, seconds in batches:
        size.committed(records, seconds)
        sizes.append(size.records)
    return sizes


def test_a_handler_begins_small_and_grows_twofold_while_records_are_fast() -> None:
    full = [(500, 0.1), (1000, 0.2), (2000, 0.4), (4000, 0.8), (8000, 1.6), (10_000, 2.0)]
    assert after(*full) == [500, 1000, 2000, 4000, 8000, 10_000, 10_000]
    assert after(batch_records=50) == [50]


def test_a_slow_batch_shrinks_the_next_to_the_target() -> None:
    assert after((500, 15.5)) == [500, 161]
    assert after((500, 15.5), (161, 5.0), (161, 4.0)) == [500, 161, 161, 201]
    assert after((500, 250.0), (10, 5.0)) == [500, 10, 10]
    assert after((1, 60.0)) == [500, 1]
    assert after((500, 15.5), transaction_target=31.0) == [500, 1000]


def test_a_small_batch_says_nothing_of_larger_ones() -> None:
    """One record has the whole transaction's round trips: a quiet topic must not make batches small."""
    assert after((1, 0.5), (3, 4.9), (0, 9.0)) == [500, 500, 500, 500]


def test_a_transaction_that_was_ended_by_its_age_halves_the_next() -> None:
    size = BatchSize(Limits(), adapts=True)
    for records, expected in ((500, 250), (250, 125), (3, 1), (1, 1)):
        size.ended(records)
        assert size.records == expected


def test_streaming_sinks_keep_their_size() -> None:
    size = BatchSize(Limits(), adapts=False)
    size.committed(10_000, 100.0)
    size.ended(10_000)
    assert size.limits is size.limits
    assert size.records == 10_000
    assert "10,000 records, and the limit is 300 s: lower Limits(batch_records=...)" in size.note(10_000, 301)


LOST = psycopg.OperationalError("the connection is closed")


@pytest.mark.parametrize(
    ("error", "seconds", "is_ended"),
    [
        (pg.TransactionTimeout("too old"), 0.1, True),
        (pg.IdleInTransactionSessionTimeout("idle"), 0.1, True),
        (LOST, 301.0, True),
        (LOST, 299.0, False),
        (Fenced("another owner has claimed it"), 301.0, True),
        (Fenced("another owner has claimed it"), 1.0, False),
        (pg.UniqueViolation("twice"), 301.0, False),
    ],
)
def test_an_age_is_recognized_however_the_end_is_noticed(error: Exception, seconds: float, is_ended: bool) -> None:
    assert (ended_by_age(error, seconds, 300.0) is error) is is_ended
    wrapped = RuntimeError("the repository is away")
    wrapped.__cause__ = error
    assert (ended_by_age(wrapped, seconds, 300.0) is error) is is_ended
