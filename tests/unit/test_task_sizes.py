"""How ranges become tasks: as many as there are slots where they are small, bounded where they are large."""

from __future__ import annotations

from uuid import UUID

import pytest

from seekpoint.jobs.spark.stager import packed
from seekpoint.jobs.staging.stage import Task
from seekpoint.kafka.first_records import first_bytes, first_records
from seekpoint.kafka.ranges import LEAST_OFFSETS, Range, split_ranges, task_size
from seekpoint.records import Partition


def ranges(*counts: int) -> list[Range]:
    return [Range(Partition("t", n), UUID(int=1), 0, count) for n, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("counts", "slots", "tasks"),
    [
        ([62_500] * 4, 1, 1),
        ([62_500] * 4, 4, 4),
        ([62_500] * 4, 8, 8),
        ([250_000], 8, 8),
        ([250_000], 64, 13),  # of 20,000 at least
        ([1_000_000], 2, 4),  # of 300,000 at most
        ([1_000_000], 16, 16),
        ([30_000, 3_000, 0], 4, 2),
        ([1_000_000_000], 16, 1_000),  # and no more than a thousand
    ],
)
def test_small_jobs_have_a_task_for_each_slot(counts: list[int], slots: int, tasks: int) -> None:
    whole = ranges(*counts)
    split = split_ranges(whole, slots=slots)
    assert len(split) == tasks
    size = task_size(sum(counts), slots=slots)
    cut = packed([Task("g", part) for range_ in whole for part in range_.cut(max(size, LEAST_OFFSETS))], size)
    for packs in (split, [[task.range for task in pack] for pack in cut]):
        assert len(packs) >= min(slots, sum(counts) // LEAST_OFFSETS)
        assert max(sum(part.records_at_most for part in task) for task in packs) <= max(size, LEAST_OFFSETS)
        offsets = [0] * len(counts)  # each offset once, in order
        for part in sorted(p for task in packs for p in task):
            assert part.start == offsets[part.partition.number]
            offsets[part.partition.number] = part.end
        assert offsets == counts


@pytest.mark.parametrize("most", [1, 3, 7, 40])
def test_there_are_no_more_tasks_than_sessions_and_they_are_of_equal_width(most: int) -> None:
    tasks = [Task("g", part) for range_ in ranges(700, 300) for part in range_.cut(20)]
    packs = packed(tasks, 20, most)
    assert sorted(task.range for pack in packs for task in pack) == sorted(task.range for task in tasks)
    widths = [sum(task.range.records_at_most for task in pack) for pack in packs]
    assert (len(packs), max(widths) - min(widths) <= 20) == (most, True)
    assert packed(tasks, 20, 50) == packed(tasks, 20)


@pytest.mark.parametrize(
    ("counts", "most", "first"),
    [
        ([5, 5], None, [5, 5]),
        ([5, 5], 10, [5, 5]),
        ([50, 50], 10, [5, 5]),
        ([2, 50, 50], 12, [2, 5, 5]),  # what a short one does not need goes to the others
        ([50, 0, 1], 10, [9, 0, 1]),
        ([50, 50, 50], 2, [1, 1, 0]),
        ([50, 50], 0, [0, 0]),
    ],
)
def test_the_first_records_are_shared_by_the_partitions(counts: list[int], most: int | None, first: list[int]) -> None:
    cut = first_records(ranges(*counts), most)
    assert all(range_.start == 0 for range_ in cut)
    ends = {range_.partition.number: range_.end for range_ in cut}
    assert [ends.get(n, 0) for n in range(len(counts))] == first


def test_the_first_records_of_a_partition_with_holes_are_its_first_ranges() -> None:
    range_ = Range(Partition("t", 0), UUID(int=1), 0, 10)
    two = Range(Partition("t", 0), UUID(int=1), 20, 40)
    assert first_records([range_, two], 15) == [range_, Range(Partition("t", 0), UUID(int=1), 20, 25)]
    assert first_records([range_, two], 10) == [range_]


@pytest.mark.parametrize(
    ("counts", "most", "admitted"),
    [
        ([10, 10], 200, [10, 10]),
        ([10, 10], 100, [5, 5]),
        ([3, 100], 200, [3, 17]),  # what the short one does not need goes to the other
        ([50, 100], 9, [0, 1]),  # no share has room: one record
        ([5], 49, [4]),
    ],
)
def test_bytes_are_shared_by_partitions_and_one_record_always_goes(
    counts: list[int], most: int, admitted: list[int]
) -> None:
    whole = ranges(*counts)
    first = {range_.partition: range_.end for range_ in first_bytes(whole, {"t": 10.0}, most)}
    assert [first.get(range_.partition, 0) for range_ in whole] == admitted


def test_offsets_without_bytes_are_all_admitted() -> None:
    """As of a log of which compaction has left nothing."""
    assert first_bytes(ranges(7, 9), {"t": 0.0}, 1) == ranges(7, 9)
