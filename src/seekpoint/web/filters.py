"""The filter of dead letters, as the parameters of a page have it."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException

from seekpoint.admin import Where
from seekpoint.records import Cause
from seekpoint.web.site import Asked

FILTER = ("topic", "partition", "cause", "exception", "error_line", "key", "error")
OF_RECORDS = ("key", "error")  # an answer to them says what is in a record


def where_of(asked: Asked, *, shows_payloads: bool) -> Where:
    """The open dead letters that meet every parameter of the filter that has a value."""
    given = {name: value for name in FILTER if (value := asked.given(name))}
    if not shows_payloads and (hidden := [name for name in OF_RECORDS if name in given]):
        raise HTTPException(HTTPStatus.FORBIDDEN, f"{hidden[0]} is not shown here, and cannot be searched for")
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
        key=given["key"].encode() if "key" in given else None,
        error=given.get("error"),
    )
