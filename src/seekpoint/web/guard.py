"""Refuses requests for unknown hosts and other sites' forms, and sets headers that keep answers private."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI middleware. ``hosts`` are names other than the loopback's that the ``Host`` header may have.

    This prevents DNS rebinding: a site can have its name resolved to 127.0.0.1 to read answers from there, but the
    ``Host`` header then has that name.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app, self._hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        app = self._app if refusal is None else refusal

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer[name] = value
                answer.setdefault("Cache-Control", "no-store")
            await send(message)

        await app(scope, receive, sending)

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        host = headers.get("host", "")
        name = _name_of(host)
        if not (is_loopback(name) or name in self._hosts):
            return PlainTextResponse(f"host {name!r} is not known here: allow it with --host or hosts=\n", 421)
        if scope["method"] in {"GET", "HEAD"}:
            return None
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site not in {None, "same-origin"} or (origin is not None and origin.partition("://")[2] != host):
            return PlainTextResponse("forms of other sites are refused\n", 403)
        if site is None and origin is None:
            return PlainTextResponse("a form needs the header Origin or Sec-Fetch-Site, which browsers send\n", 403)
        return None


def _name_of(host: str) -> str:
    """The name in a ``Host`` header; empty if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
