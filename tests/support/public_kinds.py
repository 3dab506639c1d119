"""Every event and every error of the package, in the order of their modules."""

from __future__ import annotations

import inspect

from seekpoint import errors, events

EVENTS = [
    kind
    for kind in vars(events).values()
    if inspect.isclass(kind) and issubclass(kind, events.Event) and kind is not events.Event
]
ERRORS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
]
