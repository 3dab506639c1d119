"""A stream of micro-batches: it waits, continues after trouble, pauses and resets, and stops when it is asked to."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg.errors import TooManyConnections
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's own pages have it

from jobs.spark.frames import SALES, apply, doubled, driver_of, entries, produced
from seekpoint import Append
from seekpoint.admin import Admin
from seekpoint.errors import ConfigError, Fenced, FrameFailed
from seekpoint.jobs.frames.stream import NOTHING
from seekpoint.runs.run import Driver
from seekpoint.spark import Frame, FramesDone, SparkPipeline
from support.batch_process import offsets
from support.reload_orders import OrdersGroup, of
from support.waiting import until

pytestmark = pytest.mark.usefixtures("frames_group")


class Stream:
    """A stream on a thread of its own."""

    def __init__(self, orders_group: OrdersGroup, spark: SparkSession, name: Any, **options: Any) -> None:
        self.stop, self.done = threading.Event(), NOTHING
        self.error: BaseException | None = None
        arguments = {"available_now": False, "trigger": 0.1, "stop": self.stop} | options

        def target() -> None:
            try:
                self.done = apply(orders_group, spark, name, **arguments)
            except BaseException as error:  # noqa: BLE001 -- the test looks at it
                self.error = error

        self.thread = threading.Thread(target=target, name="stream")
        self.thread.start()

    def end(self) -> FramesDone:
        """Stop it after the open micro-batch."""
        self.stop.set()
        self.thread.join(120)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.done


@contextmanager
def streaming(orders_group: OrdersGroup, spark: SparkSession, name: Any, **options: Any) -> Iterator[Stream]:
    stream = Stream(orders_group, spark, name, **options)
    try:
        yield stream
    finally:
        stream.stop.set()
        stream.thread.join(120)


def applied(orders_group: OrdersGroup, count: int) -> None:
    wanted = {f"{orders_group.topic}/{number}": count for number in (0, 1)}
    until(lambda: offsets(orders_group) == wanted, f"offset {count} of both partitions", 120)


def worker(orders_group: OrdersGroup) -> tuple[Any, ...]:
    """The newest worker's state, host, pid and client."""
    columns, where = "state, host, pid, client_id, trouble", "WHERE consumer_group = :g ORDER BY started_at DESC"
    rows = orders_group.execute(f"SELECT {columns} FROM {{schema}}.worker {where}", g=orders_group.group)
    return rows[0] if rows else ()


def test_it_applies_what_comes_until_it_is_stopped(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    """Operators see a worker: host, pid and Spark's application id."""
    name = frames_pipeline()
    produced(orders_group, 10)
    with streaming(orders_group, spark, name) as stream:
        applied(orders_group, 10)
        produced(orders_group, 20, first=10)
        applied(orders_group, 30)
        here = ("running", socket.gethostname(), os.getpid(), f"spark {spark.sparkContext.applicationId}", None)
        until(lambda: worker(orders_group) == here, "the driver's row")
        [group], _ = Admin(
            orders_group.engine, {"bootstrap.servers": orders_group.brokers}, schema=orders_group.schema
        ).status([orders_group.group])
        assert len(group.live_workers) == 1
        done = stream.end()
    assert (done.records, done.offsets) == (60, offsets(orders_group))
    assert (orders_group.rows("entries"), orders_group.rows()) == (entries(30), doubled(30))
    assert worker(orders_group)[0] == "ended"
    assert [row.owner for row in orders_group.ledger().read()] == [None, None]


def test_it_waits_while_the_group_is_paused_and_continues_where_it_was_reset(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    name = frames_pipeline()
    produced(orders_group, 10)
    with streaming(orders_group, spark, name) as stream:
        applied(orders_group, 10)
        orders_group.ledger().pause(reason="maintenance")
        until(lambda: worker(orders_group)[0] == "paused", "the pause", 60)
        produced(orders_group, 10, first=10)
        assert offsets(orders_group)[f"{orders_group.topic}/0"] == 10
        orders_group.ledger().resume(reason="done")
        applied(orders_group, 20)
        orders_group.execute("TRUNCATE {schema}.entries")
        for partition in (0, 1):
            orders_group.ledger().reset_offset(orders_group.topic, partition, 0, reason="again", log=(0, 20))
        until(lambda: orders_group.rows("entries") == entries(20), "all rows again", 120)
        stream.end()
    assert orders_group.rows() == doubled(20)


def test_the_older_of_two_streams_ends(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    """I2: it does not claim again what the newer one has."""
    name = frames_pipeline()
    produced(orders_group, 10)
    with streaming(orders_group, spark, name) as older:
        applied(orders_group, 10)
        with streaming(orders_group, spark, name) as newer:
            older.thread.join(120)
            assert isinstance(older.error, Fenced)
            produced(orders_group, 10, first=10)
            applied(orders_group, 20)
            newer.end()
    assert (orders_group.rows("entries"), orders_group.rows()) == (entries(20), doubled(20))


#: The sessions of tasks are ended, more often than Spark tries a task: their tables have the live table's constraints.
ENDED_SESSIONS = """
CREATE SEQUENCE {schema}.ended;
CREATE FUNCTION {schema}.end_session() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('{schema}.ended') <= 8 THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
    END IF;
    RETURN true;
END $$;
ALTER TABLE {schema}.entries ADD CHECK (id < 0 OR {schema}.end_session());
"""


def test_trouble_of_servers_is_waited_for(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    name = frames_pipeline()
    orders_group.execute(ENDED_SESSIONS)
    orders_group.produce(orders_group.topic, [of(n, n, n) for n in range(10)], partition=0)
    with streaming(orders_group, spark, name) as stream:
        until(lambda: orders_group.rows("entries") == [(n, n, n) for n in range(10)], "all rows", 120)
        stream.end()
    states = [state for (state,) in orders_group.execute("SELECT state FROM {schema}.reload_run ORDER BY opened_at")]
    assert (states[0], states[-1]) == ("failed", "cut_over")


def test_a_heartbeat_that_finds_no_connection_ends_no_stream(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a job of Spark's runs; the statement after it gets one."""
    heartbeat, beats = Driver.heartbeat, 0

    def refused_once(self: Driver) -> None:
        nonlocal beats
        beats += 1
        if beats == 1:
            raise TooManyConnections("sorry, too many clients already")
        heartbeat(self)

    monkeypatch.setattr(Driver, "heartbeat", refused_once)
    name = frames_pipeline()
    produced(orders_group, 10)
    with streaming(orders_group, spark, name) as stream:
        applied(orders_group, 10)
        stream.end()
    assert beats > 1
    assert orders_group.rows("entries") == entries(10)


#: Processes of tasks are killed, one after the other, more often than Spark tries a task.
KILLED = (
    SALES
    + """
import os, signal

def first(amount):
    for n in range(6):
        try:
            os.close(os.open({marker!r} + str(n), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
    return amount
"""
)


@pytest.mark.long
def test_processes_of_tasks_that_die_are_waited_for(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str], tmp_path: Path
) -> None:
    """As where they are killed for memory, or their machines are taken away."""
    name = frames_pipeline(KILLED, marker=str(tmp_path / "killed"))
    orders_group.produce(orders_group.topic, [of(n, n, n) for n in range(10)], partition=0)
    with streaming(orders_group, spark, name) as stream:
        until(lambda: len(orders_group.rows("entries")) == 10, "all rows", 300)
        stream.end()
    assert len([*tmp_path.iterdir()]) == 6
    states = [state for (state,) in orders_group.execute("SELECT state FROM {schema}.reload_run ORDER BY opened_at")]
    assert (states[0], states[-1]) == ("failed", "cut_over")


COLUMNS = ["id", "amount", "at", "topic_offset"]


def test_an_owner_of_a_topic_that_is_read_no_more_is_no_other_owner(
    orders_group: OrdersGroup, spark: SparkSession, topic: Callable[..., str]
) -> None:
    """A driver of two topics was killed; the group's pipeline of now reads one of them."""
    other = topic(1)
    produced(orders_group, 1)
    orders_group.produce(other, [of(1)], partition=0)

    def numbers(records: DataFrame) -> DataFrame:
        return records.select("topic", "partition", "offset", *(F.col("offset").alias(name) for name in COLUMNS))

    def pipeline(*topics: str) -> SparkPipeline:
        frame = Frame(numbers, Append((orders_group.schema, "entries"), columns=COLUMNS))
        return SparkPipeline(orders_group.group, topics=topics, frames={"numbers": frame})

    killed = driver_of(orders_group, spark, pipeline(orders_group.topic, other))
    killed.start()
    killed.step()
    killed.engine.dispose()
    driver = driver_of(orders_group, spark, pipeline(orders_group.topic))
    driver.start()
    try:
        assert driver.is_owned_elsewhere()
        assert driver.step() is None
        assert not driver.is_owned_elsewhere()
        assert [*driver.offsets()] == [f"{orders_group.topic}/0", f"{orders_group.topic}/1"]
    finally:
        driver.end()


def test_what_is_there_now_is_applied_to_its_end_while_more_comes(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    """Records after the end of one partition take no share of the other one's."""
    name = frames_pipeline()
    orders_group.produce(orders_group.topic, [of(1)], partition=0)
    orders_group.produce(orders_group.topic, [of(n) for n in range(3)], partition=1)
    driver = driver_of(orders_group, spark, name, max_records=1)
    driver.start()
    try:
        ends = driver.ends()
        while driver.step(ends) is not None:
            orders_group.produce(orders_group.topic, [of(2)], partition=0)
    finally:
        driver.end()
    assert offsets(orders_group) == {f"{orders_group.topic}/0": 1, f"{orders_group.topic}/1": 3}


def test_a_frame_that_fails_ends_the_stream_and_stops_its_partitions(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    produced(orders_group, 10)
    bad = frames_pipeline(SALES + "\ndef first(amount):\n    return 1 // (amount - 7)\n")
    with streaming(orders_group, spark, bad) as stream:
        stream.thread.join(120)
        assert isinstance(stream.error, FrameFailed)
    [group], _ = Admin(
        orders_group.engine, {"bootstrap.servers": orders_group.brokers}, schema=orders_group.schema
    ).status([orders_group.group])
    stops = [partition.position.stop for partition in group.partitions]
    assert [stop.offset for stop in stops if stop is not None] == [0, 0]
    assert all(f"Nothing of {orders_group.topic}/0 [0, 10)" in stop.message for stop in stops if stop is not None)
    assert apply(orders_group, spark, frames_pipeline()).records == 20
    assert orders_group.rows("entries") == entries(10)
    [group], _ = Admin(
        orders_group.engine, {"bootstrap.servers": orders_group.brokers}, schema=orders_group.schema
    ).status([orders_group.group])
    assert [partition.position.stop for partition in group.partitions] == [None, None]


def test_micro_batches_have_about_so_many_bytes(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    """Records of 40 bytes or so: 200 of them are more than two micro-batches of 3,000 bytes."""
    name = frames_pipeline()
    produced(orders_group, 100)
    done = apply(orders_group, spark, name, max_bytes=3_000)
    assert (done.records, done.offsets) == (200, offsets(orders_group))
    assert done.micro_batches > 2
    assert orders_group.rows("entries") == entries(100)


def test_options_that_cannot_be_meant_are_refused(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    name = frames_pipeline()
    for options, message in (
        ({"trigger": -1.0}, "trigger= must be a number of seconds"),
        ({"max_records": 0}, "max_records=0: must be a number of offsets"),
        ({"max_bytes": 0}, "max_bytes=0: must be a number of bytes"),
        ({"kafka": {"sasl.password": "secret"}}, "write Env"),
    ):
        with pytest.raises(ConfigError, match=message):
            apply(orders_group, spark, name, **options)
