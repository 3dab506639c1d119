"""The proxies do what they say: proven on sockets, and on a real Postgres for each way to break a COMMIT."""

from __future__ import annotations

import gc
import socket
import socketserver
import struct
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from seekpoint.errors import ConfigError
from support.databases import libpq
from support.postgres_proxy import PostgresProxy
from support.proxy import Link, Proxy
from support.waiting import SECONDS, until

# ---- any protocol


class Echo(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.endings: list[str] = []
        self.ended = threading.Condition()
        super().__init__(("127.0.0.1", 0), EchoHandler)

    def wait_endings(self, count: int) -> list[str]:
        with self.ended:
            assert self.ended.wait_for(lambda: len(self.endings) >= count, SECONDS)
            return list(self.endings)


class EchoHandler(socketserver.BaseRequestHandler):
    server: Echo

    def handle(self) -> None:
        ending = "fin"
        try:
            while data := self.request.recv(65536):
                self.request.sendall(data)
        except ConnectionError:
            ending = "reset"
        with self.server.ended:
            self.server.endings.append(ending)
            self.server.ended.notify_all()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.server_address[1]) as running:
        yield running


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=SECONDS)


def receive(sock: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        data = sock.recv(65536)
        assert data, f"the connection ended after {len(received)} of {size} bytes"
        received += data
    return received


def ask(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    assert receive(sock, len(data)) == data


def hears_nothing(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(SECONDS)
    return False


def test_bytes_and_ends_pass_in_both_directions(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as sock:
        ask(sock, b"hello")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""
    assert echo.wait_endings(1) == ["fin"]
    assert proxy.counts == {"connected": 1}


def test_much_data_arrives_complete_though_the_reader_is_slow(proxy: Proxy) -> None:
    data = bytes(range(256)) * 200_000  # 51 MB: more than the proxy is willing to hold
    with dial(proxy) as sock:
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        received = bytearray()
        while len(received) < len(data):
            received += sock.recv(1 << 20)
        sender.join()
    assert received == data


@pytest.mark.parametrize("obstacle", ["a server that does not read", "frozen", "a long delay"])
def test_a_sender_without_a_reader_has_to_wait(obstacle: str) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with Proxy("127.0.0.1", server.getsockname()[1]) as proxy, dial(proxy) as client:
            accepted, _ = server.accept()
            if obstacle == "frozen":
                proxy.freeze()
            elif obstacle == "a long delay":
                proxy.delay(3600)
            client.settimeout(0.5)
            with accepted, pytest.raises(TimeoutError):
                client.sendall(bytes(128 << 20))  # far more than the proxy and the kernel may hold


def test_cut_resets_both_sides_and_new_connections_work(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as first, dial(proxy) as second:
        ask(first, b"a")
        ask(second, b"b")

        assert proxy.cut() == 2

        for sock in (first, second):
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        assert echo.wait_endings(2) == ["reset", "reset"]
        assert proxy.counts["cut"] == 2
        assert proxy.cut() == 0
        with dial(proxy) as third:
            ask(third, b"c")


def test_refused_connections_leave_the_open_ones_alone(proxy: Proxy) -> None:
    port = proxy.port
    with dial(proxy) as sock:
        ask(sock, b"before")
        for _ in range(3):
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                dial(proxy)
            ask(sock, b"during")
            proxy.accept()
            with dial(proxy) as other:
                ask(other, b"after")
    assert proxy.port == port


def test_frozen_bytes_come_after_the_thaw(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        ask(sock, b"before")
        proxy.freeze()
        sock.sendall(b"meanwhile")
        assert hears_nothing(sock)
        with dial(proxy) as late:
            late.sendall(b"late")
            assert hears_nothing(late)
            proxy.thaw()
            assert receive(sock, 9) == b"meanwhile"
            assert receive(late, 4) == b"late"


@pytest.mark.parametrize("ending", ["fin", "reset"])
def test_the_end_of_a_client_goes_unnoticed_while_frozen(proxy: Proxy, echo: Echo, ending: str) -> None:
    sock = dial(proxy)
    ask(sock, b"before")
    proxy.freeze()
    if ending == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    with echo.ended:
        assert not echo.ended.wait_for(lambda: echo.endings, 0.2)
    proxy.thaw()
    assert echo.wait_endings(1) == [ending]


def test_what_was_frozen_is_lost_with_a_cut(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        ask(sock, b"before")
        proxy.freeze()
        sock.sendall(b"meanwhile")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        proxy.thaw()


def test_delay_is_per_direction(proxy: Proxy) -> None:
    def round_trip(sock: socket.socket) -> float:
        started = time.monotonic()
        ask(sock, b"ping")
        return time.monotonic() - started

    with dial(proxy) as sock:
        ask(sock, b"warm")
        proxy.delay(0.1)
        assert round_trip(sock) >= 0.2
        proxy.delay(0, "to_client")
        assert 0.1 <= min(round_trip(sock) for _ in range(10)) < 0.2
        proxy.delay(0)
        assert min(round_trip(sock) for _ in range(10)) < 0.1


def test_delayed_bytes_stay_in_order_and_keep_the_bandwidth(proxy: Proxy) -> None:
    proxy.delay(0.2)
    data = bytes(range(256)) * 20_000
    with dial(proxy) as sock:
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        started = time.monotonic()
        assert receive(sock, len(data)) == data
        sender.join()
    assert time.monotonic() - started < 0.2 * len(data) / 65536  # one round trip, not one per chunk


def test_an_unreachable_upstream_resets_the_client() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Proxy("127.0.0.1", unused.getsockname()[1]) as proxy:
            # The reset may come before connect() has returned.
            with pytest.raises(ConnectionResetError), dial(proxy) as sock:
                sock.recv(1)
            assert proxy.counts == {"connected": 1, "unreachable": 1}


def test_closing_gives_back_port_and_thread(echo: Echo) -> None:
    with Proxy("127.0.0.1", echo.server_address[1]) as proxy, dial(proxy) as sock:
        ask(sock, b"a")
        proxy.close()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    with pytest.raises(RuntimeError, match="closed"):
        proxy.cut()
    assert f"proxy-{proxy.port}" not in {thread.name for thread in threading.enumerate()}


class BrokenLink(Link):
    def from_client(self, data: bytes) -> None:
        raise ValueError("a mistake in the proxy")


class BrokenProxy(Proxy):
    def _new_link(self) -> Link:
        return BrokenLink(self)


def test_a_mistake_inside_is_not_kept_quiet(echo: Echo) -> None:
    proxy = BrokenProxy("127.0.0.1", echo.server_address[1])
    with dial(proxy) as sock:
        sock.sendall(b"a")
        assert sock.recv(1) == b""
    with pytest.raises(RuntimeError, match="failed inside") as caught:
        proxy.close()
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_client_that_connects_while_the_proxy_closes_leaves_no_socket_open(echo: Echo) -> None:
    """Each close meets a connection that was accepted and has no transport yet, in a third of the tries."""
    for _ in range(30):
        proxy, clients = Proxy("127.0.0.1", echo.server_address[1]), list[socket.socket]()

        def connect(port: int = proxy.port, clients: list[socket.socket] = clients) -> None:
            with suppress(OSError):
                while len(clients) < 20:
                    clients.append(socket.create_connection(("127.0.0.1", port)))

        thread = threading.Thread(target=connect)
        thread.start()
        until(lambda clients=clients, thread=thread: bool(clients) or not thread.is_alive(), "a connection")  # type: ignore[misc]
        proxy.close()
        thread.join()
        for client in clients:
            client.close()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            del proxy
            gc.collect()
        assert not [str(warning.message) for warning in seen if "unclosed" in str(warning.message)]


# ---- Postgres


class Table:
    """A table of its own for each test, seen through a connection that does not go through the proxy."""

    def __init__(self, direct: psycopg.Connection[Any]) -> None:
        self.direct = direct
        self.schema = f"proxy_{uuid.uuid4().hex[:12]}"
        self.name = f"{self.schema}.t"
        direct.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))
        create = "CREATE TABLE {} (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        direct.execute(sql.SQL(create).format(sql.Identifier(self.schema, "t")))

    def rows(self) -> list[int]:
        return [row[0] for row in self.direct.execute(f"SELECT id FROM {self.name} ORDER BY id").fetchall()]

    def wait_until_written(self) -> None:
        """Until the server has run a statement of an open transaction: a pipeline's may still be on their way."""
        until(self.open_transactions, "a lock on the table")

    def open_transactions(self) -> int:
        """Transactions that hold a lock on the table, other than our own."""
        query = "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND pid <> pg_backend_pid()"
        row = self.direct.execute(query, (self.name,)).fetchone()
        assert row is not None
        return int(row[0])

    def wait_until_free(self) -> None:
        """Until the server has noticed that the client is gone."""
        with self.direct.transaction():
            self.direct.execute(f"SET LOCAL lock_timeout = '{int(SECONDS)}s'")
            self.direct.execute(f"LOCK TABLE {self.name} IN ACCESS EXCLUSIVE MODE")


@pytest.fixture
def table(seekpoint_dsn: str) -> Iterator[Table]:
    with psycopg.connect(libpq(seekpoint_dsn), autocommit=True) as direct:
        table = Table(direct)
        yield table
        direct.execute(f"SET lock_timeout = '{int(SECONDS)}s'")
        direct.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(table.schema)))


@pytest.fixture
def postgres(seekpoint_dsn: str, table: Table) -> Iterator[PostgresProxy]:
    # It needs no table, but has to be gone, with transactions it holds open, before the table is dropped.
    with PostgresProxy.in_front_of(seekpoint_dsn) as running:
        yield running


@pytest.fixture
def client(postgres: PostgresProxy) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(libpq(postgres.dsn)) as connection:
        yield connection


# Functions that write one row and commit it, named for how they send the COMMIT.


def simple_protocol(postgres: PostgresProxy, table: Table) -> None:
    with psycopg.connect(libpq(postgres.dsn)) as connection:
        connection.execute(f"INSERT INTO {table.name} VALUES (%s)", (1,))
        connection.commit()


def pipeline(postgres: PostgresProxy, table: Table) -> None:
    with psycopg.connect(libpq(postgres.dsn)) as connection, connection.pipeline():
        connection.execute(f"INSERT INTO {table.name} VALUES (%s)", (1,))
        connection.commit()


def prepared_statement(postgres: PostgresProxy, table: Table) -> None:
    with psycopg.connect(libpq(postgres.dsn), autocommit=True) as connection:
        for statement in ("BEGIN", "COMMIT", "BEGIN"):
            connection.execute(statement, prepare=True)
        connection.execute(f"INSERT INTO {table.name} VALUES (1)")
        connection.execute("COMMIT", prepare=True)  # only bound and executed: its text was sent long ago


def sqlalchemy(postgres: PostgresProxy, table: Table) -> None:
    engine = sa.create_engine(postgres.dsn)
    try:
        with engine.begin() as connection:
            connection.execute(sa.text(f"INSERT INTO {table.name} VALUES (:id)"), {"id": 1})
    finally:
        engine.dispose()


Commit = Callable[[PostgresProxy, Table], None]
each_commit = pytest.mark.parametrize("commit", [simple_protocol, pipeline, prepared_statement, sqlalchemy])


def skipped(commit: Commit) -> int:
    return 1 if commit is prepared_statement else 0  # it commits once to prepare its COMMIT


def fails(commit: Commit, postgres: PostgresProxy, table: Table) -> None:
    expected = sa.exc.OperationalError if commit is sqlalchemy else psycopg.OperationalError
    with pytest.raises(expected) as caught:
        commit(postgres, table)
    error = caught.value.orig if isinstance(caught.value, sa.exc.OperationalError) else caught.value
    assert isinstance(error, psycopg.OperationalError)
    assert error.sqlstate is None
    postgres.wait_until_fired()


@each_commit
def test_unarmed_the_proxy_is_not_noticed(postgres: PostgresProxy, table: Table, commit: Commit) -> None:
    commit(postgres, table)
    assert table.rows() == [1]
    assert postgres.counts["commit"] == 1 + skipped(commit)
    assert not postgres.fired.is_set()


@each_commit
def test_before_commit_has_not_taken_effect(postgres: PostgresProxy, table: Table, commit: Commit) -> None:
    postgres.arm("before_commit", skip=skipped(commit))
    fails(commit, postgres, table)
    assert table.rows() == []
    assert postgres.counts["before_commit"] == 1

    commit(postgres, table)  # a fault happens once
    assert table.rows() == [1]
    assert postgres.counts["before_commit"] == 1


@each_commit
def test_after_commit_has_taken_effect(postgres: PostgresProxy, table: Table, commit: Commit) -> None:
    postgres.arm("after_commit", skip=skipped(commit))
    fails(commit, postgres, table)
    assert table.rows() == [1]
    assert postgres.counts["after_commit"] == 1


@each_commit
def test_a_delayed_commit_is_in_doubt_until_delivered(postgres: PostgresProxy, table: Table, commit: Commit) -> None:
    postgres.arm("after_commit_delayed", skip=skipped(commit))
    fails(commit, postgres, table)
    assert table.rows() == []
    table.wait_until_written()

    assert postgres.deliver() == "COMMIT"

    assert table.rows() == [1]
    assert postgres.counts["delivered"] == postgres.counts["after_commit_delayed"] == 1
    table.wait_until_free()


@each_commit
def test_at_statement_nothing_is_executed(postgres: PostgresProxy, table: Table, commit: Commit) -> None:
    postgres.arm("at_statement", f"INSERT INTO {table.name}")
    fails(commit, postgres, table)
    assert table.rows() == []
    assert postgres.counts["at_statement"] == 1


def test_the_connection_is_broken_and_sqlalchemy_knows(postgres: PostgresProxy, table: Table) -> None:
    engine = sa.create_engine(postgres.dsn)
    with engine.connect() as connection:
        connection.execute(sa.text(f"INSERT INTO {table.name} VALUES (1)"))
        raw = connection.connection.driver_connection
        assert isinstance(raw, psycopg.Connection)
        postgres.arm("after_commit")

        with pytest.raises(sa.exc.OperationalError) as caught:
            connection.commit()

        assert caught.value.connection_invalidated
        assert connection.invalidated
        assert raw.broken
    engine.dispose()


def test_a_commit_that_the_server_refuses_is_passed_on_and_the_fault_waits(
    postgres: PostgresProxy, table: Table, client: psycopg.Connection[Any]
) -> None:
    postgres.arm("after_commit")
    client.execute(f"INSERT INTO {table.name} VALUES (1), (1)")  # checked at COMMIT only
    with pytest.raises(psycopg.errors.UniqueViolation):
        client.commit()
    assert postgres.counts["commit_refused"] == 1
    assert not postgres.fired.is_set()

    client.execute(f"INSERT INTO {table.name} VALUES (2)")
    with pytest.raises(psycopg.OperationalError):
        client.commit()
    postgres.wait_until_fired()
    assert table.rows() == [2]
    assert postgres.counts["after_commit"] == 1


def test_deliver_returns_what_became_of_the_transaction(postgres: PostgresProxy, table: Table) -> None:
    def left_in_doubt(write: Callable[[psycopg.Connection[Any]], object]) -> int:
        with psycopg.connect(libpq(postgres.dsn)) as client:
            write(client)
            pid = client.info.backend_pid
            postgres.arm("after_commit_delayed")
            with pytest.raises(psycopg.OperationalError):
                client.commit()
            postgres.wait_until_fired()
            return pid

    def fail(client: psycopg.Connection[Any]) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            client.execute("SELECT 1 / 0")

    left_in_doubt(fail)
    assert postgres.deliver() == "ROLLBACK"

    left_in_doubt(lambda client: client.execute(f"INSERT INTO {table.name} VALUES (3), (3)"))
    assert postgres.deliver() == "ERROR 23505"

    pid = left_in_doubt(lambda client: client.execute(f"INSERT INTO {table.name} VALUES (4)"))
    assert table.direct.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,)).fetchone() == (True,)
    assert postgres.deliver() in {"ERROR 57P01", "CLOSED"}

    assert table.rows() == []
    with pytest.raises(RuntimeError, match="after_commit_delayed"):
        postgres.deliver()


def test_copy_is_a_statement_too(postgres: PostgresProxy, table: Table, client: psycopg.Connection[Any]) -> None:
    def copy(count: int) -> None:
        with client.cursor() as cursor, cursor.copy(f"COPY {table.name} FROM STDIN") as stream:
            for number in range(count):
                stream.write_row((number,))

    copy(100_000)
    client.commit()
    assert len(table.rows()) == 100_000

    postgres.arm("at_statement", f"COPY {table.name}")
    with pytest.raises(psycopg.OperationalError):
        copy(1)
    postgres.wait_until_fired()


def test_skip_tries_every_statement_of_a_transaction(postgres: PostgresProxy, table: Table) -> None:
    before = postgres.counts["statement"]
    simple_protocol(postgres, table)
    statements = postgres.counts["statement"] - before
    table.direct.execute(f"TRUNCATE {table.name}")
    assert statements == 3  # BEGIN, INSERT, COMMIT

    for skip in range(statements):
        postgres.arm("at_statement", skip=skip)
        fails(simple_protocol, postgres, table)
        assert table.rows() == []

    assert postgres.counts["at_statement"] == statements


def test_a_vanished_client_leaves_its_transaction_open(
    postgres: PostgresProxy, table: Table, client: psycopg.Connection[Any]
) -> None:
    client.execute(f"INSERT INTO {table.name} VALUES (1)")
    postgres.freeze()
    client.close()
    assert table.open_transactions() > 0

    postgres.cut()

    table.wait_until_free()
    assert table.rows() == []


def test_a_cancel_request_finds_its_way(postgres: PostgresProxy, table: Table, client: psycopg.Connection[Any]) -> None:
    caught: list[type[BaseException]] = []

    def sleep() -> None:
        try:
            client.execute("SELECT pg_sleep(60)")
        except psycopg.Error as error:
            caught.append(type(error))

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
    until(lambda: table.direct.execute(asleep, (client.info.backend_pid,)).fetchone() == (1,), "a session that sleeps")

    client.cancel_safe(timeout=SECONDS)

    sleeper.join(SECONDS)
    assert caught == [psycopg.errors.QueryCanceled]
    assert postgres.counts["connected"] == 2


def test_encryption_is_refused_in_plain_words(postgres: PostgresProxy) -> None:
    with psycopg.connect(libpq(postgres.dsn), sslmode="prefer") as connection:
        assert not connection.pgconn.ssl_in_use
    with pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        psycopg.connect(libpq(postgres.dsn), sslmode="require")


def test_a_url_is_led_through_the_proxy() -> None:
    with PostgresProxy.in_front_of("postgresql+psycopg://me:x%40y@/db?host=pg&port=5433") as proxy:
        assert proxy.upstream == ("pg", 5433)
        assert proxy.dsn == f"postgresql+psycopg://me:x%40y@127.0.0.1:{proxy.port}/db"
    for unclear in ("postgresql:///db", "postgresql://a,b/db", "postgresql://a/db?host=b"):
        with pytest.raises(ConfigError, match="exactly one host"):
            PostgresProxy.in_front_of(unclear)
    with PostgresProxy("127.0.0.1", 5432) as bare, pytest.raises(ConfigError, match="in_front_of"):
        _ = bare.dsn
