"""A reload in a separate process that tests kill: ``Reloader`` in the test, ``main`` in the process.

It halts, with its transaction open, at the first step of a state, or in the transition to a state, and reports that; or
it kills itself before the n-th line of code that it reaches in some modules.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any
from uuid import UUID

from sqlalchemy import create_engine

from seekpoint.jobs.reload import Reload, cutover
from seekpoint.testing.child_process import report
from support.job_process import HaltedDriver, JobProcess, halt
from support.reload_orders import OrdersGroup, pipeline


class Reloader(JobProcess):
    """A process with a reload; ``step`` is where it halts, as of ``HaltedDriver``: ``staged``, ``turn cut_over``.

    ``kind`` and ``pipeline`` are options of the pipeline. With ``line`` it kills itself before the line-th different
    line of code that it reaches in ``Lines.FILES``; with 0, it reports their number at its end.
    """

    def __init__(self, orders_group: OrdersGroup, run: UUID, **options: Any) -> None:
        super().__init__("support.reload_process", orders_group, topic=orders_group.topic, run=str(run), **options)


def main(what: dict[str, Any]) -> None:
    """Drive the run to its end, or to where it halts."""
    engine = create_engine(what["url"])
    kind, version, options = what.get("kind", "upsert"), what.get("version", 2), what.get("pipeline", {})
    declared = pipeline(what["group"], what["topic"], what["schema"], version=version, kind=kind, **options)
    reload = Reload(
        [declared],
        engine,
        {"bootstrap.servers": what["brokers"]},
        schema=what["schema"],
        range_records=what["width"],
        max_wait=what.get("max_wait", 60.0),
        max_deletes=1.0,
        compared=lambda _: halt() if what.get("step") == "compared" else None,
    )
    if what.get("step") == "after a long try":
        vars(cutover)["longer_pause"] = lambda _: halt()
    taken = reload.take_over(UUID(what["run"]))
    driver = HaltedDriver(taken.engine, taken.schema, taken.run, taken.limits)
    driver.halts_at = what.get("step", "")
    report("driving")
    lines = Lines(what.get("line", 0))
    if "line" in what:
        sys.settrace(lines.trace)
    reload.run(driver)
    sys.settrace(None)
    engine.dispose()
    report("done", lines=len(lines.reached))


class Lines:
    """Counts the different lines of code that are reached in FILES; kills the process before the ``last`` one."""

    FILES = ("staging/stage.py", "staging/attempt_tables.py", "staging/direct.py", "staging/consolidate.py")

    def __init__(self, last: int) -> None:
        self._last, self.reached = last, set[tuple[str, int]]()

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """The function for sys.settrace."""
        if not frame.f_code.co_filename.endswith(self.FILES):
            return None
        if event == "line":
            self.reached.add((frame.f_code.co_filename, frame.f_lineno))
            if len(self.reached) == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace
