"""A reload in a process of its own, to be killed: ``Reloader`` on this side, ``main`` on the other.

It waits, its transaction open, at the chosen place: at the first step of a state, or at the transition to one; and
prints a line when it does.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import create_engine

from seekpoint.jobs.reload import Reload, cutover
from seekpoint.testing.child_process import report
from support.processes import HaltedDriver, JobProcess, halt
from support.reload_orders import OrdersGroup, pipeline


class Reloader(JobProcess):
    """One process. ``at="staged"`` halts in the first step of that state, ``at="turn cut_over"`` at its end."""

    def __init__(self, orders_group: OrdersGroup, run: UUID, **options: Any) -> None:
        super().__init__("support.reload_process", orders_group, topic=orders_group.topic, run=str(run), **options)


def main(what: dict[str, Any]) -> None:
    """Drive the run to its end, or to the place at which it is to wait."""
    engine = create_engine(what["url"])
    made = pipeline(what["group"], what["topic"], what["schema"], version=what.get("version", 2))
    reload = Reload(
        [made],
        engine,
        {"bootstrap.servers": what["brokers"]},
        schema=what["schema"],
        range_records=what["width"],
        max_wait=what.get("max_wait", 60.0),
        max_deletes=1.0,
        compared=lambda _: halt() if what.get("at") == "compared" else None,
    )
    if what.get("at") == "after a long try":
        vars(cutover)["longer_pause"] = lambda _: halt()
    taken = reload.take_over(UUID(what["run"]))
    driver = HaltedDriver(taken.engine, taken.schema, taken.run, taken.limits)
    driver.at = what.get("at", "")
    report("driving")
    reload.run(driver)
    engine.dispose()
    report("done")
