"""Records that are decoded when they are read are those that would have been decoded at once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from hypothesis import given
from hypothesis import strategies as st

from seekpoint import Append, Bytes, Json, Pipeline, Text
from seekpoint.kafka.client import lazy_records, raw_record, readable
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import LazyRecords, Partition, RawRecord

some_bytes = st.none() | st.binary(max_size=8)
pairs = st.lists(st.tuples(st.text(max_size=3), some_bytes), max_size=2)
times = st.tuples(st.sampled_from([TIMESTAMP_NOT_AVAILABLE, TIMESTAMP_CREATE_TIME]), st.integers(0, 2**40))


@contextmanager
def collected(often: int) -> Iterator[None]:
    """Python's garbage collector runs after so many allocations."""
    before = gc.get_threshold()
    gc.set_threshold(often, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Counted(Message):
    """A message that can say whether anything still refers to it."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize(("often", "kept"), [(700, False), (100_000, True)])
def test_messages_are_kept_only_where_they_are_not_collected_often(often: int, kept: bool) -> None:
    kind: Any = Counted
    given_ = [kind("a", 0, 4, b"k", b"v", [("h", b"1")], None, (1, 5), 0.0, 7)]
    message = weakref.ref(given_[0])
    with collected(often):
        records, _ = lazy_records(given_, Partition("a", 0))
    del given_
    assert (message() is not None) == kept
    assert records[0] == RawRecord("a", 0, 4, 5, b"k", b"v", (("h", b"1"),), 7)
    assert message() is None, "freed with the first look"


@st.composite
def messages(draw: st.DrawFn) -> list[Any]:
    def make(offset: int, topic: str) -> Any:
        key, value, headers = draw(some_bytes), draw(some_bytes), draw(st.none() | pairs)
        epoch = draw(st.integers(-1, 9))  # -1: the broker does not say
        kind: Any = Message
        return kind(topic, draw(st.integers(0, 2)), offset, key, value, headers, None, draw(times), 0.0, epoch)

    return [make(n, draw(st.sampled_from(["a", "b"]))) for n in range(draw(st.integers(0, 5)))]


@pytest.mark.repeats("often")
@pytest.mark.parametrize("often", [700, 100_000], ids=["collected often", "collected rarely"])
@given(given_=messages())
def test_they_are_what_the_messages_say(given_: list[Any], often: int) -> None:
    expected = [raw_record(m) for m in given_]
    with collected(often):
        records, unreadable = lazy_records(given_, None)
    assert not unreadable
    assert list(records.values) == [r.value for r in expected]
    assert records.topic == (expected[0].topic if len({r.topic for r in expected}) == 1 else None)
    assert records.size == sum(len(r.value or b"") + len(r.key or b"") for r in expected)
    assert (len(records), list(records), list(reversed(records))) == (len(expected), expected, expected[::-1])
    assert records[1:] == expected[1:]


def test_of_one_partition_nothing_is_asked_that_is_known() -> None:
    kind: Any = Message
    records, _ = lazy_records(
        [kind("a", 3, n, b"k", b"v", None, None, (1, 5), 0.0, 7) for n in (4, 6)], Partition("a", 3)
    )
    assert records.topic == "a"
    assert [(r.topic, r.partition, r.offset) for r in records] == [("a", 3, 4), ("a", 3, 6)]


class Odd:
    """A message whose headers can be asked for once, like those of the client where a name is not UTF-8."""

    def __init__(self, offset: int, *, bad: bool) -> None:
        self._offset, self._bad, self._asked = offset, bad, 0

    def headers(self) -> list[tuple[str, bytes]]:
        self._asked += 1
        if self._bad:
            assert self._asked == 1, "asked again, the client gives a list with a hole in it"
            raise SystemError("returned a result with an exception set") from UnicodeDecodeError(
                "utf-8", b"", 0, 1, "no"
            )
        return [("h", b"%d" % self._offset)]

    def topic(self) -> str:
        return "a"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 1

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def leader_epoch(self) -> int:
        return 0


@given(st.lists(st.booleans(), max_size=6))
def test_each_one_that_cannot_be_read_is_found_before_any_is_applied(bad: list[bool]) -> None:
    """I4: a record without its headers is another record; nothing is applied in its place."""
    odd: Any = [Odd(n, bad=is_bad) for n, is_bad in enumerate(bad)]
    records, unreadable = lazy_records(odd, Partition("a", 0))
    assert [record.offset for record, _ in unreadable] == [n for n, is_bad in enumerate(bad) if is_bad]
    assert [r.headers for r in records] == [() if is_bad else (("h", b"%d" % n),) for n, is_bad in enumerate(bad)]
    for record, error in unreadable:
        assert (error.record, str(error)) == (record, str(readable(Odd(record.offset, bad=True))[1]))


def test_nothing_is_decoded_before_it_is_read_and_nothing_twice() -> None:
    calls = []

    def make() -> list[RawRecord]:
        calls.append(1)
        return [RawRecord("t", 0, 0, None, None, b"v")]

    records = LazyRecords([b"v"], make, lambda: [0], topic="t", size=1)
    assert (len(records), list(records.values), calls) == (1, [b"v"], [])
    assert [records[0], *records, *reversed(records)] == [RawRecord("t", 0, 0, None, None, b"v")] * 3
    assert calls == [1]


CODECS = [Json(), Json(int), Json(tombstones=True), Text(), Bytes(), Bytes(tombstones=True), lambda data: data[:1]]


@pytest.mark.parametrize("codec", CODECS, ids=map(repr, range(len(CODECS))))
@given(st.lists(st.none() | st.sampled_from([b"", b"1", b"1,2", b"[1]", b"1] [2", b"\xff", b'"a"']), max_size=4))
def test_many_values_are_decoded_as_each_one_is(codec: Any, values: list[bytes | None]) -> None:
    """Two values are never taken for one, nor one for two: b"1,2" is no JSON, whatever is around it."""
    records = [RawRecord("t", 0, n, None, None, value) for n, value in enumerate(values)]
    writers = PipelineWriters(Pipeline("g", topics="t", value=codec, sinks=[Append("t", columns=["v"])]))

    def outcome(given_: Any) -> object:
        try:
            return writers.values(given_)
        except Exception as error:  # noqa: BLE001 -- whatever a codec raises
            return type(error)

    assert outcome(
        LazyRecords(values, lambda: records, lambda: list(range(len(values))), topic="t", size=0)
    ) == outcome(records)
    assert outcome(
        LazyRecords(values, lambda: records, lambda: list(range(len(values))), topic=None, size=0)
    ) == outcome(records)


def test_each_topic_has_its_own_codec() -> None:
    writers = PipelineWriters(Pipeline("g", topics={"a": Json(), "b": Text()}, sinks=[Append("t", columns=["v"])]))
    records = [RawRecord(topic, 0, 0, None, None, b"1") for topic in ("a", "b")]
    assert writers.values(LazyRecords([b"1", b"1"], lambda: records, lambda: [0, 1], topic=None, size=2)) == [1, "1"]
    assert writers.values(LazyRecords([b"1"], lambda: records[1:], lambda: [1], topic="b", size=1)) == ["1"]
