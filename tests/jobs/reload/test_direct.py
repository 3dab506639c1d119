"""Tables that tasks write directly: each record's row once, whatever is repeated, late or killed; none is copied."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random, SystemRandom
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from seekpoint import Append
from seekpoint.errors import ConfigError, ReloadOver, ReloadRefused
from seekpoint.jobs.reload import Driver, Reload, Staged, stage_range
from seekpoint.jobs.staging import stage as staging
from seekpoint.jobs.staging.consolidate import consolidate, index
from seekpoint.jobs.staging.stage import begin_staging, store_attempt
from seekpoint.kafka.ranges import Range
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Partition
from seekpoint.runs.run import transaction
from support.before_cutover import applied_by, settled, staged, started, working
from support.ledger_worker import backend, wait_until_blocked
from support.reload_orders import OrdersGroup, of, stage, tasks
from support.reload_process import Reloader

RECORDS = [of(n, n, n) for n in range(120)]
PLAIN: dict[str, Any] = {"kind": "plain"}
COLUMNS = "topic_offset, id, amount"
OF_RUN = {"dead_letter", "left_out", "lost", "task_errors", "writes"}


@pytest.fixture
def plain_group(orders_group: OrdersGroup) -> OrdersGroup:
    """A group whose Append writes a table without unique index."""
    orders_group.execute(
        "CREATE TABLE {schema}.plain (id bigint NOT NULL, amount bigint NOT NULL CHECK (amount <> 250), "
        "at bigint NOT NULL, topic_offset bigint, note text DEFAULT 'none'); CREATE INDEX ON {schema}.plain (amount)"
    )
    return orders_group


def rows_of(records: list[Any], by: int = 2) -> list[tuple[int, ...]]:
    return [(n, n, n * by) for n in range(len(records))]


def begun(group: OrdersGroup, strategy: str = "swap", **options: Any) -> tuple[Reload, Driver]:
    reload, driver = started(group.reload(pipeline={**PLAIN, **options}), strategy=strategy)
    begin_staging(driver, reload.sources)
    return reload, driver


def rebuilt(group: OrdersGroup, driver: Driver) -> list[tuple[Any, ...]]:
    return group.execute(f"SELECT {COLUMNS} FROM {driver.run.staging_schema}.t0 ORDER BY 1, 2")


def tables(group: OrdersGroup, driver: Driver) -> set[str]:
    schema = driver.run.staging_schema
    return {row[0] for row in group.execute("SELECT tablename FROM pg_tables WHERE schemaname = :its", its=schema)}


@pytest.mark.parametrize("strategy", ["swap", "merge"])
def test_rows_are_in_the_rebuilt_table_before_it_is_consolidated_and_no_attempt_has_a_table(
    plain_group: OrdersGroup, strategy: str
) -> None:
    options: dict[str, Any] = {}
    if strategy == "merge":  # the key by which rows are compared: no two records of a partition make equal rows
        plain_group.execute("ALTER TABLE {schema}.plain ADD source text NOT NULL, ADD part int NOT NULL")
        plain_group.execute("ALTER TABLE {schema}.plain ADD place bigint, ADD UNIQUE (source, part, place)")
        plain_group.execute("ALTER TABLE {schema}.plain ALTER place SET NOT NULL")
        options = {"sink": {"provenance": {"topic": "source", "partition": "part", "offset": "place"}}}
    settled(plain_group, RECORDS, **PLAIN, **options)
    reload, driver = begun(plain_group, strategy, **options)
    assert driver.plan == (f"{plain_group.schema}.plain: tasks write its rebuilt table directly",)
    for task in tasks(driver):
        stage(reload, driver, task.range)
    assert rebuilt(plain_group, driver) == rows_of(RECORDS)
    assert tables(plain_group, driver) == {*OF_RUN, "t0"}
    reload.run(driver)
    assert plain_group.rows("plain", COLUMNS) == rows_of(RECORDS)
    assert plain_group.execute("SELECT DISTINCT note FROM {schema}.plain") == [("none",)]


def test_an_attempt_at_offsets_that_are_staged_writes_nothing_and_returns_the_other(plain_group: OrdersGroup) -> None:
    settled(plain_group, RECORDS, **PLAIN)
    reload, driver = begun(plain_group)
    first, *_ = (task.range for task in tasks(driver))
    done = stage(reload, driver, first)
    assert (done.start, done.end, done.rows) == (0, 40, [40])
    for start, end in ((0, 40), (0, 120), (39, 41), (10, 11)):
        again = Range(first.partition, first.topic_id, start, end)
        assert stage(reload, driver, again) == done
    assert rebuilt(plain_group, driver) == rows_of(RECORDS[:40])
    assert plain_group.execute("SELECT table_name FROM {schema}.reload_staged") == [(done.attempt,)]


@pytest.mark.parametrize(("start", "end"), [(110, 121), (40, 40_000)])
def test_a_range_that_is_not_the_runs_is_refused(plain_group: OrdersGroup, start: int, end: int) -> None:
    settled(plain_group, RECORDS, **PLAIN)
    reload, driver = begun(plain_group)
    attempt = Staged("any", plain_group.group, Partition(plain_group.topic, 0), start, end, 0, [0], 0)
    with (
        pytest.raises(ConfigError, match=rf"/0 \[{start}, {end}\) is outside of what run {driver.run.id} stages"),
        transaction(reload.engine, reload.schema) as tx,
    ):
        store_attempt(tx, driver.run.id, attempt, is_alone=True)
    assert plain_group.execute("SELECT count(*) FROM {schema}.reload_staged") == [(0,)]


def halted_at(monkeypatch: pytest.MonkeyPatch, offset: int, thread: str) -> tuple[threading.Event, threading.Event]:
    """Events: the thread of this name decodes the record at this offset; and it may continue."""
    reached, go, decode = threading.Event(), threading.Event(), PipelineWriters.decode

    def slow(writers: Any, raw: Any) -> Any:
        if raw.offset == offset and threading.current_thread().name.startswith(thread):
            reached.set()
            assert go.wait(60)
        return decode(writers, raw)

    monkeypatch.setattr(PipelineWriters, "decode", slow)
    return reached, go


def test_of_two_attempts_at_once_the_one_that_ends_first_counts(
    plain_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Spark's speculation: the slow one has written its rows when the other commits."""
    settled(plain_group, RECORDS, **PLAIN)
    reload, driver = begun(plain_group)
    reached, go = halted_at(monkeypatch, 39, "slow")
    first = tasks(driver)[0].range
    with ThreadPoolExecutor(1, "slow") as pool:
        slow = pool.submit(stage, reload, driver, first)
        assert reached.wait(60)
        quick = stage(reload, driver, first)
        go.set()
        assert slow.result(60) == quick
    assert rebuilt(plain_group, driver) == rows_of(RECORDS[:40])


def test_an_attempt_waits_for_another_that_is_about_to_commit(plain_group: OrdersGroup) -> None:
    settled(plain_group, RECORDS, **PLAIN)
    reload, driver = begun(plain_group)
    first = tasks(driver)[0].range
    attempt = Staged("r0_other", driver.run.groups[0], first.partition, 0, 40, 40, [40], 0)
    with ThreadPoolExecutor(1) as pool:
        with transaction(reload.engine, reload.schema) as tx:
            store_attempt(tx, driver.run.id, attempt, is_alone=True)
            late = pool.submit(stage, reload, driver, first)
            wait_until_blocked(plain_group.engine, by=backend(tx.connection))
        assert late.result(60) == attempt
    assert rebuilt(plain_group, driver) == []


@pytest.mark.repeats("early")
@pytest.mark.parametrize("early", [(0, 60), (20, 70), (30, 120), (0, 120)])
def test_ranges_are_planned_again_around_an_attempt_of_another_width(
    plain_group: OrdersGroup, early: tuple[int, int]
) -> None:
    """A task of the driver before commits after this driver has planned its ranges."""
    settled(plain_group, RECORDS, **PLAIN)
    done: list[Staged] = []

    def commit(what: str, count: int, total: int) -> None:
        if what == "staging" and not done:
            partition, topic_id = Partition(plain_group.topic, 0), reload.runs.positions(driver.run.id)[0].topic_id
            done.append(stage(reload, driver, Range(partition, topic_id, *early)))

    reload = plain_group.reload(pipeline={**PLAIN}, range_records=40, progress=commit)
    driver = reload.open(strategy="swap")
    reload.stage(driver)
    ranges = plain_group.execute("SELECT from_offset, to_offset FROM {schema}.reload_staged ORDER BY 1")
    assert early in ranges
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    reload.run(driver)
    assert plain_group.rows("plain", COLUMNS) == rows_of(RECORDS)


def test_a_task_that_still_writes_after_the_staging_is_ended_and_its_rows_are_absent(
    plain_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexes, and the cut-over, would wait for its lock: of a frozen executor for ever."""
    settled(plain_group, RECORDS, **PLAIN)
    reload, driver = begun(plain_group)
    reached, go = halted_at(monkeypatch, 30, "frozen")
    ranges = [task.range for task in tasks(driver)]
    with ThreadPoolExecutor(1, "frozen") as pool:
        frozen = pool.submit(stage, reload, driver, ranges[0])
        assert reached.wait(60)
        for range_ in ranges:
            stage(reload, driver, range_)
        consolidate(driver, reload.sources)
        index(driver, reload.sources, reload.kafka)
        go.set()
        with pytest.raises(Exception, match=r"terminating connection due to admin.*|connection is lost"):
            frozen.result(60)
    reload.run(driver)
    assert plain_group.rows("plain", COLUMNS) == rows_of(RECORDS)


def test_a_task_that_locks_the_table_after_the_staging_asks_the_run_again(
    plain_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read that the run is staging; the driver no longer finds its lock."""
    settled(plain_group, RECORDS, **PLAIN)
    reload, driver = begun(plain_group)
    first = tasks(driver)[0].range
    direct_tables = staging.direct_tables

    def late(tx: Any, *args: Any) -> Any:
        plain_group.execute("UPDATE {schema}.reload_run SET state = 'staged'")
        return direct_tables(tx, *args)

    monkeypatch.setattr(staging, "direct_tables", late)
    with pytest.raises(ReloadOver, match="is staged: it accepts no more ranges"):
        stage(reload, driver, first)


def test_records_that_cannot_be_applied_are_dead_letters_and_later_ones_are_caught_up(plain_group: OrdersGroup) -> None:
    options: dict[str, Any] = {**PLAIN, "on_poison": "dead_letter"}
    records = [*RECORDS, of(120, 1_500), of(121, 125)]  # version 2 refuses 1,500; 2 * 125 violates the CHECK
    worker = working(plain_group, records, **options)
    reload, driver = staged(plain_group.reload(pipeline=dict(options), range_records=50), strategy="swap")
    applied_by(worker, plain_group, [of(n, n) for n in range(122, 140)])
    worker.stop()
    reload.run(driver)
    assert plain_group.rows("plain", COLUMNS) == [(n, n, 2 * n) for n in range(140) if n not in {120, 121, 125}]
    dead = plain_group.execute("SELECT record_offset, cause FROM {schema}.dead_letter ORDER BY 1")
    assert dead == [(120, "row"), (121, "database"), (125, "database")]


def test_a_table_with_other_rows_than_its_tasks_reported_is_refused(plain_group: OrdersGroup) -> None:
    settled(plain_group, RECORDS, **PLAIN)
    reload, driver = begun(plain_group)
    for task in tasks(driver):
        stage(reload, driver, task.range)
    plain_group.execute(f"DELETE FROM {driver.run.staging_schema}.t0 WHERE id = 11")
    with pytest.raises(ReloadRefused, match="t0 has 119 rows, and its tasks reported 120"):
        consolidate(driver, reload.sources)


def test_a_unique_index_that_is_added_meanwhile_and_refuses_a_row_ends_the_run(plain_group: OrdersGroup) -> None:
    settled(plain_group, [*RECORDS, of(1, 1, 1)], **PLAIN)
    reload, driver = begun(plain_group)
    plain_group.execute("DELETE FROM {schema}.plain WHERE topic_offset = 120")
    plain_group.execute("CREATE UNIQUE INDEX ON {schema}.plain (id)")
    with pytest.raises(
        ReloadRefused, match=r"plain'\): a unique index, .* that came since the staging began refuses a row"
    ):
        reload.stage(driver)
    assert reload.runs.get(driver.run.id).state == "failed"


def test_a_run_that_is_resumed_with_other_columns_ends(plain_group: OrdersGroup) -> None:
    """Of the same version, so that it is not refused before: rows would silently lack the column."""
    settled(plain_group, RECORDS, **PLAIN)
    reload, driver = begun(plain_group)
    stage(reload, driver, tasks(driver)[0].range)
    pipeline: Any = plain_group.pipeline(version=2, **PLAIN)
    pipeline.sinks = (
        Append((plain_group.schema, "plain"), columns=["id", "amount", "at"], row=pipeline.sinks[0].row_of),
    )
    other = plain_group.reload([pipeline])
    with pytest.raises(
        ReloadRefused, match="wrote different columns, id, amount, at, topic_offset and id, amount, at: "
    ):
        other.stage(other.take_over(driver.run.id))


COPIED: list[tuple[str, dict[str, Any], str]] = [
    (
        "SELECT 1",
        {"kind": "upsert"},
        "orders: its rows are staged, and then copied, because an Upsert keeps one row of each",
    ),
    (
        "SELECT 1",
        {"keep_key_order": True, "on_poison": "dead_letter"},
        "because with keep_key_order a record can be blocked",
    ),
    ("CREATE UNIQUE INDEX ON {schema}.plain (id)", {}, "because a unique index or foreign key may refuse rows of"),
    ("ALTER TABLE {schema}.plain ADD n bigserial", {}, "because the default of n numbers rows in the order of the log"),
    ("ALTER TABLE {schema}.plain ADD n int GENERATED ALWAYS AS IDENTITY", {}, "because the default of n numbers rows"),
]


def test_why_a_table_is_copied_is_said_at_the_opening(plain_group: OrdersGroup) -> None:
    settled(plain_group, RECORDS[:5], **PLAIN)
    for altered, options, why in COPIED:
        plain_group.execute(altered)
        reload = plain_group.reload(pipeline={**PLAIN, **options})
        driver = reload.open(strategy="swap")
        assert why in driver.plan[0]
        begin_staging(driver, reload.sources)
        assert "t0" not in tables(plain_group, driver)
        reload.runs.abort(driver.run.id, "a test")
        plain_group.execute("DROP INDEX IF EXISTS {schema}.plain_id_idx; ALTER TABLE {schema}.plain DROP IF EXISTS n")


# -- killed --------------------------------------------------------------------------------------------------------


def killed(plain_group: OrdersGroup, line: int, chance: Random) -> Reloader:
    """Run a reload in a process that is killed before this line (0: never), while tasks of another driver stage.

    Another driver completes it; returns the process.
    """
    reload = plain_group.reload(pipeline={**PLAIN})
    run = reload.open(strategy="swap").run.id
    partition, topic_id = Partition(plain_group.topic, 0), reload.runs.positions(run)[0].topic_id
    pipeline = reload.sources[0].pipeline
    process = Reloader(plain_group, run, width=50, line=line, **PLAIN)

    def stage_others() -> None:
        with suppress(ReloadOver, OperationalError, psycopg.OperationalError):  # or its session was ended
            while process.is_alive:
                start = chance.randrange(119)
                range_ = Range(partition, topic_id, start, chance.randint(start + 1, 120))
                stage_range(reload.engine, reload.schema, reload.kafka, run, pipeline=pipeline, range_=range_)

    with process, ThreadPoolExecutor(1) as pool:
        assert process.reaches("driving"), process.errors
        others = pool.submit(stage_others)
        process.ended()
        others.result(60)
    if process.exit_code:
        assert process.exit_code == -signal.SIGKILL, process.errors
        reload.run(reload.take_over(run))
    return process


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long("more lines"))])
def test_a_driver_killed_at_any_line_of_its_staging_loses_and_repeats_no_row(
    plain_group: OrdersGroup, kills: int
) -> None:
    """With SIGKILL, while tasks of another driver stage ranges of other widths; seeded."""
    seed = SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance, codes = Random(seed), list[int | None]()
    settled(plain_group, RECORDS, **PLAIN)
    lines = int(killed(plain_group, 0, chance).all("done")[0]["lines"])
    for line in sorted(chance.sample(range(1, lines), kills)):
        codes.append(killed(plain_group, line, chance).exit_code)  # 0 if the others left it fewer lines to reach
        assert plain_group.rows("plain", COLUMNS) == rows_of(RECORDS), f"seed {seed}, line {line}"
        assert plain_group.schemas() == [], f"seed {seed}, line {line}"
    assert -signal.SIGKILL in codes, f"seed {seed}"
