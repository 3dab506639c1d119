"""The filter of dead letters, as the parameters of a page have it."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException

from seekpoint.admin import Where
from seekpoint.records import Cause
from seekpoint.web.site import Asked

FILTER = ("topic", "partition", "cause", "exception", "error_line")


def where_of(asked: Asked) -> Where:
    """The open dead letters that meet every parameter of the filter that has a value."""
    given = {name: value for name in FILTER if (value := asked.given(name))}
    try:
        cause = Cause(given["cause"]) if "cause" in given else None
    except ValueError:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"there is no cause {given['cause']!r}") from None
    return Where(
        topic=given.get("topic"),
        partition=asked.whole("partition") if "partition" in given else None,
        cause=cause,
        exception=given.get("exception"),
        error_line=given.get("error_line"),
    )
