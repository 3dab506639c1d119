"""The steps of the afternoon, in their order. Each yields what it took, and records what is wrong."""

from __future__ import annotations

import shutil
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any
from zlib import crc32

from pyspark.sql import SparkSession

from afternoon import by_hand
from afternoon.declared import GROUPS, TOPIC
from afternoon.expected import compare
from afternoon.facts import PARTITIONS, encode
from afternoon.setting import LOCAL_CLUSTER, PATIENCE, Setting
from chaos.spark.stream_chaos import FAULTS, kill_children
from seekpoint.errors import Fenced
from seekpoint.jobs.export import Archive, Export
from seekpoint.jobs.reload import Reload, Report
from seekpoint.spark import SparkStager, SparkWriter, foreach_batch, reload, verify
from seekpoint.testing.child_process import ChildProcess
from support.waiting import until

HEAD = f"{'step':<40} {'seconds':>9} {'by hand':>9}  note"
EXECUTOR = FAULTS["executor"]
KEYED = [group for group, keyed in GROUPS.items() if keyed]


@dataclass(frozen=True)
class Took:
    """The seconds of one part of a step, and those of the same by hand, where that was run."""

    name: str
    seconds: float
    by_hand: float | None = None
    note: str = ""

    @property
    def line(self) -> str:
        """A line of the same columns as :data:`HEAD`."""
        hand = "" if self.by_hand is None else f"{self.by_hand:,.1f}"
        return f"{self.name:<40} {self.seconds:>9,.1f} {hand:>9}  {self.note}"


@dataclass
class Afternoon:
    """The processes that apply records all afternoon, and what was found wrong."""

    here: Setting
    seed: int
    minutes: float
    kills: int
    findings: list[str] = field(default_factory=list)
    live: dict[str, ChildProcess] = field(default_factory=dict)

    done: list[Took] = field(default_factory=list)

    def run(self, step: Iterator[Took]) -> None:
        """Run a step, and print what it took. A step that fails is a finding, and the next one runs."""
        try:
            for took in step:
                self.done.append(took)
                print(took.line, flush=True)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self.found(f"after {self.done[-1].name!r}: {type(error).__name__}: {error}")

    def found(self, finding: str) -> None:
        self.findings.append(finding)
        print(f"FAILED: {finding}", flush=True)

    def compare(self, groups: Sequence[str], when: str) -> None:
        """Compare all tables of these groups with the recomputation."""
        for group in groups:
            for problem in compare(self.here.engine, group, self.here.facts):
                self.found(f"{when}: {problem}")


def produce(afternoon: Afternoon) -> Iterator[Took]:
    """Produce the first half of the records."""
    began = monotonic()
    afternoon.here.load.produce(afternoon.here.facts.count // 2)
    yield Took("produce the first half", monotonic() - began, note=f"{afternoon.here.load.produced:,} records")


def side_by_side(afternoon: Afternoon) -> Iterator[Took]:
    """A worker's pipeline and a DataFrame pipeline, each until it has passed the first half; both continue."""
    here, half = afternoon.here, afternoon.here.load.produced
    afternoon.live |= {"worker": here.start("run", pipeline="worker"), "frames": here.driver("frames")}
    here.load.spread(0.8, afternoon.minutes * 120)
    with ThreadPoolExecutor() as pool:
        waits = {group: pool.submit(here.wait, group, half, process) for group, process in afternoon.live.items()}
    worker, frames = (waits[group].result() for group in ("worker", "frames"))
    afternoon.compare(KEYED, "side by side")
    yield Took("worker beside frames: worker", worker, by_hand.consume(here, half), "by hand: consume, COPY")
    yield Took("worker beside frames: frames", frames, None, "from the start of its JVM; by hand: as a reload's")


def verified(afternoon: Afternoon, spark: SparkSession) -> Iterator[Took]:
    """Verify both, under load; by hand that is the recomputation in plain Python."""
    for group in KEYED:
        began = monotonic()
        name = f"afternoon.declared:{group}"
        if group == "worker":
            report = Reload(
                [name], afternoon.here.engine, afternoon.here.kafka, stager=_stager(afternoon, spark)
            ).verify()
        else:
            report = verify(spark, name, kafka=afternoon.here.kafka).report
        seconds = monotonic() - began
        if not report.is_empty:
            afternoon.found(f"verify: {group} differs: {[table.counts for table in report.tables]}")
        began = monotonic()
        afternoon.compare([group], "after verify")
        yield Took(f"verify: {group}", seconds, monotonic() - began, "by hand: plain Python")


def _stager(afternoon: Afternoon, spark: SparkSession) -> SparkStager:
    return SparkStager(spark, afternoon.here.kafka)


def reloaded(afternoon: Afternoon, spark: SparkSession, where: str) -> Iterator[Took]:
    """Damage rows, and reload both by each strategy, under load."""
    spark.range(1).count()  # executors are there
    for strategy in ("merge", "swap"):
        hand = by_hand.rebuild(spark, afternoon.here) if strategy == "swap" and where != "cluster" else None
        for group in KEYED:
            changed, deleted = _damage(afternoon.here, group)
            reports = list[Report]()
            began = monotonic()
            _reload(afternoon, spark, group, strategy, reports.append)
            seconds = monotonic() - began
            counts = [table.counts for report in reports[-1:] for table in report.tables if "entries" in table.table]
            repaired = [(count["different"], count["missing"], count["extra"]) for count in counts]
            if strategy == "merge" and repaired != [(changed, deleted, 0)]:
                afternoon.found(f"{strategy} of {group}: {changed} rows were changed, {deleted} deleted: {counts}")
            afternoon.compare([group], f"after {strategy} of {group} on {where}")
            yield Took(f"reload {group} by {strategy}, {where}", seconds, hand, f"{changed + deleted} rows repaired")


def _damage(here: Setting, group: str) -> tuple[int, int]:
    changed = here.execute(f"UPDATE {group}_entries SET words = words || 'x' WHERE n % 101 = 1 AND n % 103 <> 2")
    deleted = here.execute(f"DELETE FROM {group}_entries WHERE n % 103 = 2")
    here.execute(f"UPDATE {group}_sums SET cents = cents + 1")
    here.execute(f"DELETE FROM {group}_newest WHERE n % 3 = 0")
    return changed, deleted


def _reload(
    afternoon: Afternoon, spark: SparkSession, group: str, strategy: str, compared: Callable[[Report], None]
) -> None:
    name, limits = f"afternoon.declared:{group}", dict[str, Any](max_wait=300.0, max_deletes=1.0, compared=compared)
    if group == "worker":
        job = Reload([name], afternoon.here.engine, afternoon.here.kafka, stager=_stager(afternoon, spark), **limits)
        job.run(job.open(strategy=strategy))
    else:
        reload(spark, name, kafka=afternoon.here.kafka, strategy=strategy, **limits)


def exported(afternoon: Afternoon, spark: SparkSession) -> Iterator[Took]:
    """Export what the worker has applied, and read the files back by pandas and by Spark."""
    import pandas as pd

    here = afternoon.here
    archive, began = Archive(here.folder / "archive", here.engine), monotonic()
    Export(here.engine, here.kafka, archive, "worker", writer=SparkWriter(spark, here.kafka)).run()
    yield Took("export", monotonic() - began, by_hand.export(spark, here), "by hand: write.parquet")
    files, began, ends = archive.files(TOPIC), monotonic(), [0] * PARTITIONS
    read = {(p, o): (k, v) for file in files for p, o, k, v in _rows(pd.read_parquet(file))}
    sums = [0] * PARTITIONS
    for fact in here.facts:
        if (row := read.pop((fact.partition, fact.offset), None)) is not None:
            ends[fact.partition] += 1
            sums[fact.partition] += crc32(row[1] or b"")
            if row != (fact.name.encode(), encode(fact)):
                afternoon.found(f"pandas read another record at {fact.partition}/{fact.offset}")
    if read or sum(ends) < here.facts.count // 2:
        afternoon.found(f"pandas read {sum(ends):,} records, and {len(read)} that were not produced")
    yield Took("export: read back by pandas", monotonic() - began, note=f"{sum(ends):,} records")
    began = monotonic()
    rows = spark.read.parquet(*files).selectExpr("partition", "crc32(coalesce(value, X'')) AS sum").groupBy("partition")
    totals = {row[0]: tuple(row[1:]) for row in rows.agg({"*": "count", "sum": "sum"}).collect()}
    if totals != {n: (ends[n], sums[n]) for n in range(PARTITIONS)}:
        afternoon.found(f"Spark read {totals}, instead of {ends} records with the sums {sums}")
    yield Took("export: read back by Spark", monotonic() - began)


def _rows(frame: Any) -> Iterator[tuple[Any, ...]]:
    return zip(frame["partition"], frame["offset"], frame["key"], frame["value"], strict=True)


def queried(afternoon: Afternoon, spark: SparkSession) -> Iterator[Took]:
    """A query of ``foreach_batch`` over what is there, whose checkpoint is deleted in between."""
    here, checkpoint, most = afternoon.here, afternoon.here.folder / "checkpoint", afternoon.here.facts.count // 5
    seconds = list[float]()
    for _ in range(2):
        shutil.rmtree(checkpoint, ignore_errors=True)
        began, records = (
            monotonic(),
            spark.readStream.format("seekpoint").options(**here.source, maxOffsetsPerTrigger=most),
        )
        writer = records.load().writeStream.foreachBatch(foreach_batch("afternoon.declared:query"))
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
        seconds.append(monotonic() - began)
    passed = here.passed("query")
    afternoon.compare(["query"], "after the checkpoint was deleted")
    hand, twice = by_hand.query(spark, here, most)
    note = (
        f"{passed:,} records; without its checkpoint {seconds[1]:.0f} s more; by hand {twice:,} rows were written twice"
    )
    yield Took("foreach_batch, its checkpoint deleted", seconds[0], hand, note)


def streamed(afternoon: Afternoon) -> Iterator[Took]:
    """A stream for some minutes, with kills of its drivers and executors, evenly."""
    here, chance, began, killed = afternoon.here, Random(afternoon.seed), monotonic(), Counter[str]()
    here.load.spread(0.95, afternoon.minutes * 60)
    most = str(max(here.facts.count // 50, 100))  # in each micro-batch, so that there are many
    words = ("--trigger", "1s", "--max-records", most)
    driver = here.driver("stream", *words, master=LOCAL_CLUSTER)
    for number in range(afternoon.kills):
        here.wait_for_progress("stream", driver)
        left = began + afternoon.minutes * 60 * (number + chance.random()) / afternoon.kills - monotonic()
        threading.Event().wait(max(left, 0))  # else each kill came shortly after a COMMIT
        if number % 2:
            until(lambda: kill_children(driver, EXECUTOR, chance), "an executor to kill", PATIENCE)  # noqa: B023
            killed["executor"] += 1
        else:
            killed["driver"] += driver.kill() == -signal.SIGKILL
            driver = here.driver("stream", *words, master=LOCAL_CLUSTER)
    here.wait_for_progress("stream", driver)
    threading.Event().wait(max(began + afternoon.minutes * 60 - monotonic(), 0))
    driver.kill()
    if killed.total() != afternoon.kills:
        afternoon.found(f"stream: {dict(killed)} were killed, instead of {afternoon.kills}")
    note = f"killed {dict(killed)}, and the last driver; {here.passed('stream'):,} records"
    yield Took("stream under kills", monotonic() - began, note=note)
    afternoon.compare(["stream"], "after the kills")


def two_drivers(afternoon: Afternoon) -> Iterator[Took]:
    """Start a second driver of a group while one runs: the older one ends with ``Fenced``."""
    here, began = afternoon.here, monotonic()
    here.load.spread(1.0, 60)
    older = here.driver("stream")
    here.wait_for_progress("stream", older)
    newer = here.driver("stream")
    until(lambda: not (older.is_alive and newer.is_alive), "the older driver to be fenced", PATIENCE)
    if older.exit_code != 1 or Fenced.code not in older.errors:
        afternoon.found(f"two drivers: the older one was not fenced: {older.tail()}")
    afternoon.live["stream"] = newer
    yield Took("two drivers at once", monotonic() - began, note="the older one ended with Fenced")


def the_rest(afternoon: Afternoon) -> Iterator[Took]:
    """Produce what is left, let every group apply all records, and compare all tables."""
    here, began = afternoon.here, monotonic()
    here.load.rest()
    for group in GROUPS:
        process = afternoon.live.get(group) or here.driver(group, "--available-now")
        here.wait(group, here.facts.count, process)
        process.terminate()
        if process.ended(PATIENCE):
            afternoon.found(f"{group}: exit code {process.exit_code} at the end: {process.tail()}")
    yield Took("all records applied by all groups", monotonic() - began, note=f"{here.facts.count:,} records, 4 groups")
    began = monotonic()
    afternoon.compare(list(GROUPS), "at the end")
    yield Took("compare all tables, row by row", monotonic() - began, note=f"{len(afternoon.findings)} findings in all")
