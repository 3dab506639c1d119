"""A group's dead letters, for operators: list, replay, discard, export. Changes can be planned first."""

from seekpoint.worker.replay.dead_letter_admin import DeadLetterAdmin, Discarded, group_of, portable
from seekpoint.worker.replay.replay import DeadLetterReplay, Planned, Summary
from seekpoint.worker.replay.replay_one import Replayed
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
