"""Poolers in transaction mode: the real PgBouncer if the machine has it, and a small pooler that runs everywhere.

Both give each transaction the server connection that was idle for the longest time, so that two transactions of a
client rarely share a connection. Neither supports prepared statements (PgBouncer did not before 1.21).
"""

from __future__ import annotations

import os
import queue
import secrets
import select
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from sqlalchemy import URL, make_url

from seekpoint.testing.servers.postgres import _unprivileged
from seekpoint.testing.servers.process import Child, Folder, free_port
from support import pgwire
from support.databases import libpq
from support.docs_pages import ROOT

POOL_SIZE = 12
_SECONDS = 30


UNPACKED = ROOT / ".venv" / "pgbouncer" / "root"


def pgbouncer() -> str | None:
    """The path of PgBouncer: the machine's, or that of Debian's package, which `make pgbouncer` unpacks; else None."""
    folders = [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", str(UNPACKED / "usr" / "sbin")]
    return shutil.which("pgbouncer", path=os.pathsep.join(folders))


def _reachable(program: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """The program and its environment; an unpacked program is copied to where any user may read it."""
    if UNPACKED not in program.parents:
        return program, dict(os.environ)
    shutil.copytree(UNPACKED / "usr", folder / "usr", symlinks=True)
    (library,) = (folder / "usr" / "lib").glob("*/libcares.so.2")
    return folder / "usr" / "sbin" / "pgbouncer", {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}


@contextmanager
def run_pgbouncer(dsn: str, size: int = POOL_SIZE) -> Iterator[str]:
    """PgBouncer for the server of a SQLAlchemy URL; yields the URL with its address."""
    program, url, port = pgbouncer(), make_url(dsn), free_port()
    assert program is not None
    user = _unprivileged()  # PgBouncer refuses to run as root, too
    folder = Folder("pgbouncer", owner=user)
    options = {"host": url.host, "port": url.port or 5432, "user": url.username, "password": url.password}
    target = " ".join(f"{name}='{value}'" for name, value in options.items() if value is not None)
    (folder.path / "pgbouncer.ini").write_text(
        f"[databases]\n* = {target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\npool_mode = transaction\ndefault_pool_size = {size}\nmax_client_conn = 300\n"
        "server_round_robin = 1\nlog_connections = 0\nlog_disconnections = 0\n",
        encoding="utf-8",
    )
    path, environment = _reachable(Path(program), folder.path)
    child = Child([str(path), str(folder.path / "pgbouncer.ini")], folder, user=user, env=environment)
    through = url.set(host="127.0.0.1", port=port)
    try:
        child.start()
        _await(through, child)
        yield through.render_as_string(hide_password=False)
    finally:
        child.close()


def _await(url: URL, child: Child) -> None:
    deadline, pause = time.monotonic() + _SECONDS, threading.Event()
    dsn = libpq(url)
    while child.running and time.monotonic() < deadline:
        with suppress(psycopg.OperationalError):
            psycopg.connect(dsn, connect_timeout=5).close()
            return
        pause.wait(0.02)
    raise AssertionError(f"PgBouncer does not answer: {child.log_tail()}")


def in_each_session(dsn: str, query: LiteralString, size: int = POOL_SIZE) -> list[tuple[Any, ...]]:
    """The query's result in each session of the pooler, all of which are open after this call."""
    with ExitStack() as stack:
        rows = []
        for _ in range(size):
            client = stack.enter_context(psycopg.connect(dsn.replace("+psycopg", "", 1), connect_timeout=_SECONDS))
            rows += client.execute(query, prepare=False).fetchall()
        return rows


class TransactionPooler:
    """The tests' pooler: gives each transaction a server connection from the front of a queue.

    Clients need no password, and get a process number that the pooler chooses. No TLS.
    """

    def __init__(self, dsn: str, size: int = POOL_SIZE) -> None:
        self._url = make_url(dsn)
        self._size, self._made = size, 0
        self._making = threading.Lock()
        self._idle: queue.Queue[socket.socket] = queue.Queue()
        self._open: set[socket.socket] = set()
        self._parameters: dict[str, str] = {}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._first = self._connect()
        self._made = 1
        self._idle.put(self._first)
        threading.Thread(target=self._accept, name="pooler", daemon=True).start()

    @property
    def url(self) -> str:
        """The server's URL with the pooler's address."""
        port = self._listening.getsockname()[1]
        return self._url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)

    def close(self) -> None:
        """Close all connections."""
        self._listening.close()
        for client in list(self._open):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()

    # -- server connections ---------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        """The socket of a connection that libpq has authenticated."""
        dsn = libpq(self._url)
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert not connection.pgconn.ssl_in_use, "the tests' pooler knows no TLS"
            for name in ("server_version", "client_encoding", "server_encoding", "DateStyle", "TimeZone"):
                self._parameters[name] = connection.info.parameter_status(name) or ""
            for name in ("integer_datetimes", "standard_conforming_strings", "IntervalStyle"):
                self._parameters[name] = connection.info.parameter_status(name) or ""
            server = socket.socket(fileno=os.dup(connection.fileno()))
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, connection.fileno())  # libpq's goodbye is not for the server
            os.close(null)
        server.setblocking(True)
        self._open.add(server)
        return server

    def _take(self) -> socket.socket:
        with self._making:
            is_new = self._idle.empty() and self._made < self._size
            self._made += is_new
        return self._connect() if is_new else self._idle.get(timeout=_SECONDS)

    def _drop(self, server: socket.socket) -> None:
        with self._making:
            self._made -= 1
        self._open.discard(server)
        server.close()

    # -- clients --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed
                return
            self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), name="pooler-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with ExitStack() as stack:
            stack.callback(self._open.discard, client)
            stack.enter_context(client)
            stack.enter_context(suppress(OSError, ValueError))  # ValueError: poll of a socket that was closed
            if self._greet(client):
                _Client(client, self._take, self._idle.put, self._drop).serve()

    def _greet(self, client: socket.socket) -> bool:
        greeting = pgwire.Greeting()
        while data := client.recv(65536):
            refusals, startup = greeting.feed(data)
            client.sendall(pgwire.REFUSED * refusals)
            if startup:
                break
        else:
            return False
        if struct.unpack_from("!i", startup, 4)[0] != 3 << 16:  # a request to cancel
            return False
        answer = _message("R", struct.pack("!i", 0))
        for name, value in self._parameters.items():
            answer += _message("S", f"{name}\0{value}\0".encode())
        answer += _message("K", struct.pack("!ii", secrets.randbelow(2**31), secrets.randbelow(2**31)))
        client.sendall(answer + _message("Z", b"I"))
        return True


class _Client:
    """One client, and its server connection while a transaction is open."""

    def __init__(
        self,
        client: socket.socket,
        take: Callable[[], socket.socket],
        give_back: Callable[[socket.socket], None],
        drop: Callable[[socket.socket], None],
    ) -> None:
        self._client, self._take, self._give_back, self._drop = client, take, give_back, drop
        self._server: socket.socket | None = None
        self._from_client, self._from_server = _Messages(), _Messages()
        self._awaited = 0  # ReadyForQuery that the server owes
        self._unsynced = False  # messages of the extended protocol came, and no Sync yet

    def serve(self) -> None:
        try:
            while self._step():
                pass
        finally:
            if self._server is not None:  # in mid-transaction: the server rolls it back
                self._drop(self._server)

    def _step(self) -> bool:
        watched = [self._client] if self._server is None else [self._client, self._server]
        for ready in _readable(watched):
            data = ready.recv(1 << 20)
            if not data:
                return False
            if ready is self._client:
                if not self._to_server(data):
                    return False
            elif self._server is not None:
                self._to_client(data)
        return True

    def _to_server(self, data: bytes) -> bool:
        out = bytearray()
        for kind, raw in self._from_client.feed(data):
            if kind == "X":
                return False
            if kind in "dcf" and self._server is None:  # of a COPY that has failed: a server ignores these
                continue
            if self._server is None:
                self._server = self._take()
            self._awaited += kind in "QSF"
            self._unsynced = kind in "PBDEC" or (self._unsynced and kind not in "SQ")
            out += raw
        if out and self._server is not None:
            self._server.sendall(out)
        return True

    def _to_client(self, data: bytes) -> None:
        out, is_free = bytearray(), False
        for kind, raw in self._from_server.feed(data):
            out += raw
            if kind == "Z":
                self._awaited -= 1
                is_free = raw[5:6] == b"I" and not self._awaited and not self._unsynced
        if is_free and self._server is not None:
            server, self._server = self._server, None
            self._give_back(server)
        self._client.sendall(out)


class _Messages:
    """Cuts a stream into whole messages."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        self._held += data
        while len(self._held) >= 5:
            size = 1 + struct.unpack_from("!i", self._held, 1)[0]
            if len(self._held) < size:
                return
            raw = bytes(self._held[:size])
            del self._held[:size]
            yield chr(raw[0]), raw


def _readable(watched: Sequence[socket.socket]) -> list[socket.socket]:
    """Wait until some sockets can be read, and return them. ``select`` handles only a process's first 1,024 files."""
    poll = select.poll()
    for client in watched:
        poll.register(client, select.POLLIN)
    ready = {number for number, _ in poll.poll()}
    return [client for client in watched if client.fileno() in ready]


def _message(kind: str, body: bytes) -> bytes:
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


@contextmanager
def run_own(dsn: str, size: int = POOL_SIZE) -> Iterator[str]:
    """The tests' pooler for the server of a SQLAlchemy URL; yields the URL with its address."""
    pooler = TransactionPooler(dsn, size)
    try:
        yield pooler.url
    finally:
        pooler.close()


POOLERS = {"pgbouncer": run_pgbouncer, "own": run_own}
