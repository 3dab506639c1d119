"""The file in which a stream leaves the plan of its micro-batch: one query at a time, also as they end and begin."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from seekpoint import Partition
from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.micro_batch import MicroBatch, MicroBatches, take_plan
from seekpoint.kafka.ranges import Range

PLAN = MicroBatch([Range(Partition("orders", 0), UUID(int=1), 3, 7)], whole=True, kafka={})


def test_a_plan_is_taken_once(tmp_path: Path) -> None:
    path = str(tmp_path / "plan")
    query = MicroBatches(path)
    assert take_plan(path) is None
    query.store(PLAN)
    assert (take_plan(path), take_plan(path)) == (PLAN, None)
    query.end()
    assert not Path(path).exists()


def test_a_query_that_begins_as_another_ends_has_the_file_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that it opened is removed before it locks it."""
    path, lock = str(tmp_path / "plan"), fcntl.flock
    ending, beginning, third = MicroBatches(path), MicroBatches(path), MicroBatches(path)
    ending.store(PLAN)

    def end_and_lock(file: Any, operation: int) -> None:
        ending.end()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", end_and_lock)
    beginning.store(PLAN)
    assert take_plan(path) == PLAN
    with pytest.raises(ConfigError, match="two queries read one streaming DataFrame"):
        third.store(PLAN)
    beginning.end()
