"""What ends a run, on its way from a task to the driver: Spark passes on nothing of an exception but its text."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from seekpoint import errors
from seekpoint.errors import (
    ConfigError,
    RangeLost,
    RangeStuck,
    ReloadOver,
    ReloadRefused,
    SeekpointError,
    TopicRecreated,
)
from seekpoint.records import Partition

#: No other attempt, and no other driver, would get over these.
ENDS = (ConfigError, RangeLost, RangeStuck, ReloadOver, ReloadRefused, TopicRecreated)

_SAID = re.compile(r"seekpoint:([A-Za-z0-9+/=]+):end")


class TaskEnded(Exception):  # noqa: N818 -- an error of ours in the clothes that Spark lets through
    """A task raised ``error``."""

    def __init__(self, error: SeekpointError) -> None:
        state = {
            key: [*value] if isinstance(value, tuple) else value
            for key, value in vars(error).items()
            if isinstance(value, str | int | tuple) or value is None
        }
        said = json.dumps([type(error).__name__, str(error), state], default=str)
        super().__init__(f"{type(error).__name__}: {error}\nseekpoint:{base64.b64encode(said.encode()).decode()}:end")


def ending_of(error: BaseException) -> SeekpointError | None:
    """The error of ours that Spark's exception carries; None where it carries none."""
    if (found := _SAID.search(str(error))) is None:
        return None
    name, message, state = json.loads(base64.b64decode(found[1]))
    kind: Any = getattr(errors, name)
    ending: SeekpointError = kind.__new__(kind)
    Exception.__init__(ending, message)
    for key, value in state.items():
        made = Partition(*value) if key == "partition" else tuple(value) if isinstance(value, list) else value
        setattr(ending, key, made)
    ending.__cause__ = error
    return ending
