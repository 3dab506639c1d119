"""``seekpoint.spark.reload``: the tables of a SparkPipeline, rebuilt from the log and put in place."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from jobs.spark.frames import apply
from jobs.spark.orders import DATABASE
from jobs.spark.test_frames_stream import streaming
from jobs.spark.test_frames_sums import TABLES as SUMS_TABLES
from jobs.spark.test_frames_verify import BOTH, counts
from seekpoint import Accumulate, Append, Json, Pipeline, Upsert
from seekpoint.admin import Admin
from seekpoint.errors import CutOverRefused, FrameFailed, HandlerOutdated, ReloadRefused
from seekpoint.jobs.frames.frame_stager import FrameStager
from seekpoint.jobs.reload import Report, Run
from seekpoint.jobs.staging.stage import Staged, Task
from seekpoint.spark import FramesReloaded, plan_reload, reload
from support.batch_process import offsets
from support.log_changes import trim
from support.reload_orders import Order, OrdersGroup, of
from support.waiting import until

#: A row per order, the newest row of each id, and sums; the entries' amounts are multiplied by ``times``.
ALL = BOTH.replace("import Accumulate, Upsert", "import Accumulate, Append, Upsert").replace(
    "frames={{",
    """version={version}, frames={{
    "entries": Frame(lambda orders: orders.select("partition", "offset", "id",
                     (F.col("amount") * {times}).alias("amount"), "at", F.col("offset").alias("topic_offset")),
                     Append(({schema!r}, "entries"))),""",
)
Log = dict[int, list[tuple[int, int] | None]]
"""Of each partition the orders as (id, amount), by offset; None: nonsense."""


def reloaded(orders_group: OrdersGroup, spark: SparkSession, pipeline: Any, **options: Any) -> FramesReloaded:
    arguments: dict[str, Any] = {
        "kafka": {"bootstrap.servers": orders_group.brokers},
        "database": DATABASE,
        "schema": orders_group.schema,
    }
    return reload(spark, pipeline, **arguments | {"max_wait": 300.0, "max_deletes": 1.0} | options)


def runs(orders_group: OrdersGroup) -> list[tuple[Any, ...]]:
    return orders_group.execute(
        "SELECT strategy, state FROM {schema}.reload_run WHERE :g = ANY (groups) ORDER BY opened_at",
        g=orders_group.group,
    )


def region(id_: int) -> str:
    """As the frame by_region has it, with the customers of SUMS_TABLES."""
    return "nowhere" if id_ % 5 == 0 else "north" if id_ % 2 == 0 else "south"


def worker_pipeline(orders_group: OrdersGroup) -> Pipeline[Any, Any]:
    """Version 1 of the group, without Spark: the same tables by row=."""

    def entry(record: Any) -> dict[str, Any]:
        order = record.value
        return {"id": order.id, "amount": order.amount, "at": order.at, "topic_offset": record.offset}

    def sums(record: Any) -> dict[str, Any]:
        order = record.value
        both = {"first_at": order.at, "last_at": order.at}
        return {"region": region(order.id), "day": order.at % 3, "cents": order.amount, "orders": 1, **both}

    return Pipeline(
        orders_group.group,
        topics=orders_group.topic,
        value=Json(Order),
        on_poison="dead_letter",
        sinks=[
            Append((orders_group.schema, "entries"), columns=["id", "amount", "at", "topic_offset"], row=entry),
            Upsert(
                (orders_group.schema, "orders"), key=["id"], columns=["id", "amount", "at"], offset_column="note_offset"
            ),
            Accumulate(
                (orders_group.schema, "sales"),
                key=["region", "day"],
                add=["cents", "orders"],
                least=["first_at"],
                most=["last_at"],
                row=sums,
            ),
        ],
    )


def add(orders_group: OrdersGroup, log: Log, count: int, first: int = 0) -> None:
    """So many orders in each partition; their amounts and times are their numbers."""
    for partition, its in log.items():
        orders = [(n + partition * 1000, n) for n in range(first, first + count)]
        orders_group.produce(orders_group.topic, [of(id_, n, n) for id_, n in orders], partition=partition)
        its.extend(orders)


def expected(log: Log, times: int = 2) -> tuple[Any, ...]:
    """The tables, by a plain loop over the log."""
    entries, newest, sums = [], {}, dict[tuple[str, int], list[int]]()
    for its in log.values():
        for offset, order in enumerate(its):
            if order is not None:
                id_, n = order
                entries.append((id_, times * n, offset, n))
                newest[id_] = (id_, n, n, offset)
                row = sums.setdefault((region(id_), n % 3), [0, 0, n, n])
                row[:] = [row[0] + n, row[1] + 1, min(row[2], n), max(row[3], n)]
    sales = [(*key, *row, "none") for key, row in sorted(sums.items())]
    return sorted(entries), sorted(newest.values()), sales


def tables(orders_group: OrdersGroup) -> tuple[Any, ...]:
    return (
        orders_group.rows("entries", "id, amount, topic_offset, at"),
        orders_group.rows("orders", "id, amount, at, note_offset"),
        orders_group.rows("sales", "region, day, cents, orders, first_at, last_at, note"),
    )


@pytest.fixture
def log(frames_group: OrdersGroup) -> Log:
    """The group's records: 160 orders and nonsense, which a worker of version 1 has applied."""
    orders_group, log = frames_group, Log({0: [], 1: []})
    orders_group.execute(SUMS_TABLES)
    orders_group.execute("CREATE UNIQUE INDEX ON {schema}.entries (id, topic_offset)")
    add(orders_group, log, 50)
    orders_group.produce(orders_group.topic, [(json.dumps({"id": 0}), "nonsense")], partition=0)
    log[0].append(None)
    add(orders_group, log, 30, first=20)  # the ids from 20 on again
    worker = orders_group.run_worker(worker_pipeline(orders_group))
    reach(orders_group, log)
    worker.stop()
    return log


def ends(orders_group: OrdersGroup, log: Log) -> dict[str, int]:
    """The positions after all of the log."""
    return {f"{orders_group.topic}/{number}": len(its) for number, its in log.items()}


def reach(orders_group: OrdersGroup, log: Log) -> None:
    """Wait until all of the log is applied."""
    until(lambda: offsets(orders_group) == ends(orders_group, log), "all records are applied", 120)


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_tables_of_all_sinks_are_rebuilt_and_put_in_place(
    orders_group: OrdersGroup, spark: SparkSession, log: Log, frames_pipeline: Callable[..., str], strategy: str
) -> None:
    before = offsets(orders_group)
    assert tables(orders_group) == expected(log, times=1)
    orders_group.execute("UPDATE {schema}.orders SET amount = amount + 1 WHERE id < 3")
    orders_group.execute("DELETE FROM {schema}.orders WHERE id IN (10, 11)")
    orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (7777, 1, 1)")
    orders_group.execute("UPDATE {schema}.sales SET cents = cents + 7 WHERE day = 1")
    done = reloaded(orders_group, spark, frames_pipeline(ALL, version=2, times=2), strategy=strategy)
    assert tables(orders_group) == expected(log)
    assert (offsets(orders_group), orders_group.version(), orders_group.schemas()) == (before, 2, [])
    assert (done.run.state, runs(orders_group)) == ("cut_over", [(strategy, "cut_over")])
    assert (done.compared is None) == (strategy == "swap")
    if done.compared is not None:
        assert counts(done.compared)["orders"] == (95, 2, 1, 3)


@contextmanager
def older_owner(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str], owner: str
) -> Iterator[None]:
    """A worker or a stream of version 1, which the block's cut-over to version 2 ends."""
    if owner == "worker":
        worker = orders_group.run_worker(worker_pipeline(orders_group))
        yield
        worker.ends_with(HandlerOutdated)
        return
    with streaming(orders_group, spark, frames_pipeline(ALL, version=1, times=1)) as stream:
        yield
        stream.thread.join(120)
    assert isinstance(stream.error, HandlerOutdated)


@pytest.mark.parametrize("owner", ["worker", pytest.param("stream", marks=pytest.mark.long("the other owner"))])
def test_an_owner_of_the_older_version_continues_meanwhile_and_waits_for_the_cut_over(
    orders_group: OrdersGroup,
    spark: SparkSession,
    log: Log,
    frames_pipeline: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    owner: str,
) -> None:
    """I1, I5: records are applied during passes and after the comparison; in the last pass positions are locked."""
    states: list[str] = []
    stage = FrameStager.stage

    def more() -> None:
        add(orders_group, log, 2, first=30 + 2 * len(states))  # ids that are there already
        reach(orders_group, log)

    def and_more(self: FrameStager, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        yield from stage(self, run, tasks)
        if run.strategy == "batch":  # of the stream
            return
        states.append(run.state)
        if states in (["staging"], ["staging", "catching_up", "compared"]):
            more()
        elif len(states) == 4:
            for partition in (0, 1):
                orders_group.produce(orders_group.topic, [of(partition * 1000, 7, 7)], partition=partition)
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            until(lambda: orders_group.execute(waiting)[0][0] > 0, "the owner waits for its positions", 300)

    def hear(_: Report) -> None:
        more()

    monkeypatch.setattr(FrameStager, "stage", and_more)
    with older_owner(orders_group, spark, frames_pipeline, owner):
        done = reloaded(orders_group, spark, frames_pipeline(ALL, version=2, times=2), compared=hear)
    assert states == ["staging", "catching_up", "compared", "compared"]
    assert (tables(orders_group), orders_group.version()) == (expected(log), 2)
    assert offsets(orders_group) == ends(orders_group, log)
    assert (done.cut_over.lock_seconds > 0, done.cut_over.tries) == (True, 1)


@pytest.mark.long("a stream that waits for a reload, and continues or ends")
@pytest.mark.parametrize(("version", "strategy"), [(1, "swap"), (2, "merge")])
def test_rows_that_a_stream_has_staged_before_a_cut_over_are_not_published_after_it(
    orders_group: OrdersGroup,
    spark: SparkSession,
    log: Log,
    frames_pipeline: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    version: int,
    strategy: str,
) -> None:
    """I1, I2, I5: the stream is fenced, and continues unless the group has a newer version."""
    newer = frames_pipeline(ALL, version=version, times=version)
    has_staged, may_publish = threading.Event(), threading.Event()
    stage = FrameStager.stage

    def and_wait(self: FrameStager, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        yield from stage(self, run, tasks)
        if run.strategy == "batch":
            has_staged.set()
            assert may_publish.wait(300)

    monkeypatch.setattr(FrameStager, "stage", and_wait)
    add(orders_group, log, 5, first=60)
    with streaming(orders_group, spark, frames_pipeline(ALL, version=1, times=1)) as stream:
        try:
            assert has_staged.wait(300)
            reloaded(orders_group, spark, newer, strategy=strategy)
            assert sum(offsets(orders_group).values()) == 161
        finally:
            may_publish.set()
        if version == 1:
            reach(orders_group, log)
        else:
            stream.thread.join(120)
    assert (stream.error is None) if version == 1 else isinstance(stream.error, HandlerOutdated)
    apply(orders_group, spark, newer)
    assert (tables(orders_group), offsets(orders_group)) == (expected(log, times=version), ends(orders_group, log))
    assert orders_group.schemas() == []


def test_records_that_the_new_codec_cannot_decode_become_dead_letters_of_the_group(
    orders_group: OrdersGroup, spark: SparkSession, log: Log, frames_pipeline: Callable[..., str]
) -> None:
    """I4: their rows, and what they added to sums, are removed within bounds."""
    pickier = ALL.replace("    amount: int\n", "    amount: Annotated[int, msgspec.Meta(lt=40)]\n")
    name = frames_pipeline("from typing import Annotated\n" + pickier, version=2, times=1)
    with pytest.raises(CutOverRefused, match=r"--max-deletes 0\.\d+` \(reload\(…, max_deletes=…\)\)") as refused:
        reloaded(orders_group, spark, name, max_deletes=0.1)
    [(run, state)] = orders_group.execute("SELECT id, state FROM {schema}.reload_run")
    assert state == "compared"
    assert f"seekpoint spark reload {name} --resume {run} --max-deletes" in str(refused.value)
    assert tables(orders_group) == expected(log, times=1)
    done = reloaded(orders_group, spark, name, resume=run)
    rest = {number: [entry if entry and entry[1] < 40 else None for entry in its] for number, its in log.items()}
    assert (done.run.id, tables(orders_group)) == (run, expected(rest, times=1))
    dead_letters = orders_group.execute(
        "SELECT count(*) FROM {schema}.dead_letter WHERE consumer_group = :g", g=orders_group.group
    )
    assert dead_letters == [(sum(entry is None for its in rest.values() for entry in its),)]


def test_what_would_be_done_is_shown_and_changes_nothing(
    orders_group: OrdersGroup, spark: SparkSession, log: Log, frames_pipeline: Callable[..., str]
) -> None:
    orders_group.execute("ANALYZE {schema}.sales")
    name = frames_pipeline(ALL, version=2, times=2)
    plan = plan_reload(
        spark, name, kafka={"bootstrap.servers": orders_group.brokers}, database=DATABASE, schema=orders_group.schema
    )
    assert (plan.records, plan.dead_letters, plan.version_from, plan.version_to) == (161, 1, 1, 2)
    assert plan.offsets == {f"{orders_group.topic}/{number}": (0, len(its)) for number, its in log.items()}
    (sales,) = [table for table in plan.tables if table.table.endswith(".sales")]
    assert (sales.sink, sales.rows, sales.inputs) == ("Accumulate", 9, ("customers",))
    joined = f"{orders_group.schema}.sales: the rebuilt rows are joined with customers as it is now, not as it was "
    assert f"{joined}when the live rows were written" in plan.sentences()
    assert (runs(orders_group), orders_group.version()) == ([], 1)


def test_what_cannot_be_rebuilt_is_refused_in_words_and_nothing_live_is_changed(
    orders_group: OrdersGroup, spark: SparkSession, log: Log, frames_pipeline: Callable[..., str]
) -> None:
    failing = ALL.replace('F.col("amount") * {times}', 'F.assert_true(F.col("amount") < 45).isNull().cast("bigint")')
    with pytest.raises(FrameFailed, match=r"Nothing of .* is written"):
        reloaded(orders_group, spark, frames_pipeline(failing, version=2, times=1))
    name = frames_pipeline(ALL, version=2, times=2)
    orders_group.execute("CREATE TABLE {schema}.regions (id bigint PRIMARY KEY)")
    orders_group.execute("ALTER TABLE {schema}.orders ADD FOREIGN KEY (id) REFERENCES {schema}.regions NOT VALID")
    with pytest.raises(ReloadRefused, match=r"rebuilt rows refer to missing rows: .* violates foreign key constraint"):
        reloaded(orders_group, spark, name)
    assert runs(orders_group) == [("merge", "failed"), ("merge", "failed")]
    trim(AdminClient({"bootstrap.servers": orders_group.brokers}), orders_group.topic, 10)
    with pytest.raises(
        ReloadRefused, match=r"began at offset 0, but the log now begins at 10: .* cannot read archives"
    ):
        reloaded(orders_group, spark, name)
    assert (tables(orders_group), orders_group.version(), len(runs(orders_group))) == (expected(log, times=1), 1, 2)
    Admin(orders_group.engine, schema=orders_group.schema).runs.sweep()
    assert orders_group.schemas() == []
