"""Asking a probe."""

from __future__ import annotations

import http.client
import socket


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ask(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Status and body; 0 while there is no server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except ConnectionError:
        return 0, b""
    finally:
        connection.close()
