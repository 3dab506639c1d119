"""Positions of a stream, decided without brokers: the share of each partition, added partitions, and lost records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from seekpoint.errors import RangeLost
from seekpoint.jobs.spark import stream_positions
from seekpoint.jobs.spark.stream_positions import StreamPosition, StreamPositions, limited
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition

P, Q, OTHER = Partition("t", 0), Partition("t", 1), Partition("u", 0)
IDS = {"t": uuid4(), "u": uuid4()}


def positions(*, starts: dict[Partition, int] | None = None, ends: dict[Partition, int] | None = None) -> Any:
    """The positions of a stream of ``t`` and ``u``, whose logs begin and end there."""

    def edges(offsets: dict[Partition, int] | None) -> Any:
        return lambda asked: {partition: SimpleNamespace(offset=(offsets or {})[partition]) for partition in asked}

    asked: Any = StreamPositions(SimpleNamespace(topics=("t", "u"), assigned=[*(ends or {})], kafka={}))  # type: ignore[arg-type]
    asked._checks = SimpleNamespace(
        readable=SimpleNamespace(starts=edges(starts), ends=edges(ends)),
        ask=lambda topics: SimpleNamespace(known=lambda: {topic: IDS[topic] for topic in topics}),
        check=lambda *_: None,
    )
    return asked


@pytest.mark.parametrize(
    ("most", "reduced"),
    [
        (110, {P: 100, Q: 20}),
        (11, {P: 10, Q: 11}),
        (10, {P: 9, Q: 11}),
        (1, {P: 0, Q: 11}),
    ],
)
def test_a_limit_is_shared_by_the_partitions_lags(most: int, reduced: dict[Partition, int]) -> None:
    start, ends = {P: 0, Q: 10}, {P: 100, Q: 20}
    assert limited(start, ends, most) == reduced
    assert sum(reduced[partition] - start[partition] for partition in start) == most


def test_a_position_past_the_end_of_the_log_is_a_loss() -> None:
    """I4: records that the stream has read are gone, and others may come at their offsets."""
    assert positions(ends={P: 5}).ends(StreamPosition({P: 5}, IDS)).offsets == {P: 5}
    with pytest.raises(RangeLost, match=r"past the end of the log \(4\)") as lost:
        positions(ends={P: 4}).ends(StreamPosition({P: 5}, IDS))
    assert (lost.value.partition, lost.value.offset) == (P, 5)


def test_an_added_partition_is_read_from_its_first_record() -> None:
    """I4: of a topic that is new to the stream, from what is left of its log."""
    before = StreamPosition({P: 5}, {"t": IDS["t"]})
    assert positions(starts={Q: 0, OTHER: 3}).added(before, [P, Q, OTHER]) == {Q: 0, OTHER: 3}
    with pytest.raises(RangeLost, match="its log begins at 2 now") as lost:
        positions(starts={Q: 2}).added(before, [P, Q])
    assert (lost.value.partition, lost.value.offset) == (Q, 0)


def test_a_repeated_micro_batch_begins_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: an added partition at its stored first offset, wherever its log begins by now; the others at the start."""
    monkeypatch.setattr(stream_positions, "check_ranges", lambda *_: None)
    end = StreamPosition({P: 9, OTHER: 8}, IDS, first_offsets={OTHER: 3})
    assert positions().ranges(StreamPosition({P: 5}, IDS), end) == [
        Range(P, IDS["t"], 5, 9),
        Range(OTHER, IDS["u"], 3, 8),
    ]
