"""``create_app``: the console as an ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from seekpoint.admin import Admin
from seekpoint.errors import ConfigError
from seekpoint.web.access import PROXIED, AccessOf, Right, local
from seekpoint.web.actions import Actions
from seekpoint.web.guard import Guard
from seekpoint.web.pages import Pages
from seekpoint.web.reading import Reads
from seekpoint.web.site import Site
from seekpoint.web.tokens import Tokens

Payloads = Literal["none", "full"]
STATIC = Path(__file__).parent / "static"


def create_app(
    admin: Admin,
    *,
    access: AccessOf | None = None,
    allow_actions: bool = False,
    payloads: Payloads = "none",
    refresh: float = 2.0,
    hosts: Collection[str] = (),
    secret: bytes | None = None,
    reader: Admin | None = None,
) -> ASGIApp:
    """The console of one ledger, as an ASGI application that can be mounted below any path.

    ``access`` returns a request's user and right; without it, requests from this machine may read, or with
    ``allow_actions`` operate, and others see nothing. With ``access``, ``allow_actions=False`` lets all users only
    read. ``payloads="full"`` shows keys, values, headers and error texts. Browsers load pages again every ``refresh``
    seconds. ``hosts``: names other than localhost that browsers may use. ``secret`` signs forms: give the same bytes to
    all processes that serve the same users. ``admin`` carries out actions. Pages use read-only transactions, on a
    separate pool made from the URL of the admin's engine, or on ``reader``: give one if the engine needs more than its
    URL. Connects at the first request. Raises ConfigError for ``allow_actions`` with ``hosts`` and without ``access``:
    everyone who can reach this machine's proxy would act as its user.
    """
    if allow_actions and hosts and access is None:
        raise ConfigError(f"allow_actions=True with hosts= and without access=: {PROXIED}")
    ask = access or local(Right.OPERATE if allow_actions else Right.READ)
    site = Site(ask, Tokens(secret), allow_actions=allow_actions, shows_payloads=payloads == "full", refresh=refresh)
    reads = Reads(admin, reader)
    pages, actions = Pages(site, reads), Actions(site, reads, admin)
    shown = {
        "/": pages.groups,
        "/group": pages.group,
        "/partition": pages.partition,
        "/record": pages.record,
        "/dead-letters": pages.dead_letters,
        "/dead-letter": pages.dead_letter,
        "/replay": pages.replay,
        "/reloads": pages.reloads,
        "/history": pages.history,
        "/health": pages.health,
    }
    app = Starlette(
        routes=[
            *(Route(path, site.page(ask_for), methods=["GET"]) for path, ask_for in shown.items()),
            *(_get_alone(f"/api{path}", site.api(ask_for)) for path, ask_for in shown.items()),
            Route("/plan", site.page(actions.plan, Right.OPERATE), methods=["GET"]),
            Route("/apply", site.post(actions.apply), methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
    )
    return Guard(app, hosts)  # outermost, so that answers with status 500 also have its headers


def _get_alone(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    route = Route(path, endpoint, methods=["GET"])
    route.methods = {"GET"}  # Starlette has added HEAD
    return route
