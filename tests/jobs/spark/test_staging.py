"""Staging by Spark's tasks: every record once, although tasks crash, repeat or are late; and clear errors."""

from __future__ import annotations

import importlib
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from jobs.spark.orders import BEHIND_COMMIT, DATABASE, DEPLOYED, IN_A_ROW, appending, expected
from seekpoint.errors import ConfigError, RangeLost, ReloadOver, ReloadRefused, TopicRecreated
from seekpoint.jobs.frames import frame_stager
from seekpoint.jobs.frames.frame_stager import FrameStager
from seekpoint.jobs.reload import Driver, Reload
from seekpoint.jobs.spark.job import Executors
from seekpoint.jobs.staging.consolidate import coverage
from seekpoint.jobs.staging.stage import Task, begin_staging
from seekpoint.jobs.staging.task_errors import error_as_text, error_of, missing_module, report_task_error
from seekpoint.records import Partition
from seekpoint.spark import REDACTED, Env, SparkStager
from support.log_changes import trim
from support.reload_orders import PLAIN, OrdersGroup, of


class Job:
    """A group's reload by Spark, opened when each partition has 100 records."""

    def __init__(self, orders_group: OrdersGroup, spark: SparkSession, name: str, **options: Any) -> None:
        self.orders_group = orders_group
        kafka = {"bootstrap.servers": orders_group.brokers}
        self.stager = SparkStager(
            spark, kafka, database=DATABASE, schema=orders_group.schema, range_records=1, **options
        )
        self.reload = Reload(
            [name], orders_group.engine, kafka, schema=orders_group.schema, stager=self.stager, range_records=40
        )

    def opened(self) -> Driver:
        driver = self.reload.open()
        begin_staging(driver, self.reload.sources)
        return driver

    def tasks(self, driver: Driver) -> tuple[Task, ...]:
        with driver.step("staging") as tx:
            return coverage(tx, 40).missing


@pytest.fixture
def job(orders_group: OrdersGroup, spark: SparkSession, applied_pipeline: Callable[[str], str]) -> Callable[..., Job]:
    return lambda source=PLAIN: Job(orders_group, spark, applied_pipeline(source))


def test_a_secret_that_spark_would_log_is_refused() -> None:
    def session(**settings: str) -> Any:
        return SimpleNamespace(conf=SimpleNamespace(get=lambda key, default=None: settings.get(key, default)))

    url = {"spark.executorEnv.SEEKPOINT_DATABASE_URL": "postgresql://u:hunter2@h/db"}
    with pytest.raises(
        ConfigError, match=r"spark.executorEnv.SEEKPOINT_DATABASE_URL is written to Spark's event log"
    ) as caught:
        SparkStager(session(**url), {})
    assert "hunter2" not in str(caught.value)
    SparkStager(session(**url, **{"spark.redaction.regex": REDACTED}), {})
    password = {"spark.executorEnv.KAFKA_PASSWORD": "hunter2"}
    SparkStager(session(**password), {"sasl.password": Env("KAFKA_PASSWORD")})  # Spark replaces it by itself
    with pytest.raises(ConfigError, match=r"spark.executorEnv.KAFKA_PW is written to Spark's event log"):
        SparkStager(session(**{"spark.executorEnv.KAFKA_PW": "hunter2"}), {"sasl.password": Env("KAFKA_PW")})
    java = {"spark.redaction.regex": r"secret|(?i)token|(?<url>_URL)"}
    with pytest.raises(ConfigError, match=r"Python does not \(.*Set a pattern .*seekpoint.spark.REDACTED") as caught:
        SparkStager(session(**url, **java), {})
    assert "hunter2" not in str(caught.value)
    SparkStager(session(**java), {})  # no secret is given by Spark's settings


@pytest.mark.long("another error of Spark's tasks")
@pytest.mark.repeats("what")
@pytest.mark.parametrize("what", ["the pipeline's module", "a module that it imports"])
def test_a_module_that_only_the_driver_has_is_missing_there(
    job: Callable[..., Job], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As on a cluster whose executors were not given it."""
    here = tmp_path / "only-here"
    here.mkdir()
    monkeypatch.syspath_prepend(str(here))
    alone = f"alone_{secrets.token_hex(6)}"
    staged_job = job(f"import {alone}\n{PLAIN}") if what.startswith("a module") and _write(here, alone, "") else job()
    if what.startswith("the"):
        _write(here, alone, f"from {staged_job.reload.sources[0].name.split(':')[0]} import orders\n")
        staged_job = Job(staged_job.orders_group, spark, f"{alone}:orders")
    driver = staged_job.opened()
    with pytest.raises(ConfigError, match=rf"on the executor \S+: .*{alone}.*Executors need the modules"):
        list(staged_job.stager.stage(driver.run, staged_job.tasks(driver)))
    assert staged_job.reload.runs.get(driver.run.id).state == "staging", "the run continues with the right modules"


def _write(folder: Path, name: str, source: str) -> bool:
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    importlib.invalidate_caches()
    return True


def test_a_whole_reload_by_spark(job: Callable[..., Job]) -> None:
    staged_job = job()
    progress: list[tuple[str, int, int]] = []
    staged_job.reload._progress = lambda *step: progress.append(step)
    staged_job.reload.run(staged_job.reload.open())
    assert staged_job.orders_group.rows() == expected()
    assert [step for step in progress if step[0] == "staging"][-1] == ("staging", 200, 200)


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("source", [IN_A_ROW, BEHIND_COMMIT], ids=["in mid-transaction", "behind its commit"])
def test_a_worker_that_is_killed_is_replaced_and_nothing_counts_twice(
    job: Callable[..., Job], tmp_path: Path, source: str
) -> None:
    staged_job = job(source)
    driver = staged_job.opened()
    tasks = staged_job.tasks(driver)
    staged = list(staged_job.stager.stage(driver.run, tasks))
    assert (tmp_path / "marker").exists(), "no process was killed"
    places = sorted((range_.partition, range_.start, range_.end) for range_ in staged)
    assert places == sorted((task.range.partition, task.range.start, task.range.end) for task in tasks)
    rows = staged_job.orders_group.execute("SELECT count(*) FROM {schema}.reload_staged")
    assert rows == [(len(tasks) + (source == BEHIND_COMMIT),)]
    staged_job.reload.run(driver)
    assert staged_job.orders_group.rows() == expected()


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("source", [IN_A_ROW, BEHIND_COMMIT], ids=["in mid-transaction", "behind its commit"])
def test_of_a_table_that_tasks_write_directly_a_killed_worker_leaves_no_row_twice(
    job: Callable[..., Job], orders_group: OrdersGroup, tmp_path: Path, source: str
) -> None:
    orders_group.execute("CREATE TABLE {schema}.plain (id bigint, amount bigint, at bigint)")
    staged_job = job(appending(source))
    driver = staged_job.reload.open(strategy="swap")
    assert driver.plan == (f"{orders_group.schema}.plain: tasks write its rebuilt table directly",)
    staged_job.reload.stage(driver)
    assert (tmp_path / "marker").exists(), "no process was killed"
    places = orders_group.execute("SELECT partition, from_offset, to_offset FROM {schema}.reload_staged ORDER BY 1, 2")
    assert places == [(n, start, end) for n in (0, 1) for start, end in ((0, 40), (40, 80), (80, 100))]
    staged_job.reload.run(driver)
    assert orders_group.rows("plain") == expected()


@pytest.mark.long
def test_a_record_that_ends_the_run_is_reported_with_the_error_it_raised(job: Callable[..., Job]) -> None:
    staged_job = job()
    staged_job.orders_group.produce(staged_job.orders_group.topic, [of(7, 2_000)], partition=1)  # version 2 refuses it
    worker = staged_job.orders_group.worker()
    worker.finish(staged_job.orders_group.topic, 101, 1)
    driver = staged_job.reload.open()
    with pytest.raises(ReloadRefused, match="offset 100: row: ValueError: too much") as refused:
        staged_job.reload.stage(driver)
    assert "Fix the pipeline" in refused.value.reasons[0]
    assert staged_job.reload.runs.get(driver.run.id).state == "failed"


@pytest.mark.long
def test_what_ends_the_run_is_not_tried_again(job: Callable[..., Job], tmp_path: Path) -> None:
    """Spark would, three times more and with all that came before: the answer is the same, some seconds later."""
    staged_job = job(
        PLAIN
        + """
import os, pathlib

def first(record):
    if record.offset == 60:
        with pathlib.Path({marker!r}).open("a") as file:
            file.write(f"{{record.partition}} {{os.getpid()}}\\n")
        raise ValueError("not this one")
"""
    )
    driver = staged_job.reload.open()
    with pytest.raises(ReloadRefused, match="offset 60: row: ValueError: not this one"):
        staged_job.reload.stage(driver)
    tries = (tmp_path / "marker").read_text().splitlines()
    assert len(tries) <= 2 * len(set(tries)), "once as a stream, and once in parts, which name the record"
    assert len({line.split()[0] for line in tries}) == len(set(tries))
    assert "not this one" in str(staged_job.reload.runs.get(driver.run.id).error)
    assert not staged_job.orders_group.execute("SELECT 1 FROM {schema}.reload_staged WHERE to_offset = 80")


@pytest.mark.long
def test_executors_with_older_code_stage_nothing_and_the_run_continues_with_the_right_one(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a task of the cancelled job reports its error when the next job has begun."""
    deployed = tmp_path / "marker"
    deployed.write_text("2")
    staged_job = job(DEPLOYED)
    driver = staged_job.reload.open()
    deployed.write_text("1")
    with pytest.raises(ConfigError, match="with handler version 2, and the code of this process is version 1"):
        staged_job.reload.stage(driver)
    assert staged_job.reload.runs.get(driver.run.id).state == "staging"
    assert staged_job.orders_group.execute("SELECT count(*) FROM {schema}.reload_staged") == [(0,)]
    deployed.write_text("2")
    plan = staged_job.stager._plan

    def plan_later(*args: Any) -> Any:
        report_task_error(
            staged_job.orders_group.engine,
            staged_job.orders_group.schema,
            driver.run.id,
            "the cancelled job",
            ConfigError("late"),
        )
        return plan(*args)

    monkeypatch.setattr(staged_job.stager, "_plan", plan_later)
    staged_job.reload.run(driver)
    assert staged_job.orders_group.rows() == expected()


@pytest.mark.long("another error of Spark's tasks")
def test_a_run_that_is_over_takes_no_more_ranges(job: Callable[..., Job]) -> None:
    staged_job = job()
    driver = staged_job.opened()
    tasks = staged_job.tasks(driver)
    staged_job.reload.runs.abort(driver.run.id, "changed my mind")
    with pytest.raises(ReloadOver, match="is aborted: it accepts no more ranges"):
        list(staged_job.stager.stage(driver.run, tasks))


def test_retention_in_mid_run_is_reported_with_partition_and_offset(job: Callable[..., Job]) -> None:
    staged_job = job()
    driver = staged_job.opened()
    tasks = staged_job.tasks(driver)
    trim(
        AdminClient({"bootstrap.servers": staged_job.orders_group.brokers, "log_level": 0}),
        staged_job.orders_group.topic,
        30,
    )
    with pytest.raises(RangeLost, match="the first offset left is 30") as lost:
        list(staged_job.stager.stage(driver.run, tasks))
    assert (lost.value.partition, lost.value.offset) == (Partition(staged_job.orders_group.topic, 0), 0)


@pytest.mark.long
def test_a_driver_that_stops_reading_results_cancels_the_rest(job: Callable[..., Job], spark: SparkSession) -> None:
    """A driver that lost its run to another one cancels its tasks at once: the cluster is not kept busy in vain."""
    staged_job = job(
        PLAIN
        + """
import threading

def first(record):
    if record.partition == 1:
        threading.Event().wait(60)
"""
    )
    driver = staged_job.opened()
    telling = staged_job.stager.stage(driver.run, staged_job.tasks(driver))
    first = next(telling)
    assert (first.partition.number, first.records) == (0, 40)
    began, pause = monotonic(), threading.Event()
    telling.close()
    assert monotonic() - began < 50, "less than what a task waits for its next record"
    while spark.sparkContext.statusTracker().getActiveJobsIds():  # Spark reports the end with a delay
        assert monotonic() - began < 50
        pause.wait(0.05)
    driver.heartbeat()


def test_nothing_to_stage_is_no_job(job: Callable[..., Job]) -> None:
    staged_job = job()
    assert list(staged_job.stager.stage(staged_job.opened().run, [])) == []


def test_a_pipeline_without_a_name_cannot_be_sent(
    orders_group: OrdersGroup, spark: SparkSession, job: Callable[..., Job]
) -> None:
    staged_job = job()
    staged_job.reload = orders_group.reload(stager=staged_job.stager)
    driver = staged_job.opened()
    with pytest.raises(ConfigError, match="name it as"):
        list(staged_job.stager.stage(driver.run, staged_job.tasks(driver)))


def test_passwords_are_given_by_name(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(ConfigError, match="would be in the job's plan") as refused:
        SparkStager(spark, kafka, database="postgresql://me:hunter2@127.0.0.1/x")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError, match="passphrase' would be in the job's plan"):
        SparkStager(spark, {**kafka, "sasl.oauthbearer.assertion.private.key.passphrase": "hunter2"})
    with pytest.raises(ConfigError, match="is not a URL"):
        SparkStager(spark, kafka, database="hunter2")
    SparkStager(spark, kafka, database="postgresql://me@127.0.0.1/x")
    monkeypatch.delenv("SEEKPOINT_DATABASE_URL", raising=False)
    with pytest.raises(ConfigError, match="SEEKPOINT_DATABASE_URL is not set"):
        Env("SEEKPOINT_DATABASE_URL").value()


def test_errors_survive_the_way_from_a_task_to_the_driver() -> None:
    partition = Partition("orders", 3)
    for error in (
        RangeLost(partition, 7, "retention"),
        TopicRecreated(partition, 7, "it was", choices=["a", "b"]),
        ReloadRefused(["one", "two"]),
        ReloadOver("over"),
        ConfigError("no"),
    ):
        carried = error_of(error_as_text(error))
        assert type(carried) is type(error)
        assert str(carried) == str(error)
        assert vars(carried).items() >= {key: value for key, value in vars(error).items() if value is not None}.items()
    assert missing_module(RuntimeError("out of memory")) is None


@pytest.mark.parametrize(
    ("lost", "where"),
    [("Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.5 executor 2): ", " on 10.0.0.5"), ("", "")],
    ids=["of an executor", "without a host"],
)
def test_a_missing_module_is_named_with_its_host(lost: str, where: str) -> None:
    error = RuntimeError(f"{lost}PythonException: Traceback\nModuleNotFoundError: No module named 'shop'")
    message = missing_module(error)
    assert str(message).startswith(f"Spark's Python workers{where} have no module 'shop' (this process may have it)")


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]"])
def test_a_local_session_waits_for_no_executor(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is the only one that is counted there, so a stage of some minutes would end as without a cluster."""
    no_executors = SimpleNamespace(getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 1))
    context = SimpleNamespace(master=master, _jsc=SimpleNamespace(sc=lambda: no_executors))
    monkeypatch.setattr("seekpoint.jobs.spark.job.context_of", lambda _: context)
    session: Any = None
    Executors(session, patience=0.0, advice="").check()
    context.master = "local-cluster[2,1,1024]"
    with pytest.raises(ConnectionError, match=r"has provided no executor.*or is full. Add some$"):
        Executors(session, patience=-1.0, advice="Add some").check()


def test_frames_without_an_executor_are_not_advised_to_change_a_stager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of DataFrames has no run to resume, and its user makes no SparkStager."""
    no_executors = SimpleNamespace(getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 1))
    context = SimpleNamespace(master="spark://host:7077", _jsc=SimpleNamespace(sc=lambda: no_executors))
    monkeypatch.setattr("seekpoint.jobs.spark.job.context_of", lambda _: context)
    waiting = SimpleNamespace(wait=lambda _: False, end=lambda: None)
    monkeypatch.setattr(frame_stager, "SparkJob", lambda *_: waiting)
    monkeypatch.setattr(frame_stager, "EXECUTOR_TIMEOUT", -1.0)
    monkeypatch.setattr(FrameStager, "_raise_reported", lambda *_: None)
    bound: Any = SimpleNamespace(spark=None, engine=None, source=None, frames=(), inputs=(), plan={}, range_records=1)
    answers: Any = None
    stager = FrameStager(bound, on_check=lambda: None)
    with pytest.raises(ConnectionError, match=r"has provided no executor for .*: add executors, or free some$"):
        stager._run({"group": "g", "run": "r", "job": "j"}, answers, "frame 'all'")
