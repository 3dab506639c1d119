"""What is said of a worker that has not ended within its grace: what has not returned, and where its thread is."""

from __future__ import annotations

import sys

from seekpoint.pipeline.pipeline import Pipeline, shown_handler
from seekpoint.records import running_line


def shown_user_code(pipeline: Pipeline) -> str:
    """The user's code that a pipeline runs inside its transactions, as messages name it."""
    return "row= or the codec" if pipeline.handle is None else shown_handler(pipeline.handle)


def unended(group: str, user_code: str | None, thread: int, grace: float, *, is_open: bool) -> str:
    """The message. ``user_code`` is what runs now, where that is the user's; ``is_open``: it has joined its group."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 -- its documented name
    line = running_line(frame) if frame is not None else None
    place = "" if line is None else f", and is at {line}"
    message = (
        f"group {group!r}: {user_code or 'the worker'} has not returned within {grace:g} s after the worker was asked "
        f"to stop{place}"
    )
    if not is_open:  # at its start, it waits for an answer of its servers
        return message
    return (
        f"{message}. Its connection is closed: nothing of the batch in hand is committed, and the next owners of its "
        "partitions count a crash"
    )
