"""What people do to a group's dead letters: look, replay, discard, export. Each has a plan first, then applies it."""

from seekpoint.admin.choice import Chosen, Where
from seekpoint.admin.letters import Letters, group_of
from seekpoint.admin.outcome import Discarded, Planned, Replayed, Summary
from seekpoint.admin.portable import portable
from seekpoint.admin.redrive import Redrive

__all__ = [
    "Chosen",
    "Discarded",
    "Letters",
    "Planned",
    "Redrive",
    "Replayed",
    "Summary",
    "Where",
    "group_of",
    "portable",
]
