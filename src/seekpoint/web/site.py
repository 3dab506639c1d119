"""Common to all pages: access, templates, JSON, and the answers to errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy.exc import DataError, SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from seekpoint.errors import ConfigError, Fenced, SeekpointError
from seekpoint.web import present
from seekpoint.web.access import Access, AccessOf, Right, access_of
from seekpoint.web.reading import Unavailable, said_by
from seekpoint.web.tokens import Tokens

LARGEST_FORM = 16_000_000  # bytes; enough for a reset of some 35,000 partitions

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined
)
_templates.filters.update(number=present.number, age=present.age, ago=present.ago, moment=present.moment)
_templates.filters.update(octets=present.octets, cut=present.cut, header_name=present.header_name)
_templates.globals.update(
    query=lambda **parameters: urlencode({name: value for name, value in parameters.items() if value is not None}),
    choices_of=present.choices_of,
)
_templates.filters.update(headroom=present.headroom, dead_letters=present.dead_letters)


@dataclass(frozen=True)
class Page:
    """A page: its template, the shown values, and ``data`` for JSON."""

    template: str
    title: str
    data: Any
    shown: Mapping[str, Any] = field(default_factory=dict)
    age: float = 0.0
    error: str | None = None  # why the data is ``age`` seconds old
    is_live: bool = True
    status: int = HTTPStatus.OK


@dataclass(frozen=True)
class PageRequest:
    """A request: the user's access, and the parameters."""

    access: Access
    parameters: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        text = self.get(name)
        if text is None:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"the parameter {name!r} is missing")
        return text

    def only(self, *names: str) -> None:
        """Raise HTTPException for any other parameter, because an ignored misspelled filter would select more."""
        if unknown := sorted(self.parameters.keys() - set(names)):
            listing = ", ".join(names) or "none"
            raise HTTPException(
                HTTPStatus.BAD_REQUEST, f"there is no parameter {unknown[0]!r} here; the parameters are {listing}"
            )

    def get(self, name: str) -> str | None:
        """A parameter, or None if it is missing. Raises HTTPException for a NUL, which Postgres cannot store."""
        text = self.parameters.get(name)
        if text is not None and "\0" in text:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name} has a NUL character, which Postgres cannot store")
        return text

    def integer(self, name: str, default: int | None = None) -> int:
        """A parameter that is a whole number."""
        text = self.parameters.get(name)
        if text is None and default is not None:
            return default
        try:
            return int(self[name])
        except ValueError:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name} takes a whole number, not {text!r}") from None


AskFor = Callable[[PageRequest], Awaitable[Page]]
Post = Callable[[PageRequest], Awaitable[str | Page]]
"""Returns the next page, as a path relative to the application; or a page that shows a refusal."""


class Site:
    """Checks access, and turns pages into HTML or JSON."""

    def __init__(
        self, access: AccessOf, tokens: Tokens, *, allow_actions: bool, shows_payloads: bool, refresh: float
    ) -> None:
        self.tokens, self.shows_payloads = tokens, shows_payloads
        self._access, self._allow_actions, self._refresh = access, allow_actions, refresh

    def page(self, ask_for: AskFor, right: Right = Right.READ) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that answers in HTML."""

        async def endpoint(request: Request) -> Response:
            page_request = PageRequest(await self._who(request), dict(request.query_params))
            try:
                self._require(page_request.access, right)
                page = await ask_for(page_request)
            except Exception as error:  # noqa: BLE001 -- each kind has its page, the rest is raised
                page = error_page(error)
                page = replace(page, is_live=page.status == HTTPStatus.SERVICE_UNAVAILABLE)  # the server may come back
            return self._html(request, page_request.access, page)

        return endpoint

    def api(self, ask_for: AskFor) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that answers in JSON."""

        async def endpoint(request: Request) -> Response:
            page_request = PageRequest(await self._who(request), dict(request.query_params))
            try:
                self._require(page_request.access, Right.READ)
                page = await ask_for(page_request)
            except Exception as error:  # noqa: BLE001 -- as above
                page = error_page(error)
            body = {"age": page.age, "error": page.error, "data": page.data}
            encoded = msgspec.json.encode(body, enc_hook=str)
            return Response(encoded, status_code=page.status, media_type="application/json")

        return endpoint

    def post(self, carry_out: Post) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint for an action: redirects (303) to the path that ``carry_out`` returns, or shows its page."""

        async def endpoint(request: Request) -> Response:
            access = await self._who(request)
            try:
                self._require(access, Right.OPERATE)
                page_or_path = await carry_out(PageRequest(access, await _form(request)))
            except Exception as error:  # noqa: BLE001 -- as above
                page_or_path = error_page(error)
            if isinstance(page_or_path, Page):
                return self._html(request, access, page_or_path)
            return RedirectResponse(page_or_path, HTTPStatus.SEE_OTHER)

        return endpoint

    async def _who(self, request: Request) -> Access:
        access = await access_of(self._access, request)
        if not self._allow_actions and access.right > Right.READ:
            access = Access(access.user, Right.READ)
        return access

    @staticmethod
    def _require(access: Access, right: Right) -> None:
        if access.right < right or access.right < Right.READ:
            action = "look at this console" if right is Right.READ else "act here"
            raise HTTPException(HTTPStatus.FORBIDDEN, f"user {access.user!r} may not {action}")

    def _html(self, request: Request, access: Access, page: Page) -> Response:
        text = _templates.get_template(f"{page.template}.html").render(
            page=page,
            user=access.user,
            may_operate=access.right >= Right.OPERATE,
            may_read=access.right >= Right.READ,
            refresh=self._refresh,
            shows_payloads=self.shows_payloads,
            self_url=f"{request.url.path.rpartition('/')[2] or './'}?{request.url.query}".rstrip("?"),
            **page.shown,
        )
        return HTMLResponse(text, status_code=page.status)


async def _form(request: Request) -> dict[str, str]:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_FORM:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the form is too large")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body)))
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the request is not a form: {error}") from None


def error_page(error: Exception) -> Page:
    """The page for an error that has a message for users; raises every other error."""
    match error:
        case HTTPException():
            status, message = error.status_code, error.detail
        case Unavailable():
            status, message = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
        case Fenced():
            status, message = HTTPStatus.CONFLICT, str(error)
        case ConfigError():
            status, message = HTTPStatus.UNPROCESSABLE_ENTITY, str(error)
        case SeekpointError():
            status, message = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
        case DataError():  # a number too large for its column's type
            status, message = HTTPStatus.UNPROCESSABLE_ENTITY, said_by(error)
        case SQLAlchemyError():
            status, message = HTTPStatus.SERVICE_UNAVAILABLE, said_by(error)
        case _:
            raise error
    shown = {"said": message, "group": None, "reason": ""}
    return Page("error", HTTPStatus(status).phrase, {"error": message}, shown, is_live=False, status=status)
