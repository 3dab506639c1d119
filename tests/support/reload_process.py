"""A reload in a separate process that tests kill: ``Reloader`` in the test, ``main`` in the process.

It halts, with its transaction open, at the first step of a state, or in the transition to a state, and reports that.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import create_engine

from seekpoint.jobs.reload import Reload, cutover
from seekpoint.testing.child_process import report
from support.job_process import HaltedDriver, JobProcess, halt
from support.reload_orders import OrdersGroup, pipeline


class Reloader(JobProcess):
    """A process with a reload; ``step`` is where it halts, as of ``HaltedDriver``: ``staged``, ``turn cut_over``."""

    def __init__(self, orders_group: OrdersGroup, run: UUID, **options: Any) -> None:
        super().__init__("support.reload_process", orders_group, topic=orders_group.topic, run=str(run), **options)


def main(what: dict[str, Any]) -> None:
    """Drive the run to its end, or to where it halts."""
    engine = create_engine(what["url"])
    declared = pipeline(what["group"], what["topic"], what["schema"], version=what.get("version", 2))
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
    reload.run(driver)
    engine.dispose()
    report("done")
