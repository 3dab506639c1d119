"""What people do to a group's dead letters: look, replay, discard, export. Each has a plan first, then applies it."""

from seekpoint.worker.replay.dead_letters import DeadLetterAdmin, group_of
from seekpoint.worker.replay.json_export import portable
from seekpoint.worker.replay.replay import DeadLetterReplay
from seekpoint.worker.replay.results import Discarded, Planned, Replayed, Summary
from seekpoint.worker.replay.selection import Chosen, Where

__all__ = [
    "Chosen",
    "DeadLetterAdmin",
    "DeadLetterReplay",
    "Discarded",
    "Planned",
    "Replayed",
    "Summary",
    "Where",
    "group_of",
    "portable",
]
