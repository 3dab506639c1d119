"""What a process with several workers answers to probes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from seekpoint.cli.workers_of_process import ProcessWorkers


class StandIn:
    """A worker that is live until its ``run`` has returned."""

    def __init__(self, group: str) -> None:
        self.pipeline, self._is_live = SimpleNamespace(group=group), True

    def run(self) -> None:
        self._is_live = False

    def health(self) -> Any:
        return SimpleNamespace(
            live=self._is_live, ready=self._is_live, stale=False, trouble=None, standby=None, stuck=None, stopped=(),
            lag={}, records=0,
        )  # fmt: skip


def test_a_process_is_live_while_a_worker_finishes_its_batch() -> None:
    """Else `run --workers` would kill it: the first worker that has ended is not live any more."""
    first, second = StandIn("first"), StandIn("second")
    workers = ProcessWorkers([first, second])  # type: ignore[list-item]  # workers as far as they are used
    assert workers.state().live
    workers._run_one(first)  # type: ignore[arg-type]
    assert (workers.state().live, workers.state().ready) == (True, False)
    workers._run_one(second)  # type: ignore[arg-type]
    assert not workers.state().live
