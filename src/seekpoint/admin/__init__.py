"""A group's dead letters, for operators: list, replay, discard, export. Changes can be planned first."""

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
