"""A pytest plugin that lends real servers to tests: ``pytest_plugins = ["seekpoint.testing.pytest_plugin"]``.

- ``seekpoint_dsn``: the URL of a Postgres, for SQLAlchemy (``postgresql+psycopg://…``).
- ``seekpoint_broker``: the ``bootstrap.servers`` of a Kafka broker.
- ``seekpoint_schema``: the name of a schema for this test alone.
- ``seekpoint_engine``: an engine, with the ledger's tables in that schema, without rows. After the test the schema is
  emptied, and objects that the test made in it are dropped; each process of the run creates the tables once.
- ``seekpoint_url``: the database's URL with that schema first in the search path: unqualified tables of the test, of
  sinks and of handlers are then in that schema.

Each server is started once for the run, also under pytest-xdist, when a test first asks for it; servers that are given
(``SEEKPOINT_TEST_DSN``, ``SEEKPOINT_TEST_BROKERS``) are used instead. If a server cannot be started, its tests are
skipped, or with ``CI=true`` fail. With ``SEEKPOINT_REQUIRE_SERVERS=1`` both servers are started before the first test,
and the run ends if that fails.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.util import LRUCache

from seekpoint.testing.idle_sessions import IdleSessions
from seekpoint.testing.ledger_schema import LedgerSchema
from seekpoint.testing.servers import kafka, postgres
from seekpoint.testing.servers.jars import to_stderr
from seekpoint.testing.servers.kafka import KafkaServer, start_kafka
from seekpoint.testing.servers.postgres import PostgresServer, start_postgres
from seekpoint.testing.servers.process import ServerFailed

REQUIRE_VARIABLE = "SEEKPOINT_REQUIRE_SERVERS"
_MOST_CALLERS = 128  # most connections at once, one for each process of pytest-xdist
_MOST_COMPILED = 1_000  # compiled statements: the library's, and those of the last tests


class _Servers:
    """The run's servers, in the process that outlives all its workers; each is started on first use."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._lock = threading.Lock()
        self._starts: dict[str, Callable[[], PostgresServer | KafkaServer]] = {
            "postgres": start_postgres,
            "kafka": partial(start_kafka, progress=progress),
        }
        self._started: dict[str, Future[PostgresServer | KafkaServer]] = {}
        self._listener: Listener | None = None

    def start(self, kind: str) -> Future[PostgresServer | KafkaServer]:
        """Start the server if it has not been started, without waiting."""
        with self._lock:
            if kind not in self._started:
                self._started[kind] = self._pool.submit(self._starts[kind])
            return self._started[kind]

    def start_both(self) -> None:
        """Start both at once, and wait. Raises ServerFailed."""
        for future in [self.start(kind) for kind in self._starts]:
            future.result()

    def describe(self) -> str:
        """The servers that run, and those that would be started."""
        return ", ".join(
            self._started[kind].result().describe() if kind in self._started else f"{would} on first use"
            for kind, would in (("postgres", postgres.origin()), ("kafka", kafka.origin()))
        )

    def address_of(self, kind: str) -> str:
        """``postgres``: its URL; ``kafka``: its ``bootstrap.servers``."""
        server = self.start(kind).result()
        return server.url if isinstance(server, PostgresServer) else server.bootstrap

    def serve(self) -> tuple[str, int, str]:
        """Host, port and key for workers that ask for addresses (see :class:`_Elsewhere`)."""
        if self._listener is None:
            self._key = secrets.token_hex(16)
            # All workers ask at once. Beyond the backlog, by default 1, the kernel drops a connection that the caller
            # takes for established, so that it would wait forever.
            self._listener = Listener(("127.0.0.1", 0), backlog=_MOST_CALLERS, authkey=self._key.encode())
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        host, port = self._listener.address
        return str(host), int(port), self._key

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                caller = listener.accept()
            except (ConnectionError, EOFError):
                continue  # the caller has ended
            except OSError:
                return  # closed: the run is over
            threading.Thread(target=self._answer, args=(caller,), daemon=True).start()

    def _answer(self, caller: Connection[tuple[bool, str], str]) -> None:
        with caller:
            try:
                caller.send((True, self.address_of(caller.recv())))
            except ServerFailed as error:
                caller.send((False, str(error)))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for future in self._started.values():
            if future.exception() is None:
                future.result().close()
        self._pool.shutdown()


class _Elsewhere:
    """The servers in a worker of pytest-xdist: they belong to the controller."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._address, self._key = (host, port), key.encode()

    def address_of(self, kind: str) -> str:
        with Client(self._address, authkey=self._key) as controller:
            controller.send(kind)
            started, answer = controller.recv()
        if not started:
            raise ServerFailed(answer)
        return str(answer)


_SERVERS = pytest.StashKey[_Servers | _Elsewhere]()


def pytest_configure(config: pytest.Config) -> None:
    addresses = getattr(config, "workerinput", {}).get("seekpoint_servers")
    config.stash[_SERVERS] = _Elsewhere(*addresses) if addresses else _Servers(_progress(config))


def _progress(config: pytest.Config) -> Callable[[str], None]:
    def show(line: str) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        (to_stderr if reporter is None else reporter.write_line)(line)

    return show


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist's hook: give a worker the address."""
    servers = node.config.stash[_SERVERS]
    node.workerinput["seekpoint_servers"] = servers.serve()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    servers = session.config.stash[_SERVERS]
    if (
        os.environ.get(REQUIRE_VARIABLE) == "1"
        and isinstance(servers, _Servers)
        and not session.config.option.collectonly
    ):
        try:
            servers.start_both()
        except ServerFailed as error:
            pytest.exit(f"{REQUIRE_VARIABLE}=1, and a server could not be started.\n{error}", returncode=1)


def pytest_report_header(config: pytest.Config) -> str | None:
    servers = config.stash[_SERVERS]
    return f"servers: {servers.describe()}" if isinstance(servers, _Servers) else None


def pytest_unconfigure(config: pytest.Config) -> None:
    servers = config.stash.get(_SERVERS, None)
    if isinstance(servers, _Servers):
        servers.close()


def _address(config: pytest.Config, kind: str) -> str:
    try:
        return config.stash[_SERVERS].address_of(kind)
    except ServerFailed as error:
        required = {os.environ.get("CI", "").lower(), os.environ.get(REQUIRE_VARIABLE)} & {"1", "true"}
        if required:
            pytest.fail(f"the real {kind} could not be started: {error}", pytrace=False)
        pytest.skip(f"no real {kind}: {error}")


def with_search_path(url: URL, schema: str) -> str:
    """Add options to the URL that set the search path to this schema and ``public``."""
    path = f"-c search_path={schema},public"
    options = f"{url.query['options']} {path}" if "options" in url.query else path
    return url.update_query_dict({"options": options}).render_as_string(hide_password=False)


def _libpq(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def seekpoint_dsn(pytestconfig: pytest.Config) -> str:
    """The URL of a real Postgres, for SQLAlchemy's ``create_engine``."""
    return _address(pytestconfig, "postgres")


@pytest.fixture
def seekpoint_url(seekpoint_engine: Engine, seekpoint_schema: str) -> str:
    """The database's URL: names of tables without a schema mean ``seekpoint_schema``, then ``public``."""
    return with_search_path(seekpoint_engine.url, seekpoint_schema)


@pytest.fixture(scope="session")
def seekpoint_broker(pytestconfig: pytest.Config) -> str:
    """The ``bootstrap.servers`` of a real Kafka broker."""
    return _address(pytestconfig, "kafka")


@pytest.fixture(scope="session")
def _ledger_schema(pytestconfig: pytest.Config) -> Iterator[LedgerSchema]:
    ledger_schema = LedgerSchema()
    yield ledger_schema
    if ledger_schema.is_made:  # the server's own address, because a fixture's proxy in front of it may have ended
        ledger_schema.remove(_libpq(_address(pytestconfig, "postgres")))


@pytest.fixture
def seekpoint_schema(_ledger_schema: LedgerSchema) -> str:
    """The name of a schema for this test alone, which is emptied after the test."""
    return _ledger_schema.lend()


@pytest.fixture(scope="session")
def _idle_sessions() -> Iterator[IdleSessions]:
    sessions = IdleSessions()
    yield sessions
    sessions.close()


@pytest.fixture(scope="session")
def _new_engine(_idle_sessions: IdleSessions) -> Callable[[str], Engine]:
    """Makes engines that share sessions, compiled statements, and the results of SQLAlchemy's first connect."""
    firsts: dict[str, Engine] = {}

    def make(url: str) -> Engine:
        if url not in firsts:
            compiled = LRUCache[Any, Any](_MOST_COMPILED)
            firsts[url] = create_engine(url, execution_options={"compiled_cache": compiled})
            _idle_sessions.lend_to(firsts[url])
            firsts[url].connect().close()
            firsts[url].dispose()
        first = firsts[url]
        return Engine(first.pool.recreate(), first.dialect, first.url, execution_options=first.get_execution_options())

    return make


@pytest.fixture
def seekpoint_engine(
    seekpoint_dsn: str,
    _ledger_schema: LedgerSchema,
    _new_engine: Callable[[str], Engine],
    _idle_sessions: IdleSessions,
) -> Iterator[Engine]:
    """An engine of a real Postgres with the ledger's tables, without rows, in ``seekpoint_schema``."""
    engine = _new_engine(seekpoint_dsn)
    _ledger_schema.prepare(_libpq(seekpoint_dsn))
    try:
        yield engine
        _ledger_schema.empty()
    finally:
        engine.dispose()
        _idle_sessions.next_test()
