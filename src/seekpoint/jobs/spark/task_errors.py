"""A task's error, encoded in the text of its exception: Spark passes only the text to the driver."""

from __future__ import annotations

import base64
import re

from seekpoint.errors import ConfigError, SeekpointError
from seekpoint.jobs.staging.task_errors import ENDS, error_as_text, error_of

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_SAID = re.compile(r"seekpoint:([A-Za-z0-9+/=]+):end")


class TaskEnded(Exception):  # noqa: N818 -- not an error of the public hierarchy
    """A task raised ``error``."""

    def __init__(self, error: SeekpointError) -> None:
        said = base64.b64encode(error_as_text(error).encode()).decode()
        super().__init__(f"{type(error).__name__}: {error}\nseekpoint:{said}:end")


def ending_of(error: BaseException) -> SeekpointError | None:
    """The error of ours that Spark's exception carries; None where it carries none."""
    if (found := _SAID.search(str(error))) is None:
        return _missing(error)
    ending = error_of(base64.b64decode(found[1]).decode())
    ending.__cause__ = error
    return ending


def _missing(error: BaseException) -> ConfigError | None:
    """Spark's workers could not import what a task is made of."""
    if (found := _NO_MODULE.search(str(error))) is None:
        return None
    ending = ConfigError(
        f"Spark's Python workers have no module {found[1]!r} (this process may have it): install it for the executors' "
        "Python, or give it to the session (spark.submit.pyFiles)"
    )
    ending.__cause__ = error
    return ending


__all__ = ["ENDS", "TaskEnded", "ending_of"]
