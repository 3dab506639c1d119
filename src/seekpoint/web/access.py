"""The users of the console, and their rights."""

from __future__ import annotations

import inspect
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum

from starlette.requests import HTTPConnection

from seekpoint.ledger.admin_actions import operator


class Right(IntEnum):
    """A user's right. ``OPERATE`` includes ``READ``."""

    NONE = 0
    READ = 1
    OPERATE = 2


@dataclass(frozen=True, slots=True)
class Access:
    """A user, named as in the history, and the user's right."""

    user: str
    right: Right


AccessOf = Callable[[HTTPConnection], Access | Awaitable[Access]]
"""Returns a request's access; may be async. If it raises, the answer is 500, and nothing is shown or done."""


PROXIED = (
    "browsers would reach the console through a proxy, and all of them could act as the user of this machine; mount "
    "seekpoint.web.create_app with access= in a service"
)
"""Why actions under other names than localhost need an ``access``."""


def local(right: Right) -> AccessOf:
    """Access for requests from this machine, as its user; none for other requests, or through a proxy."""

    def access(request: HTTPConnection) -> Access:
        return Access(operator(), right if _is_of_this_machine(request) else Right.NONE)

    return access


async def access_of(ask: AccessOf, request: HTTPConnection) -> Access:
    """The answer of ``ask``, awaited if it is async."""
    access = ask(request)
    return await access if inspect.isawaitable(access) else access


_OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-real-ip")


def _is_of_this_machine(request: HTTPConnection) -> bool:
    if any(name in request.headers for name in _OF_PROXIES):  # the proxy is on this machine, but its users may not be
        return False
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:  # a name, or a Unix socket's empty one
        return False
