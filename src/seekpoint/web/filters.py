"""The filter of dead letters, from the parameters of a page."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException

from seekpoint.admin import Where
from seekpoint.records import Cause
from seekpoint.web.site import PageRequest

FILTER = ("topic", "partition", "cause", "exception", "error_line", "key", "error")
OF_RECORDS = ("key", "error")  # fields whose matches reveal a record's contents


def where_of(request: PageRequest, *, shows_payloads: bool) -> Where:
    """A condition: the open dead letters that meet every non-empty parameter of the filter."""
    parameters = {name: value for name in FILTER if (value := request.get(name))}
    if not shows_payloads and (hidden := [name for name in OF_RECORDS if name in parameters]):
        raise HTTPException(HTTPStatus.FORBIDDEN, f"{hidden[0]} is not shown here, and cannot be searched for")
    try:
        cause = Cause(parameters["cause"]) if "cause" in parameters else None
    except ValueError:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"there is no cause {parameters['cause']!r}") from None
    return Where(
        topic=parameters.get("topic"),
        partition=request.integer("partition") if "partition" in parameters else None,
        cause=cause,
        exception=parameters.get("exception"),
        error_line=parameters.get("error_line"),
        key=parameters["key"].encode() if "key" in parameters else None,
        error=parameters.get("error"),
    )
