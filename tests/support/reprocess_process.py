"""A range that is reprocessed in a process of its own, to be killed: ``Reprocessor`` here, ``main`` there."""

from __future__ import annotations

from typing import Any

from sqlalchemy import create_engine

from seekpoint import Limits
from seekpoint.jobs.reprocess import Reprocess
from seekpoint.jobs.reprocess.apply_range import RangeRun
from seekpoint.testing.child_process import report
from support.processes import JobProcess, stand
from support.reload_orders import Shop, pipeline

PLACES = {"read": "_apply", "locked": "_is_applied", "written": "_write", "stored": "_keep", "advanced": "_advance",
          "committed": "_next_width"}  # fmt: skip
LIMITS = Limits(batch_records=40)


class Reprocessor(JobProcess):
    """One process, which waits at the n-th passing of one of ``PLACES``: before ``read``, after the others."""

    def __init__(self, shop: Shop, **what: Any) -> None:
        super().__init__("support.reprocess_process", shop, topic=shop.topic, **what)


def _stand_at(at: str, nth: int) -> None:
    made, passed = getattr(RangeRun, PLACES[at]), iter(range(10**6))

    def standing(*given: Any, **named: Any) -> Any:
        last = next(passed) == nth
        if last and at == "read":
            stand()
        found = made(*given, **named)
        if last:
            stand()
        return found

    setattr(RangeRun, PLACES[at], standing)


def main(what: dict[str, Any]) -> None:
    """Reprocess the range, up to the place."""
    _stand_at(what["at"], what["nth"])
    engine = create_engine(what["url"])
    made = pipeline(what["group"], what["topic"], what["schema"], kind="append")
    one = Reprocess(made, engine, {"bootstrap.servers": what["brokers"]}, schema=what["schema"], limits=LIMITS)
    plan = one.plan((what["topic"], 0), *what["range"])
    one.apply(plan, reason="a test")
    engine.dispose()
    report("done")
