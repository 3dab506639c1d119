"""Two pipelines under one group name do not divide a topic: the second waits outside the group, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from seekpoint import Batch, Json, Limits, Pipeline, events
from seekpoint.errors import DeclarationDiffers, HandlerOutdated
from seekpoint.jobs.batch import BatchJob
from seekpoint.sinks import Append
from support.events import Run

QUICK = Limits(idle_check=0.1)
Workers = Callable[..., Run]


class Tables:
    """Tables of one column in the test's schema, and pipelines of one group that write one of them each."""

    def __init__(self, engine: Engine, schema: str, group: str, topic: str) -> None:
        self.engine, self.schema, self.group, self.topic = engine, schema, group, topic
        with engine.begin() as tx:
            for name in ("one", "two"):
                tx.execute(text(f"CREATE TABLE {schema}.{name} (n bigint)"))

    def pipeline(self, table: str, version: int = 1) -> Pipeline:
        sink = Append(f"{self.schema}.{table}", columns=["n"], row=lambda record: (record.value,))
        return Pipeline(self.group, topics=self.topic, value=Json(int), sinks=[sink], version=version)

    def rows(self, table: str) -> list[int]:
        with self.engine.connect() as tx:
            return list(tx.scalars(text(f"SELECT n FROM {self.schema}.{table} ORDER BY n")))


@pytest.fixture
def tables(seekpoint_engine: Engine, seekpoint_schema: str, group: str, topic: Callable[..., str]) -> Tables:
    return Tables(seekpoint_engine, seekpoint_schema, group, topic(2))


def values(*numbers: int) -> list[bytes]:
    return [str(n).encode() for n in numbers]


def test_a_pipeline_of_other_tables_waits(tables: Tables, run_worker: Workers, produce: Callable[..., Any]) -> None:
    first = run_worker(tables.pipeline("one"), limits=QUICK)
    first.placed(2)
    second = run_worker(tables.pipeline("two"), limits=QUICK)
    refused = second.seen.wait_for(events.DeclarationRefused)
    assert (refused.stored, refused.declared) == ((f"{tables.schema}.one",), (f"{tables.schema}.two",))
    health = second.health()
    assert (health.live, health.ready) == (True, False)
    assert "a group name belongs to one pipeline" in str(health.standby)
    produce(tables.topic, values(0, 1), partition=0)
    produce(tables.topic, values(2, 3), partition=1)
    first.reached(tables.topic, 2, 0)
    first.reached(tables.topic, 2, 1)
    assert not first.seen.all(events.Revoked)
    assert not second.seen.all(events.Started)
    first.stop()
    with tables.engine.begin() as tx:
        tx.execute(text(f"UPDATE {tables.schema}.group_topic SET tables = NULL"))
    second.seen.wait_for(events.Started)
    produce(tables.topic, values(4), partition=0)
    second.finish(tables.topic, 3, 0)
    assert (tables.rows("one"), tables.rows("two")) == ([0, 1, 2, 3], [4])


@pytest.mark.long
def test_accepting_replaces_running_workers(tables: Tables, run_worker: Workers, produce: Callable[..., Any]) -> None:
    first = run_worker(tables.pipeline("one"), limits=QUICK)
    first.placed(2)
    produce(tables.topic, values(0), partition=0)
    first.reached(tables.topic, 1)
    second = run_worker(tables.pipeline("two"), limits=QUICK, accept_declaration=True)
    second.seen.wait_for(events.Started)
    first.ends_with(HandlerOutdated, "because a worker with accept_declaration has started since")
    produce(tables.topic, values(1), partition=0)
    second.reached(tables.topic, 2)
    assert (tables.rows("one"), tables.rows("two")) == ([0], [1])


def test_a_batch_passes_the_same_check(
    tables: Tables, run_worker: Workers, produce: Callable[..., Any], seekpoint_broker: str
) -> None:
    first = run_worker(tables.pipeline("one"), limits=QUICK)
    first.placed(2)
    first.stop()
    produce(tables.topic, values(0, 1), partition=0)

    def job(table: str, version: int = 1) -> BatchJob:
        kafka = {"bootstrap.servers": seekpoint_broker}
        return BatchJob(tables.pipeline(table, version), tables.engine, kafka, schema=tables.schema)

    with pytest.raises(DeclarationDiffers):
        job("two").run()
    assert job("one").run().records == 2
    produce(tables.topic, values(2), partition=0)
    assert job("two", version=2).run().records == 1
    assert (tables.rows("one"), tables.rows("two")) == ([0, 1], [2])


@pytest.mark.long
def test_what_a_handler_writes_is_compared_under_the_engines_schemas(tables: Tables, run_worker: Workers) -> None:
    """One declaration under two schema_translate_maps writes two tenants' tables."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        """Not reached."""

    pipeline = Pipeline(tables.group, topics=tables.topic, value=Json(int), handle=handle, writes=["one"])
    first = run_worker(pipeline, limits=QUICK, engine=translated(tables.engine, tables.schema))
    first.placed(2)
    same = run_worker(pipeline, limits=QUICK, engine=translated(tables.engine, tables.schema))
    same.seen.wait_for(events.Activated)
    with another_tenant(tables) as tenant:
        other = run_worker(pipeline, limits=QUICK, engine=translated(tables.engine, tenant))
        assert other.seen.wait_for(events.DeclarationRefused).declared == (f"{tenant}.one",)
        other.stop()


@contextmanager
def another_tenant(tables: Tables) -> Iterator[str]:
    schema = f"{tables.schema}_tenant"
    with tables.engine.begin() as tx:
        tx.execute(text(f"CREATE SCHEMA {schema}"))
        tx.execute(text(f"CREATE TABLE {schema}.one (n bigint)"))
    try:
        yield schema
    finally:
        with tables.engine.begin() as tx:
            tx.execute(text(f"DROP SCHEMA {schema} CASCADE"))


def translated(engine: Engine, schema: str) -> Engine:
    return engine.execution_options(schema_translate_map={None: schema})
