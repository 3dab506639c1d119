"""Writes the message about a worker that has not ended within its grace period: the code that runs, and its line."""

from __future__ import annotations

import sys

from seekpoint.pipeline.handler import shown_handler
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import running_line


def shown_user_code(pipeline: Pipeline) -> str:
    """How messages name the user's code that a pipeline runs inside its transactions."""
    return "row= or the codec" if pipeline.handle is None else shown_handler(pipeline.handle)


def unended(group: str, user_code: str | None, thread: int, grace: float, *, is_open: bool) -> str:
    """The message. ``user_code`` is the user's code that runs now, if any; ``is_open``: the worker is in its group."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 -- its documented name
    line = running_line(frame) if frame is not None else None
    location = "" if line is None else f", and is at {line}"
    late = f"has not returned within {grace:g} s after the worker was asked to stop" if grace else "was aborted"
    message = f"group {group!r}: {user_code or 'the worker'} {late}{location}"
    if not is_open:  # still starting: the worker waits for its servers
        return message
    return (
        f"{message}. Its connection is closed: nothing of the open batch is committed, and the next owners of its "
        "partitions count a crash"
    )
