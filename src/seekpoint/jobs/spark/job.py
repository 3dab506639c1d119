"""A Spark job in the background, which its caller can wait for and cancel; and a check for missing executors."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from time import monotonic
from typing import TYPE_CHECKING, Any

from seekpoint.jobs.spark.session import context_of
from seekpoint.jobs.staging.task_errors import missing_module

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXECUTOR_TIMEOUT = 120.0  # seconds for which a cluster may provide no executor
CANCEL_TIMEOUT = 30.0  # seconds to wait for a cancelled job to end


class SparkJob:
    """Collects a DataFrame on a separate thread, so that the caller can do other work meanwhile.

    ``tag`` identifies the job for cancellation; ``name`` is its description in Spark's UI.
    """

    def __init__(self, spark: SparkSession, frame: DataFrame, tag: str, name: str) -> None:
        self._spark, self._tag, self._shown = spark, tag, name
        self._answer: Future[list[Any]] = Future()
        self._frame = frame
        self._thread = threading.Thread(target=self._run, name="seekpoint-spark", daemon=True)
        self._cancelled = False
        self._thread.start()

    def _run(self) -> None:
        try:
            self._tag_thread()
            self._answer.set_result([] if self._cancelled else self._frame.collect())
        except BaseException as error:  # noqa: BLE001 -- raised by wait() and answers()
            self._answer.set_exception(error)

    def _tag_thread(self) -> None:
        """Tag this thread's jobs. Job groups need a context, which Spark Connect lacks."""
        if (context := context_of(self._spark)) is None:
            self._spark.addTag(self._tag)
        else:
            context.setJobGroup(self._tag, f"seekpoint: {self._shown}", interruptOnCancel=True)

    def tasks(self) -> tuple[int, int]:
        """The numbers of completed tasks and of all tasks of this job; zeros if Spark does not report them."""
        context = context_of(self._spark)
        if context is None:
            return 0, 0
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(self._tag)]
        stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
        begun = [stage for stage in stages if stage is not None]
        return sum(stage.numCompletedTasks for stage in begun), sum(stage.numTasks for stage in begun)

    def _cancel(self) -> None:
        if (context := context_of(self._spark)) is None:
            self._spark.interruptTag(self._tag)
        else:
            context.cancelJobGroup(self._tag)

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; returns whether the job is over. Raises its error, or ConfigError with a remedy."""
        if not wait([self._answer], seconds).done:
            return False
        if (error := self._answer.exception()) is not None:
            raise missing_module(error) or error
        return True

    def answers(self) -> list[Any]:
        """The rows of the DataFrame, once the job is over."""
        return self._answer.result()

    def end(self) -> None:
        """Cancel the job unless it is over; killed tasks' transactions are rolled back."""
        self._cancelled = True
        deadline = monotonic() + CANCEL_TIMEOUT
        while not self._answer.done() and monotonic() < deadline:
            self._cancel()  # repeatedly, because a cancellation does not affect jobs that are submitted later
            wait([self._answer], 0.2)


class Executors:
    """Checks that the cluster provides executors: without any, Spark waits forever and reports nothing.

    Without executors for ``patience`` seconds it raises an error, which ends with the caller's ``advice``.
    """

    def __init__(self, spark: SparkSession, patience: float, advice: str) -> None:
        context = context_of(spark)
        # A local session needs no other executor, and Spark Connect does not report its executors.
        self._context = None if context is None or str(context.master).partition("[")[0] == "local" else context
        self._patience, self._advice, self._since = patience, advice, monotonic()

    def check(self) -> None:
        """Raise ConnectionError if there has been no executor for too long."""
        if self._context is None or self._count() > 0:
            self._since = monotonic()
        elif monotonic() - self._since > self._patience:
            raise ConnectionError(
                f"Spark's master {self._context.master} has provided no executor for {self._patience:g} s: the cluster "
                f"has died, or is full. {self._advice}"
            )

    def _count(self) -> int:
        java: Any = self._context and self._context._jsc  # noqa: SLF001 -- PySpark has no public equivalent
        return int(java.sc().getExecutorMemoryStatus().size()) - 1  # without the driver
