"""The examples do what they say, on the real servers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from psycopg.errors import UndefinedTable
from sqlalchemy import Engine, event
from sqlalchemy.exc import ProgrammingError

from seekpoint import Append, Json, Partition, Pipeline
from support.fixtures import NewEngine
from support.postgres_proxy import PostgresProxy
from support.worker_group import PROTOCOLS, QUICK, WorkerGroup


def example(name: str) -> ModuleType:
    """A file of ``examples/``, which is no package."""
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"examples.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # FastAPI resolves the annotations of its functions there
    spec.loader.exec_module(module)
    return module


own_loop, fastapi_service = example("own_loop"), example("fastapi_service")

# -- own_loop ---------------------------------------------------------------------------------------------------


@contextmanager
def looping(worker_group: WorkerGroup, topic: str, engine: Engine, kafka: dict[str, Any]) -> Iterator[None]:
    """The example's loop, on a thread of its own."""
    stopping, failed = threading.Event(), []

    def run() -> None:
        try:
            config = {"bootstrap.servers": worker_group.broker, **kafka}
            own_loop.run(engine, config, topic, stopping, group=worker_group.group, schema=worker_group.schema)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(30)
        assert not thread.is_alive()
    assert not failed


@pytest.fixture
def in_schema(worker_group: WorkerGroup, new_engine: NewEngine) -> Callable[[str], Engine]:
    """``in_schema(url)``: an engine whose unqualified tables are the test's own."""

    def make(url: str) -> Engine:
        engine = new_engine(url, pool_pre_ping=True)
        event.listen(engine, "connect", lambda raw, _: raw.execute(f'SET search_path TO "{worker_group.schema}"'))
        event.listen(engine, "connect", lambda raw, _: raw.commit())
        return engine

    return make


@pytest.fixture
def word_counts(worker_group: WorkerGroup) -> Callable[[], dict[str, int]]:
    """The table of the example, made; call it for what it holds."""
    worker_group.sql(f'CREATE TABLE "{worker_group.schema}".words (word text PRIMARY KEY, seen bigint NOT NULL)')

    def read() -> dict[str, int]:
        return {row.word: row.seen for row in worker_group.sql("SELECT word, seen FROM {schema}.words")}

    return read


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_own_loop_counts_every_record_once(
    worker_group: WorkerGroup, protocol: str, word_counts: Any, in_schema: Any
) -> None:
    name, kafka = worker_group.topic(4), dict(PROTOCOLS[protocol])
    stored = [place for n in range(4) for place in worker_group.produce(name, ["to be or not to be"] * 50, partition=n)]
    with looping(worker_group, name, in_schema(worker_group.dsn), kafka):
        worker_group.wait_until_caught_up(name, stored)
        with looping(worker_group, name, in_schema(worker_group.dsn), kafka):  # a second member joins …
            stored += [place for n in range(4) for place in worker_group.produce(name, ["to be"] * 50, partition=n)]
            worker_group.wait_until_caught_up(name, stored)
        stored += [
            place for n in range(4) for place in worker_group.produce(name, ["not"] * 50, partition=n)
        ]  # … and leaves
        worker_group.wait_until_caught_up(name, stored)
    assert word_counts() == {"to": 600, "be": 600, "or": 200, "not": 400}
    assert [row.owner for row in worker_group.ledger.read()] == [None] * 4


@pytest.mark.long
def test_an_own_loop_survives_faults_and_resets(
    worker_group: WorkerGroup, word_counts: Any, in_schema: Any, seekpoint_dsn: str
) -> None:
    name = worker_group.topic()
    with (
        PostgresProxy.in_front_of(seekpoint_dsn) as proxy,
        looping(worker_group, name, in_schema(proxy.dsn), dict(QUICK)),
    ):
        stored = worker_group.produce(name, ["one"] * 100)
        worker_group.wait_until_caught_up(name, stored)
        proxy.arm("after_commit")  # of whatever commits next: the loop's own look, or its batch
        stored += worker_group.produce(name, ["two"] * 100)
        proxy.wait_until_fired()
        worker_group.wait_until_caught_up(name, stored)
        proxy.arm("at_statement", "INSERT INTO words")
        stored += worker_group.produce(name, ["three"] * 100)
        proxy.wait_until_fired()
        worker_group.wait_until_caught_up(name, stored)
        worker_group.ledger.reset_offset(name, 0, 250, log=None, reason="half of the last hundred again")
        worker_group.wait_for_position(name, 300)
        proxy.refuse()
        proxy.cut()
        stored += worker_group.produce(name, ["four"] * 100)
        proxy.accept()
        worker_group.wait_until_caught_up(name, stored)
    assert word_counts() == {"one": 100, "two": 100, "three": 150, "four": 100}


def test_an_own_loop_stops_at_a_recreated_topic_until_it_is_decided(
    worker_group: WorkerGroup, word_counts: Any, in_schema: Any
) -> None:
    name = worker_group.topic()
    with looping(worker_group, name, in_schema(worker_group.dsn), {**QUICK, "group.protocol": "consumer"}):
        stored = worker_group.produce(name, ["old"] * 10)
        worker_group.wait_until_caught_up(name, stored)
        worker_group.delete_topic(name)
        worker_group.topic(name=name)
        stored = worker_group.produce(name, ["new"] * 50)
        new = worker_group.topic_id(name)
        assert word_counts() == {"old": 10}
        worker_group.ledger.reset_offset(name, 0, 0, topic_id=new, log=None, reason="restart")
        worker_group.wait_until_caught_up(name, stored)
    assert word_counts() == {"old": 10, "new": 50}


# -- fastapi_service --------------------------------------------------------------------------------------------


@pytest.fixture
def orders(worker_group: WorkerGroup) -> Pipeline:
    """The pipeline of the example, on a topic and a table of the test's own."""
    worker_group.sql(f'CREATE TABLE "{worker_group.schema}".orders (id bigint, item text)')
    value, sinks = Json(fastapi_service.Order), [Append((worker_group.schema, "orders"))]
    return Pipeline(worker_group.group, topics=worker_group.topic(2), value=value, sinks=sinks)


@pytest.fixture
def app(worker_group: WorkerGroup, orders: Pipeline, in_schema: Callable[[str], Engine]) -> Any:
    kafka = {"bootstrap.servers": worker_group.broker, **QUICK}
    return fastapi_service.make_app(in_schema(worker_group.dsn), kafka, orders, schema=worker_group.schema)


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service, while it runs."""
    web = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://service")
    async with app.router.lifespan_context(app), web:
        yield web


def test_a_service_consumes_while_it_serves(worker_group: WorkerGroup, orders: Pipeline, app: Any) -> None:
    (topic,) = orders.topics

    async def visit() -> None:
        async with serving(app) as web:
            assert (await web.get("/health/live")).json() == {"live": True, "error": None}
            tea = [json.dumps({"id": n, "item": "tea"}) for n in range(100)]
            stored = await asyncio.to_thread(worker_group.produce, topic, tea, partition=1)
            await asyncio.to_thread(worker_group.wait_until_caught_up, topic, stored)
            assert (await web.get("/orders/count")).json() == {"orders": 100}
            ready = await web.get("/health/ready")
            assert (ready.status_code, ready.json()["trouble"], ready.json()["stopped"]) == (200, None, {})

            await asyncio.to_thread(worker_group.produce, topic, ["not json"], partition=0)
            async with asyncio.timeout(20):
                while not (stopped := (await web.get("/health/ready")).json()["stopped"]):
                    await asyncio.sleep(0.02)
            assert "stopped at offset 0" in stopped[str(Partition(topic, 0))]
            assert (await web.get("/health/live")).status_code == 200

    asyncio.run(visit())
    assert not app.state.worker.health().live
    assert [row.owner for row in worker_group.ledger.read()] == [None, None]


def test_a_service_whose_worker_has_ended_reports_it(worker_group: WorkerGroup, orders: Pipeline, app: Any) -> None:
    (topic,) = orders.topics

    async def visit() -> None:
        async with serving(app) as web:
            worker_group.sql(f'DROP TABLE "{worker_group.schema}".partition_offset CASCADE')
            await asyncio.to_thread(worker_group.produce, topic, ['{"id": 1, "item": "tea"}'])
            async with asyncio.timeout(20):
                while (live := await web.get("/health/live")).status_code == 200:
                    await asyncio.sleep(0.02)
            assert live.status_code == 503
            assert "partition_offset" in live.json()["error"]

    with pytest.raises((UndefinedTable, ProgrammingError), match="partition_offset"):
        asyncio.run(visit())
