"""``--listen``: a small HTTP server that answers probes and scrapes, on a separate thread."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

from seekpoint.cli.masking import masked
from seekpoint.cli.options import host_and_port
from seekpoint.errors import SeekpointError
from seekpoint.metrics import Source
from seekpoint.worker.health import Health

logger = logging.getLogger("seekpoint.cli")

TIMEOUT = 5.0  # seconds that a client may take for each part of its request
LONGEST = 10.0  # seconds for a whole connection
MOST = 32  # most connections at a time; further ones are closed
PATHS = ("/live", "/ready", "/stale")
METRICS = "/metrics"
TEXT = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' format

TEXTS = ("trouble", "standby")  # details of a state that quote a server

Exposition = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class State:
    """The probes' answer; ``details`` are for operators who read the body."""

    live: bool
    ready: bool
    stale: bool
    details: Mapping[str, Any]

    def answer(self, path: str) -> HTTPStatus:
        """200 if the path's state is good (live, ready, not stale), otherwise 503; 404 for other paths."""
        if path not in PATHS:
            return HTTPStatus.NOT_FOUND
        well = {"/live": self.live, "/ready": self.ready, "/stale": not self.stale}[path]
        return HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE

    def shown(self) -> Mapping[str, Any]:
        """The state for JSON."""
        return {"live": self.live, "ready": self.ready, "stale": self.stale, **self.details}


Shown = Callable[[State], Mapping[str, Any]]


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
    """The function that answers scrapes of this source; None without the extra ``prometheus``."""
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

    Raises ConfigError for an invalid address, SeekpointError if it is in use.
    """
    if address is None:
        yield
        return
    host, port = host_and_port(address)
    shown = State.shown if _is_loopback(host) else _without_texts
    try:
        server = _server_class(host)((host, port), _handler(state, shown, exposition_of(source)))
    except OSError as error:
        raise SeekpointError(
            f"--listen {address}: {error.strerror or error}; choose another address or port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="seekpoint-probes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_texts(state: State) -> Mapping[str, Any]:
    """The state without servers' texts, because other hosts may read it."""
    cleaned: Mapping[str, Any] = _cleaned(state.shown())
    return cleaned


def _cleaned(value: Any) -> Any:
    match value:
        case Mapping():
            hidden = {name for name in TEXTS if value.get(name) is not None}
            return {
                name: "the log says why" if name in hidden else _cleaned(element) for name, element in value.items()
            }
        case list():
            return [_cleaned(element) for element in value]
        case _:
            return value


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a new thread, unless there are too many connections."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer within a time limit, so that a slow client does not keep its thread."""
        timer = threading.Timer(LONGEST, _cut, [request])
        timer.daemon = True
        try:
            timer.start()
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._free.release()

    def server_bind(self) -> None:
        """Bind without asking a name server for this host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has closed the connection before the answer."""


def _cut(request: socket.socket) -> None:
    with suppress(OSError):  # the client has closed the connection
        request.shutdown(socket.SHUT_RDWR)


class _ServerOnIpv6(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _ServerOnIpv6 if ":" in host else _Server


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    kind: str = "application/json"


def _answer(path: str, state: State, shown_of: Shown, metrics: Exposition | None) -> _Answer:
    if path == METRICS and metrics is not None:
        try:
            return _Answer(HTTPStatus.OK, metrics(), TEXT)
        except Exception:
            logger.exception("a scrape failed; the worker is not affected")
            return _Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"the log says why\n", TEXT)
    status = state.answer(path)
    shown = {"paths": [*PATHS, *([METRICS] if metrics else [])]} if status is HTTPStatus.NOT_FOUND else shown_of(state)
    return _Answer(status, json.dumps(shown).encode() + b"\n")


def _handler(state: Callable[[], State], shown: Shown, metrics: Exposition | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT
        server_version, sys_version = "seekpoint", ""

        def do_GET(self) -> None:
            answer = _answer(self.path.partition("?")[0], state(), shown, metrics)
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
            """Log nothing: probes come every few seconds."""

    return Handler
