"""Requests to a worker's probes."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from seekpoint.testing.servers.process import free_port

__all__ = ["ask", "free_port", "free_ports"]


def free_ports(count: int) -> Sequence[int]:
    """``count`` consecutive free ports, outside the range that outgoing connections draw from."""
    while True:
        ports = range(first := free_port(), first + count)
        with ExitStack() as sockets:
            try:
                for port in ports:
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return ports


def ask(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    """The status and body of an answer; status 0 if no server answers, or if the answer is incomplete."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
