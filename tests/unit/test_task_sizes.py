"""How ranges become tasks: as many as there are slots where they are small, bounded where they are large."""

from __future__ import annotations

from uuid import UUID

import pytest

from seekpoint.jobs.spark.stager import packed
from seekpoint.jobs.staging.stage import Task
from seekpoint.kafka.ranges import LEAST, Range, split_ranges, task_size
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
    given = ranges(*counts)
    split = split_ranges(given, slots=slots)
    assert len(split) == tasks
    size = task_size(sum(counts), slots=slots)
    cut = packed([Task("g", part) for range_ in given for part in range_.cut(max(size, LEAST))], size)
    for found in (split, [[task.range for task in pack] for pack in cut]):
        assert len(found) >= min(slots, sum(counts) // LEAST)
        assert max(sum(one.records_at_most for one in task) for task in found) <= max(size, LEAST)
        offsets = [0] * len(counts)  # each offset once, in order
        for one in sorted(one for task in found for one in task):
            assert one.start == offsets[one.partition.number]
            offsets[one.partition.number] = one.end
        assert offsets == counts
