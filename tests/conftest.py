"""What all tests share: the real servers (from the plugin), and topics, groups and records of their own."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import threading
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient
from hypothesis import HealthCheck, settings
from psycopg.sql import SQL, Identifier
from sqlalchemy import Engine, make_url

from seekpoint.events import Observer
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.testing.servers.kafka import KafkaServer, start_kafka
from seekpoint.testing.servers.postgres import PostgresServer, start_postgres
from seekpoint.worker.worker import Worker
from support import topics
from support.databases import libpq
from support.events import Run
from support.quick_java import QUICK_JAVA
from support.topics import SharedBroker

if TYPE_CHECKING:  # pytest imports its plugins after this file
    from support.knobs import Knobs

pytest_plugins = [
    "seekpoint.testing.pytest_plugin",
    "support.crashed_processes",
    "support.knobs",
    "support.fixtures",
    "support.long_tests",
]

# No example fails for the time that it took: the machine does other things too. Examples of a test share its fixtures.
settings.register_profile(
    "unhurried",
    parent=settings.default,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("unhurried")


def pytest_configure() -> None:
    """Processes that tests start are stopped by SIGINT, which a shell may ignore; their Java starts quickly."""
    os.environ |= {**QUICK_JAVA, **os.environ}  # settings of the one who runs the tests win
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected lives as long as the process: the collector need not look at it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_TOGETHER = {
    "tests/jobs/spark/": "spark",
    "tests/acceptance/test_demo_reload.py": "spark in processes",
    "tests/acceptance/test_demo_spark.py": "spark in processes",
    "tests/docs/test_typed_pages.py::test_a_page_works_as_typed[docs/spark": "spark in processes",
    "tests/kafka/test_forgotten_brokers.py": "forgotten brokers",
    "tests/sql/test_plans.py": "plans",
    "tests/postgres/ledger/test_storage.py": "storage",
    "tests/acceptance/test_wheel.py": "wheel",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under ``--dist loadgroup`` one worker runs all tests of ``tests/jobs/spark``: they share a Spark session.

    Another one runs the demos and the page with Spark, which have several JVMs each, one after the other: three such
    tests at once, on two cores, took over four minutes each. The tests of ``test_forgotten_brokers.py`` share a broker
    behind a proxy: its start is most of what they compute. Those of the other files share tables of 10,000 rows, a
    server or a wheel, which each of four workers would make again.

    Marks of the kind ``xdist_group`` would say the same, but xdist 3.8 writes them where pytest 9 no longer looks.
    """
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    class Together(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((name for start, name in _TOGETHER.items() if nodeid.startswith(start)), nodeid)

    return Together(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """The name of a consumer group that no other test uses."""
    return f"{_test(request)}-{secrets.token_hex(4)}"


def _test(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).split("[")[0][:40]


@pytest.fixture(scope="session")
def shared_broker(seekpoint_broker: str) -> Iterator[SharedBroker]:
    """The shared broker, with clients for all tests of this process."""
    with topics.shared_broker(seekpoint_broker) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """``topic(partitions=1, name=…, bootstrap=…, config={…})`` creates a topic and returns its name.

    By default the name is new and the broker the shared one. It returns when every partition has a leader.
    """
    created: list[tuple[SharedBroker, str]] = []

    def make(
        partitions: int = 1,
        *,
        name: str | None = None,
        bootstrap: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        name = name or f"{_test(request)}-{secrets.token_hex(4)}"
        if bootstrap is None:
            broker: SharedBroker = request.getfixturevalue("shared_broker")
            created.append((broker, name))
            admin = broker.admin
        else:
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        topics.create_topic(admin, name, partitions, config or {})
        return name

    yield make
    for broker, name in created:
        broker.delete(name)


@pytest.fixture
def produce(request: pytest.FixtureRequest) -> Callable[..., list[tuple[int, int]]]:
    """``produce(topic, values, partition=…, bootstrap=…, headers=…, timestamp=…)`` appends records, and waits for all.

    A value is bytes, text or None, or a pair of key and value. Returns partition and offset of each.
    """

    def send(
        topic: str,
        values: Iterable[bytes | str | tuple[bytes | str | None, bytes | str | None] | None],
        *,
        partition: int = -1,
        bootstrap: str | None = None,
        **more: Any,
    ) -> list[tuple[int, int]]:
        shared: SharedBroker = request.getfixturevalue("shared_broker")
        own = bootstrap not in {None, shared.bootstrap}
        producer = topics.new_producer(str(bootstrap)) if own else shared.producer(topic)
        stored: dict[int, tuple[int, int]] = {}
        refused: list[KafkaError] = []

        def delivered(number: int, error: KafkaError | None, message: Message) -> None:
            stored[number] = (message.partition() or 0, message.offset() or 0)
            if error is not None:
                refused.append(error)

        for number, value in enumerate(values):
            key, payload = value if isinstance(value, tuple) else (None, value)
            while True:
                try:
                    noted = partial(delivered, number)
                    producer.produce(topic, payload, key, partition=partition, on_delivery=noted, **more)
                    break
                except BufferError:  # the client's queue is full: let some of it go first
                    producer.poll(0.1)
            producer.poll(0)
        left = producer.flush(60)
        assert not refused, f"the broker refused {len(refused)} records: {refused[0]}"
        assert left == 0, f"{left} records were not delivered within 60 s"
        return [value for _, value in sorted(stored.items())]

    return send


@pytest.fixture(scope="session")
def idle_postgres() -> Iterator[list[PostgresServer]]:
    """Servers that tests of this process had to themselves, and left running."""
    servers: list[PostgresServer] = []
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def own_postgres(idle_postgres: list[PostgresServer]) -> Iterator[PostgresServer]:
    """A Postgres that this test may stop, kill, freeze and start again, with a new database.

    If it then answers, other tests get it, too.
    """
    server = idle_postgres.pop() if idle_postgres else start_postgres(own=True)
    name = f"own_{secrets.token_hex(6)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    url = make_url(server.url).set(database=name)
    server.url = url.render_as_string(hide_password=False)
    server.dsn = libpq(url)
    yield server
    try:
        psycopg.connect(server.dsn, connect_timeout=5).close()
    except psycopg.OperationalError:
        server.close()
    else:
        idle_postgres.append(server)


@pytest.fixture(scope="session")
def idle_brokers() -> Iterator[list[KafkaServer]]:
    """Brokers that tests of this process had to themselves, and left running."""
    brokers: list[KafkaServer] = []
    yield brokers
    for broker in brokers:
        broker.close()


@pytest.fixture
def own_kafka(idle_brokers: list[KafkaServer]) -> Iterator[KafkaServer]:
    """A broker that this test may stop, kill, freeze and start again; if it then answers, other tests get it, too."""
    server = idle_brokers.pop() if idle_brokers else start_kafka(own=True)
    yield server
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    try:
        admin.list_topics(timeout=5)
    except KafkaException:
        server.close()
    else:
        idle_brokers.append(server)


def _wait_for_status_writers(besides: Container[threading.Thread]) -> None:
    """A worker waits a second for its last row, which may come later: it must not be in the schema of the next test."""
    for thread in threading.enumerate():
        if thread.name == "seekpoint-status" and thread not in besides:
            thread.join(10)


@pytest.fixture
def run_worker(
    seekpoint_engine: Engine, seekpoint_broker: str, seekpoint_schema: str, topic: Callable[..., str], knobs: Knobs
) -> Iterator[Callable[..., Run]]:
    """``run_worker(pipeline, observe=[…], kafka={…}, **options)`` runs a worker until the test ends (see ``workers``).

    It works on the shared servers unless ``engine``, ``kafka`` or ``schema`` say otherwise. An error that ended it
    early fails the test, unless the test has met it in ``stop()``. It ends before its topics are deleted.
    """
    with ExitStack() as running:
        running.callback(_wait_for_status_writers, besides=set(threading.enumerate()))

        def start(
            pipeline: Pipeline,
            *,
            observe: Sequence[Observer] = (),
            kafka: Mapping[str, Any] | None = None,
            **options: Any,
        ) -> Run:
            def make(observe: Sequence[Observer]) -> Worker:
                arguments = {"engine": seekpoint_engine, "schema": seekpoint_schema, **options}
                if arguments["engine"] is seekpoint_engine:
                    arguments["engine"] = running.enter_context(knobs.pooled(seekpoint_engine))
                # A fetch at the end of the log waits 500 ms by default; a drain and the next fetch wait for it.
                soon = {"fetch.wait.max.ms": 50}
                servers = {"bootstrap.servers": seekpoint_broker, **soon, **(kafka or {})}
                return Worker(pipeline, kafka=servers, observe=observe, **arguments)

            run = Run(make, observe)
            running.callback(run.stop)
            return run

        yield start
