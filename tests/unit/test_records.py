"""Records, batches and their arithmetic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekpoint import Batch, Partition, Record, Span
from seekpoint.records import EPOCH, utc
from seekpoint.testing import batch, record


def test_a_partition_sorts_by_topic_then_number_and_reads_as_topic_slash_number() -> None:
    assert sorted([Partition("b", 0), Partition("a", 10), Partition("a", 9)]) == [("a", 9), ("a", 10), ("b", 0)]
    assert str(Partition("a", 9)) == "a/9"
    assert str(Span(Partition("a", 9), 3, 5)) == "a/9 [3, 5)"


def test_a_records_id_is_its_idempotency_key() -> None:
    assert record(None, topic="orders", partition=3, offset=2**40).id == f"orders/3/{2**40}"


def test_a_record_is_frozen() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        record(1).offset = 2  # type: ignore[misc]


def test_headers_with_the_same_name_twice_are_kept_in_order() -> None:
    headers = [("trace", b"1"), ("other", None), ("trace", b"2"), ("trace", b"1")]
    assert record(None, headers=headers).headers == tuple(headers)


@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)))
def test_times_are_exact_to_the_millisecond(time: datetime) -> None:
    time = time.replace(tzinfo=UTC, microsecond=time.microsecond // 1000 * 1000)
    assert record(None, timestamp=time).timestamp == time


@given(st.integers(-(2**63), 2**63 - 1))
def test_no_timestamp_that_a_producer_may_send_raises(milliseconds: int) -> None:
    time = utc(milliseconds)
    if time is None:
        assert milliseconds > 253_402_300_799_999 or milliseconds < -62_135_596_800_000
    else:
        assert time == EPOCH + timedelta(milliseconds=milliseconds)
        assert time.tzinfo is UTC


def test_a_record_without_a_timestamp_has_none() -> None:
    assert record(None).timestamp is None


def test_a_batch_is_a_sequence_of_its_records() -> None:
    some = [record(n, offset=n) for n in range(3)]
    whole = batch(*some)
    assert (len(whole), list(whole), whole[-1], whole[1:]) == (3, some, some[2], tuple(some[1:]))
    assert some[1] in whole
    assert whole.spans == (Span(Partition("topic", 0), 0, 3),)
    assert repr(whole) == "Batch(3 records: topic/0 [0, 3))"
    assert not Batch([])


def test_by_partition_keeps_the_order_within_each() -> None:
    some = [record(None, topic=t, partition=p, offset=o) for t, p, o in [("b", 0, 5), ("a", 1, 1), ("b", 0, 9)]]
    grouped = batch(*some).by_partition()
    assert grouped == {Partition("b", 0): [some[0], some[2]], Partition("a", 1): [some[1]]}


def test_a_record_is_generic_in_value_and_key() -> None:
    assert Record("t", 0, 0, None, "key", 5).value + 1 == 6
