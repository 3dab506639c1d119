"""A driver of DataFrames in a separate process that tests kill."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from seekpoint.testing.child_process import report
from support.job_process import HaltedDriver, JobProcess, halt
from support.quick_java import QUICK_JAVA
from support.reload_orders import OrdersGroup

DATABASE = "SEEKPOINT_TEST_SPARK_DATABASE"
"""Where tasks look for the database's address."""


class FramesProcess(JobProcess):
    """A driver's process, which applies the available records, and halts at ``step``.

    ``step`` is a place of ``HaltedDriver``, or ``"applied"``. With ``streams`` it runs until it is killed. With
    ``checkpoint`` it runs a query with ``foreach_batch``, which may also halt before it claims (``"called"``), or, with
    ``table``, one that writes to the sink ``seekpoint``, one of whose processes halts (``support.halting_sink``). With
    ``reloads`` it rebuilds the tables, or resumes the run ``resume``; ``step`` may be a place of
    :func:`_halt_in_a_reload`, too.
    """

    def __init__(self, orders_group: OrdersGroup, name: str, modules: Path, **what: Any) -> None:
        path = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])])
        super().__init__("support.frames_process", orders_group, name=name, path=path, modules=str(modules), **what)


def main(what: dict[str, Any]) -> None:
    """Run the driver to its end, or to where it halts."""
    from seekpoint.jobs.batch import steps
    from seekpoint.jobs.frames import bound_pipeline, under_claims
    from seekpoint.testing.servers.spark import start_spark

    os.environ |= QUICK_JAVA | {"PYTHONPATH": what["path"], DATABASE: what["url"]} | what.get("env", {})
    sys.path.insert(0, what["modules"])
    HaltedDriver.halts_at = what.get("step", "")
    vars(under_claims)["Driver"] = HaltedDriver
    if HaltedDriver.halts_at == "applied":
        vars(steps)["totals"] = lambda *_: halt()
    if HaltedDriver.halts_at == "called":
        vars(bound_pipeline)["load_spark_pipeline"] = lambda _: halt()
    with start_spark("local[2,4]") as spark:
        if what.get("reloads"):
            _reload(spark, what)
        elif what.get("table"):
            _write(spark, what)
        elif what.get("checkpoint"):
            _query(spark, what)
        else:
            _run(spark, what)


def _run(spark: Any, what: dict[str, Any]) -> None:
    from seekpoint.spark import Env, run

    done = run(
        spark,
        what["name"],
        kafka={"bootstrap.servers": what["brokers"]},
        database=Env(DATABASE),
        schema=what["schema"],
        available_now=not what.get("streams", False),
        trigger=0.0,
        max_records=what.get("max_records"),
    )
    report("done", records=done.records)


def _reload(spark: Any, what: dict[str, Any]) -> None:
    from seekpoint.spark import Env, reload

    _halt_in_a_reload(what.get("step", ""))
    done = reload(
        spark,
        what["name"],
        kafka={"bootstrap.servers": what["brokers"]},
        database=Env(DATABASE),
        schema=what["schema"],
        strategy=what.get("strategy", "merge"),
        resume=UUID(what["resume"]) if what.get("resume") else None,
        max_wait=300.0,
        max_deletes=1.0,
    )
    report("done", state=done.run.state)


def _halt_in_a_reload(step: str) -> None:
    """Make a reload halt at a place of ``HaltedDriver``, or of these.

    "first frame": one frame's rows are staged, and no other's; "merging": the rows of a pass are merged, in a
    transaction; "locked": before the last pass; "published": after the cut-over's COMMIT.
    """
    from seekpoint.jobs.frames import frame_stager, passes
    from seekpoint.jobs.reload import open as opening
    from seekpoint.runs import manage_runs

    vars(opening)["Driver"] = vars(manage_runs)["Driver"] = HaltedDriver
    places: dict[str, tuple[Any, str]] = {
        "first frame": (frame_stager, "attempts"),
        "merging": (passes, "write_rows"),
        "locked": (passes.FramePasses, "last_pass"),
        "published": (manage_runs.Runs, "drop"),
    }
    if step in places:
        setattr(*places[step], lambda *_: halt())


def _query(spark: Any, what: dict[str, Any]) -> None:
    """Apply the available records by a query."""
    from seekpoint.spark import Env, foreach_batch

    function = foreach_batch(what["name"], database=Env(DATABASE), schema=what["schema"])
    _run_query(_stream(spark, what).writeStream.foreachBatch(function), what)


def _write(spark: Any, what: dict[str, Any]) -> None:
    """Write the available records to a table."""
    from support.halting_sink import HaltingSink

    spark.dataSource.register(HaltingSink)
    rows = _stream(spark, what).selectExpr("topic", "partition", "offset", *what["columns"])
    options = {"group": what["group"], "table": what["table"], "database": DATABASE, "ledgerSchema": what["schema"]}
    _run_query(rows.writeStream.format(HaltingSink.name()).options(**options), what)


def _stream(spark: Any, what: dict[str, Any]) -> Any:
    options = {"kafka.bootstrap.servers": what["brokers"], "subscribe": what["topic"], "startingOffsets": "earliest"}
    return spark.readStream.format("seekpoint").options(**options).load()


def _run_query(writer: Any, what: dict[str, Any]) -> None:
    writer.option("checkpointLocation", what["checkpoint"]).trigger(availableNow=True).start().awaitTermination()
    report("done", records=0)
