"""``--listen``: a small HTTP server that answers probes and scrapes, on a thread of its own."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from seekpoint.cli.errors import masked
from seekpoint.cli.options import host_and_port
from seekpoint.errors import SeekpointError
from seekpoint.metrics import Source
from seekpoint.worker.health import Health

logger = logging.getLogger("seekpoint.cli")

TIMEOUT = 5.0  # seconds that a client may take to send its request
PATHS = ("/live", "/ready", "/stale")
METRICS = "/metrics"
TEXT = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' format

Exposition = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class State:
    """What the probes answer, and ``details`` for people who read the body."""

    live: bool
    ready: bool
    stale: bool
    details: Mapping[str, Any]

    def answer(self, path: str) -> HTTPStatus:
        """200 where all is well: live, ready, not stale; else 503. 404 for other paths."""
        if path not in PATHS:
            return HTTPStatus.NOT_FOUND
        well = {"/live": self.live, "/ready": self.ready, "/stale": not self.stale}[path]
        return HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE

    def shown(self) -> Mapping[str, Any]:
        """The state as JSON has it."""
        return {"live": self.live, "ready": self.ready, "stale": self.stale, **self.details}


def state_of(health: Health) -> State:
    """A worker's state, for its probes; texts are without passwords."""
    details = {
        "trouble": None if health.trouble is None else masked(health.trouble),
        "standby": None if health.standby is None else masked(health.standby),
        "stuck": health.stuck,
        "stopped": sorted(map(str, health.stopped)),
        "lag": sum(health.lag.values()),
        "records": health.records,
    }
    return State(health.live, health.ready, health.stale, details)


def exposition_of(source: Source) -> Exposition | None:
    """What answers scrapes of this source; None without the extra ``prometheus``."""
    try:
        from seekpoint.metrics.prometheus import exposition  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "prometheus_client":
            raise
        return None
    return lambda: exposition(source)


@contextmanager
def listening(address: str | None, state: Callable[[], State], source: Source) -> Iterator[None]:
    """Answer probes and scrapes on ``host:port`` within the block; None: on no port.

    Raises ConfigError for an address that is none, and SeekpointError where it is not free.
    """
    if address is None:
        yield
        return
    host, port = host_and_port(address)
    try:
        server = _server_class(host)((host, port), _handler(state, exposition_of(source)))
    except OSError as error:
        raise SeekpointError(f"--listen {address}: {error.strerror or error}") from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="seekpoint-probes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """Bind without asking a name server for this host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone before its answer is no error of ours."""


class _ServerOnIpv6(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _ServerOnIpv6 if ":" in host else _Server


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    kind: str = "application/json"


def _answer(path: str, state: State, metrics: Exposition | None) -> _Answer:
    if path == METRICS and metrics is not None:
        try:
            return _Answer(HTTPStatus.OK, metrics(), TEXT)
        except Exception:
            logger.exception("a scrape failed; the worker is not affected")
            return _Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"the log says why\n", TEXT)
    status = state.answer(path)
    shown = {"paths": [*PATHS, *([METRICS] if metrics else [])]} if status is HTTPStatus.NOT_FOUND else state.shown()
    return _Answer(status, json.dumps(shown).encode() + b"\n")


def _handler(state: Callable[[], State], metrics: Exposition | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT
        server_version, sys_version = "seekpoint", ""

        def do_GET(self) -> None:
            answer = _answer(self.path.partition("?")[0], state(), metrics)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base's name
            """Probes come every few seconds: none is logged."""

    return Handler
