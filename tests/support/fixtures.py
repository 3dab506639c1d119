"""Fixtures of tests on real servers: worker groups, group protocols, databases, workers in separate processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from sqlalchemy import URL, Engine, create_engine

from seekpoint import schema
from seekpoint.admin import Admin
from seekpoint.backoff import Backoff
from seekpoint.testing.servers.kafka import KafkaServer
from seekpoint.testing.servers.postgres import PostgresServer
from support.cli_jobs import Terminal
from support.databases import empty, new_database
from support.dead_letter_group import DeadLetterGroup
from support.knobs import Knobs
from support.operators_account import OperatorsAccount
from support.postgres_proxy import PostgresProxy
from support.reload_orders import OrdersGroup
from support.schema_registry import SchemaRegistry
from support.sink_tables import SinkTables
from support.topics import SharedBroker
from support.worker_group import PROTOCOLS, WorkerGroup, WorkerOptions
from support.worker_process import WorkerProcess

NewEngine = Callable[..., Engine]
"""``new_engine(url, **options)``, as the fixture makes it."""


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """The client's configuration for each of the three group protocols."""
    return PROTOCOLS[request.param]


@pytest.fixture(params=[*PROTOCOLS, "fixed"])
def worker_options(request: pytest.FixtureRequest) -> WorkerOptions:
    """Makes a worker's options: for each group protocol, and for fixed partitions."""

    def options(topic: str, partitions: int) -> dict[str, Any]:
        if request.param == "fixed":
            return {"partitions": [(topic, n) for n in range(partitions)]}
        return {"kafka": PROTOCOLS[request.param]}

    return options


@pytest.fixture
def sink_tables(seekpoint_engine: Engine, seekpoint_schema: str) -> SinkTables:
    """Tables for sinks, in a schema that only this test uses."""
    return SinkTables(seekpoint_engine, seekpoint_schema)


@pytest.fixture
def admin(seekpoint_engine: Engine, seekpoint_schema: str) -> Admin:
    """Administration of the ledger, without Kafka."""
    return Admin(seekpoint_engine, schema=seekpoint_schema)


@pytest.fixture
def dead_letter_group(seekpoint_engine: Engine, seekpoint_schema: str) -> DeadLetterGroup:
    """A group whose records become dead letters, with its table."""
    return DeadLetterGroup(seekpoint_engine, seekpoint_schema).create()


@pytest.fixture
def proxy(seekpoint_dsn: str) -> Iterator[PostgresProxy]:
    """A proxy in front of the shared database, whose connections can be cut."""
    with PostgresProxy.in_front_of(seekpoint_dsn) as proxy:
        yield proxy


@pytest.fixture
def new_engine() -> Iterator[NewEngine]:
    """``new_engine(url, **options)`` makes an engine for this test; its pool is closed after the test."""
    with ExitStack() as stack:

        def make(url: URL | str, **options: Any) -> Engine:
            engine = create_engine(url, **options)
            stack.callback(engine.dispose)
            return engine

        yield make


@pytest.fixture
def encoding() -> str:
    """The encoding of ``database_url``; tests may parametrize it."""
    return "UTF8"


@pytest.fixture(scope="session")
def idle_databases(seekpoint_dsn: str) -> Iterator[Callable[[], AbstractContextManager[str]]]:
    """Lends emptied databases again, because dropping a database waits for a checkpoint."""
    with ExitStack() as stack:
        idle: list[str] = []

        @contextmanager
        def lend() -> Iterator[str]:
            url = idle.pop() if idle else stack.enter_context(new_database(seekpoint_dsn))
            yield url
            empty(url)
            idle.append(url)

        yield lend


@pytest.fixture
def database_url(
    seekpoint_dsn: str, encoding: str, idle_databases: Callable[[], AbstractContextManager[str]]
) -> Iterator[str]:
    """The URL (with its password) of an empty database."""
    with idle_databases() if encoding == "UTF8" else new_database(seekpoint_dsn, encoding) as url:
        yield url


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """A schema registry over HTTP, without schemas."""
    registry = SchemaRegistry()
    yield registry
    registry.silent.clear()
    registry.stop()


@pytest.fixture(scope="session")
def operators_account() -> Iterator[OperatorsAccount]:
    """The account of the operators' session; it is written at the end if the environment names a file."""
    account = OperatorsAccount()
    yield account
    account.write()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that must wait while the test continues."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of this process wait a tenth of the usual time for servers that do not answer; the waits still grow."""
    monkeypatch.setattr(Backoff.__init__, "__defaults__", (0.1, 3.0))


@pytest.fixture
def new_worker_process(knobs: Knobs) -> Iterator[Callable[..., WorkerProcess]]:
    """``new_worker_process(**what)`` starts a worker's process, which is killed after the test."""
    processes: list[WorkerProcess] = []

    def start(**what: Any) -> WorkerProcess:
        processes.append(WorkerProcess(**what))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


@pytest.fixture
def worker_group(worker_group_on: Callable[..., WorkerGroup]) -> WorkerGroup:
    """A group on the shared servers."""
    return worker_group_on()


@pytest.fixture
def worker_group_on(
    request: pytest.FixtureRequest, seekpoint_schema: str, group: str
) -> Iterator[Callable[..., WorkerGroup]]:
    """``worker_group_on(postgres=…, kafka=…)``: a group on these servers, by default the shared ones."""
    engines: list[Engine] = []
    tools = {
        "schema": seekpoint_schema,
        "group": group,
        "run_worker": request.getfixturevalue("run_worker"),
        "new_worker_process": request.getfixturevalue("new_worker_process"),
        "make_topic": request.getfixturevalue("topic"),
        "produce": request.getfixturevalue("produce"),
    }

    def make(*, postgres: PostgresServer | None = None, kafka: KafkaServer | None = None) -> WorkerGroup:
        if postgres is None:
            engine = request.getfixturevalue("seekpoint_engine")
        else:
            engine = create_engine(postgres.url, pool_pre_ping=True)
            engines.append(engine)
            schema.upgrade(engine, schema=seekpoint_schema)
        if kafka is None:
            shared: SharedBroker = request.getfixturevalue("shared_broker")
            return WorkerGroup(engine=engine, broker=shared.bootstrap, admin=shared.admin, shared=True, **tools)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        return WorkerGroup(engine=engine, broker=kafka.bootstrap, admin=admin, shared=False, **tools)

    yield make
    for engine in engines:
        engine.dispose()


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder in which commands are called, without Seekpoint's environment variables.

    What a command adds to the module search path is removed after the test.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("SEEKPOINT_DATABASE_URL", "SEEKPOINT_KAFKA_CONFIG", "SEEKPOINT_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def terminal(request: pytest.FixtureRequest, working_folder: Path) -> Terminal:
    """A group, and its module in the working folder."""
    return Terminal.of(OrdersGroup.on_shared_servers(request.getfixturevalue), working_folder)
