"""A reload in a process of its own, to be killed: ``Reloader`` on this side, ``main`` on the other.

It waits, its transaction open, at the chosen place: at the first step of a state, at the transition to one, or
where its handler comes to an offset; and prints a line when it does.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Connection, create_engine

from seekpoint import Batch, Json, Pipeline
from seekpoint.jobs.reload import Reload, cutover
from seekpoint.testing.child_process import report
from support.handler_reload import WRITES, by_core
from support.processes import JobProcess, Standing, stand
from support.reload_orders import Order, Shop, pipeline


class Reloader(JobProcess):
    """One process. ``at="staged"`` stands still in the first step of that state, ``at="turn cut_over"`` at its end.

    With ``handled=True`` it drives the books of ``bookkeeping``; ``at="offset 70"`` stands still in the handler then.
    """

    def __init__(self, shop: Shop, run: UUID, **options: Any) -> None:
        super().__init__("support.reload_process", shop, topic=shop.topic, run=str(run), **options)


def bookkeeping(what: dict[str, Any]) -> Pipeline:
    """The books' pipeline, whose handler waits after the records up to an offset."""
    handle, schema = by_core(what["schema"], 2), what["schema"]

    def standing(tx: Connection, batch: Batch[Any, Any]) -> None:
        handle(tx, batch)
        if any(what.get("at") == f"offset {record.offset}" for record in batch):
            stand()

    return Pipeline(
        what["group"],
        topics=what["topic"],
        value=Json(Order),
        handle=standing,
        writes=[f"{schema}.{name}" for name in WRITES],
        version=2,
    )


def main(what: dict[str, Any]) -> None:
    """Drive the run to its end, or to the place at which it is to wait."""
    engine = create_engine(what["url"])
    if what.get("handled"):
        made = bookkeeping(what)
    else:
        made = pipeline(what["group"], what["topic"], what["schema"], version=what.get("version", 2))
    reload = Reload(
        [made],
        engine,
        {"bootstrap.servers": what["brokers"]},
        schema=what["schema"],
        range_records=what["width"],
        max_wait=what.get("max_wait", 60.0),
        max_deletes=1.0,
        compared=lambda _: stand() if what.get("at") == "compared" else None,
    )
    if what.get("at") == "after a long try":
        vars(cutover)["longer_pause"] = lambda _: stand()
    taken = reload.take_over(UUID(what["run"]))
    driver = Standing(taken.engine, taken.schema, taken.run, taken.limits)
    driver.at = what.get("at", "")
    report("driving")
    reload.run(driver)
    engine.dispose()
    report("done")
